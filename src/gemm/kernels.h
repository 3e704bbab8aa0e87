// The kernels of products that are chosen at run time.
#ifndef ATTNOPS_SRC_GEMM_KERNELS_H_
#define ATTNOPS_SRC_GEMM_KERNELS_H_

#include "attnops/types.h"
#include "src/core/target.h"
#include "src/gemm/dot_tile.h"

namespace attnops::gemm {

struct Kernels {
  bool takes_avx512;  // whether the target's vectors are those of AVX-512
  DotTile dot_tile;   // in plain vector code; null where a vector is one element
};

// For bfloat16 alone.
template <typename T>
Kernels KernelsOf(TargetIndex target);
template <>
Kernels KernelsOf<BFloat16>(TargetIndex target);

}  // namespace attnops::gemm

#endif  // ATTNOPS_SRC_GEMM_KERNELS_H_
