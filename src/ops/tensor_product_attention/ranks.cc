// The kernels of tensor product attention of any rank, for every SIMD target.
#include "src/ops/tensor_product_attention/ranks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/tensor_product_attention/ranks.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/core/target.h"
#include "src/ops/tensor_product_attention/append-inl.h"
#include "src/ops/tensor_product_attention/decode-inl.h"
#include "src/ops/tensor_product_attention/prefill_backward-inl.h"

#if HWY_ONCE
namespace attnops::tensor_product_attention {
namespace {
HWY_EXPORT(AppendKernelOfTarget);
HWY_EXPORT(DecodeKernelsOfTarget);
HWY_EXPORT(PrefillKernelsOfTarget);
}  // namespace

AppendKernel AppendKernelOf(TargetIndex target) {
  return ATTNOPS_DISPATCH(AppendKernelOfTarget, target)();
}
DecodeKernels DecodeKernelsOf(TargetIndex target) {
  return ATTNOPS_DISPATCH(DecodeKernelsOfTarget, target)();
}

PrefillKernels PrefillKernelsOf(DType dtype, TargetIndex target) {
  return ATTNOPS_DISPATCH(PrefillKernelsOfTarget, target)(dtype);
}

}  // namespace attnops::tensor_product_attention
#endif
