// Sums of products, some of them with triangular matrices, in the same tiles.

#if defined(ATTNOPS_SRC_GEMM_MULTIPLY_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_MULTIPLY_SUM_INL_H_
#undef ATTNOPS_SRC_GEMM_MULTIPLY_SUM_INL_H_
#else
#define ATTNOPS_SRC_GEMM_MULTIPLY_SUM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/gemm/microkernel_f32-inl.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/panels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Which steps of a product count for the rows [first, last] of a tile: all, those up to `last` (a
// is lower triangular), or those from `first` on (a is the transpose of such a matrix). What a
// tile reads beside its triangle must be 0.
enum class Triangle { kNone, kLower, kUpper };

// One product of a sum: a·b or aᵀ·b, over `depth` steps.
template <Left kLeft, Triangle kTriangle = Triangle::kNone>
struct Term {
  static constexpr Left kSide = kLeft;
  Panels a, b;
  std::int64_t depth;

  template <int kRows, int C>
  HWY_INLINE TileSums<kRows, C> Add(std::int64_t first, std::int64_t chunk, Prefetcher& prefetcher,
                                    const TileSums<kRows, C>& sums) const {
    static_assert(kTriangle != Triangle::kUpper || kLeft == Left::kTransposed);
    const std::int64_t begin = kTriangle == Triangle::kUpper ? std::min(first, depth) : 0;
    const std::int64_t end =
        kTriangle == Triangle::kLower ? std::min<std::int64_t>(depth, first + kRows) : depth;
    const auto size = static_cast<std::int64_t>(ChunkSize());
    const Panels left{a.data + begin * size, a.panel};
    const FromPanels right{b.data + chunk * b.panel + begin * size,
                           static_cast<std::size_t>(b.panel)};
    return AddTile<kLeft, kRows, C>(left, static_cast<std::size_t>(first), right,
                                    static_cast<std::size_t>(end - begin), prefetcher, sums);
  }
};

// The sum of the terms, rows from begin(chunk) on: a multiple of a chunk, or rows if the terms are
// transposed. Epilogues as for Multiply.
template <class Begin, class Epilogue, class... Terms>
HWY_NOINLINE void MultiplySumFrom(std::int64_t rows, std::int64_t chunks, const Begin& begin,
                                  const Epilogue& epilogue, const Terms&... terms) {
  constexpr bool kTransposed = ((Terms::kSide == Left::kTransposed) || ...);
  constexpr Left kTiles = kTransposed ? Left::kTransposed : Left::kStraight;
  const auto multiply = [&]<int C>(std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const std::int64_t from = begin(chunk);
    const auto tile = [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      TileSums<kRows, C> sums = Fill<2 * C * kRows>(0.0f);
      ((sums = terms.template Add<kRows, C>(from + first, chunk, epilogue.prefetcher, sums)), ...);
      FinishSums<kRows, C>(sums, from + first, end - first, chunk, epilogue);
    };
    ForEachTile<kTiles>(rows - from, tile, tile);
  };
  std::int64_t chunk = 0;
  for (; chunk + kTileChunks <= chunks; chunk += kTileChunks) {
    multiply.template operator()<kTileChunks>(chunk);
  }
  if constexpr (kTileChunks > 1) {
    if (chunk < chunks) multiply.template operator()<1>(chunk);
  }
}

template <class Epilogue, class... Terms>
HWY_INLINE void MultiplySum(std::int64_t rows, std::int64_t chunks, const Epilogue& epilogue,
                            const Terms&... terms) {
  MultiplySumFrom(
      rows, chunks, [](std::int64_t) ATTNOPS_INLINE_LAMBDA { return std::int64_t{0}; }, epilogue,
      terms...);
}

// The lower triangle of a·b, and of each chunk of columns enough rows above it that a tile of a
// later Term with Triangle::kLower finds them.
template <class Epilogue>
HWY_INLINE void MultiplyLower(const Panels& a, const Panels& b, std::int64_t rows,
                              std::int64_t depth, const Epilogue& epilogue) {
  const auto begin = [](std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const auto size = static_cast<std::int64_t>(ChunkSize());
    return std::max<std::int64_t>(chunk * size - kTileRows, 0);
  };
  MultiplySumFrom(rows, ChunksOf(rows), begin, epilogue, Term<Left::kStraight>{a, b, depth});
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_MULTIPLY_SUM_INL_H_
