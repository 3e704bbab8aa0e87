// The kernels of cosine on float16 tensors. A file for each, so that they compile at the same
// time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/simd/encoding/kernels_cosine_float16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/simd/encoding/kernels-inl.h"

ATTNOPS_TARGET_KERNELS(CosineFloat16Kernels, CosineRows, Float16);

#if HWY_ONCE
ATTNOPS_EXPORT_KERNELS(CosineFloat16Kernels)
#endif
