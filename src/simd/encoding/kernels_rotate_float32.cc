// The kernels of rotate on float32 tensors. A file for each, so that they compile at the same
// time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/simd/encoding/kernels_rotate_float32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/simd/encoding/kernels-inl.h"

ATTNOPS_TARGET_KERNELS(RotateFloat32Kernels, RotateRows, float);

#if HWY_ONCE
ATTNOPS_EXPORT_KERNELS(RotateFloat32Kernels)
#endif
