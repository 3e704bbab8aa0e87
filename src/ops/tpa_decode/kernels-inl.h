// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_INL_H_
#undef ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/tpa_decode/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tpa_decode {
namespace HWY_NAMESPACE {

template <typename T>
Kernels KernelsOfType() {
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
}  // namespace attnops::tpa_decode
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_INL_H_
