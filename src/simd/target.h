// Choosing the SIMD target at run time.
#ifndef ATTNOPS_SRC_SIMD_TARGET_H_
#define ATTNOPS_SRC_SIMD_TARGET_H_

#include <cstddef>

#include "attnops/target.h"

namespace attnops {

// Index of the chosen target in the tables that HWY_EXPORT makes. The choice is
// our own and not Highway's, whose chosen target is shared by all that use it in
// the process.
std::size_t TargetIndex();

// The same for the best target that the CPU has.
std::size_t BestTargetIndex();

}  // namespace attnops

// The function that HWY_EXPORT(name) exported, for the chosen target.
#define ATTNOPS_DISPATCH(name) (*HWY_DISPATCH_TABLE(name)[attnops::TargetIndex()])

#endif  // ATTNOPS_SRC_SIMD_TARGET_H_
