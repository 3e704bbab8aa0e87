// The kernels on float32 tensors, for every SIMD target. A file for each type, so that they compile
// at the same time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/simd/attention/kernels_float32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/simd/attention/kernels-inl.h"
#include "src/simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
namespace HWY_NAMESPACE {

Kernels Float32KernelsOfTarget() { return KernelsOfType<float>(); }

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnops::attention {

HWY_EXPORT(Float32KernelsOfTarget);

Kernels Float32Kernels(TargetIndex target) {
  return ATTNOPS_DISPATCH(Float32KernelsOfTarget, target)();
}

}  // namespace attnops::attention
#endif  // HWY_ONCE
