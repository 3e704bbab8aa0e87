// The kernels of decoding with ranks and of the cache, for every SIMD target.
#include "src/ops/tensor_product_attention/ranks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/tensor_product_attention/ranks.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/core/target.h"
#include "src/ops/tensor_product_attention/append-inl.h"
#include "src/ops/tensor_product_attention/decode-inl.h"

#if HWY_ONCE
namespace attnops::tensor_product_attention {
namespace {
ATTNOPS_EXPORT(AppendKernelOfTarget);
ATTNOPS_EXPORT(DecodeKernelsOfTarget);
}  // namespace

AppendKernel AppendKernelOf(TargetIndex target) {
  return ATTNOPS_DISPATCH(AppendKernelOfTarget, target)();
}
DecodeKernels DecodeKernelsOf(TargetIndex target) {
  return ATTNOPS_DISPATCH(DecodeKernelsOfTarget, target)();
}

}  // namespace attnops::tensor_product_attention
#endif
