// Choosing the SIMD target at run time.
#ifndef ATTNOPS_SRC_CORE_TARGET_H_
#define ATTNOPS_SRC_CORE_TARGET_H_

#include <cstddef>

#include "attnops/target.h"

namespace attnops {

// Index of a target in the tables that HWY_EXPORT makes.
struct TargetIndex {
  std::size_t value;
};

// The chosen target. The choice is our own and not Highway's, whose chosen target is shared by all
// that use it in the process. SetTarget may change it at any time, so a call asks once.
TargetIndex ChosenTarget();

// The best target that the CPU has.
TargetIndex BestTarget();

}  // namespace attnops

// The function that HWY_EXPORT(name) exported, for a target.
#define ATTNOPS_DISPATCH(name, target) (*HWY_DISPATCH_TABLE(name)[(target).value])

#endif  // ATTNOPS_SRC_CORE_TARGET_H_
