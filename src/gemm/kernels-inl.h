// The tile of bfloat16 products in plain vector code, with the bits of the instructions.

#if defined(ATTNOPS_SRC_GEMM_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_KERNELS_INL_H_
#undef ATTNOPS_SRC_GEMM_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_GEMM_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/gemm/dot_tile.h"
#include "src/gemm/kernels.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::gemm {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

#if !ATTNOPS_ONE_LANE

// A float32 whose denormals are 0 of their sign, and the halves of pairs as such.
HWY_INLINE VF WithoutDenormals(VF v) {
  const DF d;
  const VF zero = hn::And(v, hn::Set(d, -0.0f));
  return hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(d, 0x1p-126f)), zero, v);
}
struct PairHalves {
  VF first, second;
};
HWY_INLINE PairHalves SplitPairs(VU pairs) {
  const Chunk split = SplitPacked<BFloat16>(pairs);
  return {WithoutDenormals(split.v[0]), WithoutDenormals(split.v[1])};
}

inline void EmulateDotTile(const DotTileArguments& tile) {
  const DU d;
  const auto lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  for (int row = 0; row < tile.rows; ++row) {
    for (int v = 0; v < tile.vectors; ++v) {
      const char* left = static_cast<const char*>(tile.left) + row * tile.left_row;
      const float* right = tile.right + v / 2 * tile.right_panel + v % 2 * lanes;
      VF sum = hn::Zero(DF());
      for (std::int64_t k = 0; k < tile.depth; ++k) {
        std::uint32_t pair;
        std::memcpy(&pair, left, sizeof(pair));
        const PairHalves a = SplitPairs(hn::Set(d, pair));
        const PairHalves b = SplitPairs(hn::BitCast(d, hn::Load(DF(), right)));
        // The product of two bfloat16 is exact, so it is one rounding with and without FMA.
        sum = WithoutDenormals(hn::MulAdd(a.second, b.second, sum));
        sum = WithoutDenormals(hn::MulAdd(a.first, b.first, sum));
        left += tile.left_step;
        right += 2 * lanes;
      }
      hn::Store(sum, DF(),
                tile.sums + row * tile.sums_row + v / 2 * tile.sums_chunk + v % 2 * lanes);
    }
  }
}

#endif  // !ATTNOPS_ONE_LANE

template <typename T>
Kernels KernelsOfTarget() {
#if ATTNOPS_ONE_LANE
  return {false, nullptr};
#else
  return {ATTNOPS_HAS_AVX512 == 1, EmulateDotTile};
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::gemm
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_KERNELS_INL_H_
