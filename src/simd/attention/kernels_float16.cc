// The kernels on float16 tensors, for every SIMD target. A file for each type, so that they compile
// at the same time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/simd/attention/kernels_float16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/simd/attention/kernels-inl.h"
#include "src/simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
namespace HWY_NAMESPACE {

Kernels Float16KernelsOfTarget() { return KernelsOfType<Float16>(); }

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnops::attention {

HWY_EXPORT(Float16KernelsOfTarget);

Kernels Float16Kernels(TargetIndex target) {
  return ATTNOPS_DISPATCH(Float16KernelsOfTarget, target)();
}

}  // namespace attnops::attention
#endif  // HWY_ONCE
