// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/tensor_product_attention/forward-inl.h"
#include "src/ops/tensor_product_attention/merge-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

template <typename T>
Kernels KernelsOfTarget() {
  Kernels kernels;
  kernels.chunk = static_cast<std::int64_t>(ChunkSize());
  kernels.tile_columns = kTileChunks * kernels.chunk;
  kernels.prepare = Prepare<T>;
  kernels.attend = Attend<T>;
  kernels.merge = Merge<T>;
  kernels.copy = Copy;
  kernels.finish = Finish<T>;
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_INL_H_
