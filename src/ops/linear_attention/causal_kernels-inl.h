// The table of kernels of causal linear attention.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/causal_backward-inl.h"
#include "src/ops/linear_attention/causal_forward-inl.h"
#include "src/ops/linear_attention/causal_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

template <typename T>
Kernels KernelsOfTarget() {
  Kernels kernels;
  kernels.chunk = static_cast<std::int64_t>(ChunkSize());
  kernels.block_end = BlockEnd<T>;
  kernels.start = Start<T>;
  kernels.forward = Forward<T>;
  kernels.backward_state = BackwardState<T>;
  kernels.backward = Backward<T>;
  kernels.load_state = LoadState<T>;
  kernels.store_state = StoreState<T>;
  kernels.store_constants = StoreConstants<T>;
  kernels.step = Step<T>;
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_INL_H_
