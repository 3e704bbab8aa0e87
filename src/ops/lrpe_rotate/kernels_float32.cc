// The kernels of lrpe_rotate on float32 tensors, for every SIMD target. A file for each type, so
// that they compile at the same time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/lrpe_rotate/kernels_float32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/lrpe_rotate/kernels-inl.h"
#include "src/simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

Kernels Float32KernelsOfTarget(Pass pass, Activation::Kind act, SoftmaxAxis axis) {
  return KernelsOfType<float>(pass, act, axis);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnops::lrpe_rotate {

HWY_EXPORT(Float32KernelsOfTarget);

Kernels Float32Kernels(Pass pass, Activation::Kind act, SoftmaxAxis axis) {
  return ATTNOPS_DISPATCH(Float32KernelsOfTarget)(pass, act, axis);
}

}  // namespace attnops::lrpe_rotate
#endif  // HWY_ONCE
