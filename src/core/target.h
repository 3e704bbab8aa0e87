// Choosing the SIMD target at run time.
#ifndef ATTNOPS_SRC_CORE_TARGET_H_
#define ATTNOPS_SRC_CORE_TARGET_H_

#include <cstddef>

#include "attnops/target.h"

namespace attnops {

// Index of a target in the tables that ATTNOPS_EXPORT makes.
struct TargetIndex {
  std::size_t value;
};

// The chosen target. The choice is our own and not Highway's, whose chosen target is shared by all
// that use it in the process. SetTarget may change it at any time, so a call asks once.
TargetIndex ChosenTarget();

// The best target that the CPU has.
TargetIndex BestTarget();

}  // namespace attnops

// A table of a function's versions, one for each target, as HWY_EXPORT makes it. The first entry of
// Highway's would call its library, which is thus not needed; the last is the fallback.
#define ATTNOPS_EXPORT(name)                                                       \
  static decltype(&HWY_STATIC_DISPATCH(name)) const HWY_DISPATCH_TABLE(name)[] = { \
      &HWY_STATIC_DISPATCH(name), HWY_CHOOSE_TARGET_LIST(name), HWY_CHOOSE_FALLBACK(name)}

// The function that ATTNOPS_EXPORT(name) exported, for a target.
#define ATTNOPS_DISPATCH(name, target) (*HWY_DISPATCH_TABLE(name)[(target).value])

#endif  // ATTNOPS_SRC_CORE_TARGET_H_
