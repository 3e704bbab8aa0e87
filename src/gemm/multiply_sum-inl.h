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

// Which steps of a product count for a row: all, those up to the row (a is lower triangular), or
// those from the row on (a is the transpose of such a matrix). What is beside the triangle is not
// multiplied, so that a NaN of the right operand stays where it belongs.
enum class Triangle { kNone, kLower, kUpper };

// Adds the steps [first, first+steps) of a tile with the rows from `first` on, at most kRows of
// them: the triangle on the diagonal.
template <Left kLeft, Triangle kTriangle, int kRows, int C>
HWY_INLINE TileSums<kRows, C> AddDiagonal(const Panels& a, std::int64_t first, const FromPanels& b,
                                          std::int64_t steps, TileSums<kRows, C> sums) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  ForEach<kRows>([&](auto s) ATTNOPS_INLINE_LAMBDA {
    if (s() >= steps) return;
    const std::int64_t step = first + s();
    const Pack<2 * C> right = b.template Load<C>(static_cast<std::size_t>(step));
    const std::int64_t row = kLeft == Left::kStraight ? first : step;
    const std::int64_t column = kLeft == Left::kStraight ? step : first;
    const float* from = a.data + column / size * a.panel + row * size + column % size;
    ForEach<kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      constexpr int kRow = decltype(i)::value, kStep = decltype(s)::value;
      if constexpr (kTriangle == Triangle::kLower ? kStep <= kRow : kStep >= kRow) {
        const VF left = hn::Set(DF(), from[kLeft == Left::kStraight ? kRow * kMaxChunk : kRow]);
        ForEach<2 * C>([&](auto v) ATTNOPS_INLINE_LAMBDA {
          constexpr int at = kRow * 2 * C + decltype(v)::value;
          sums.v[at] = hn::MulAdd(left, right.v[decltype(v)::value], sums.v[at]);
        });
      }
    });
  });
  return sums;
}

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
    static_assert(kTriangle != Triangle::kLower || kLeft == Left::kStraight);
    const FromPanels right{b.data + chunk * b.panel, static_cast<std::size_t>(b.panel)};
    // The steps of the triangle on the diagonal, and where the others begin and end.
    const std::int64_t steps =
        kTriangle == Triangle::kNone ? 0 : std::clamp<std::int64_t>(depth - first, 0, kRows);
    const std::int64_t begin = kTriangle == Triangle::kUpper ? std::min(first + steps, depth) : 0;
    const std::int64_t end = kTriangle == Triangle::kLower ? std::min(first, depth) : depth;
    TileSums<kRows, C> result = sums;
    if constexpr (kTriangle == Triangle::kUpper) {
      result = AddDiagonal<kLeft, kTriangle, kRows, C>(a, first, right, steps, result);
    }
    const auto size = static_cast<std::int64_t>(ChunkSize());
    const Panels left{a.data + begin * size, a.panel};
    result = AddTile<kLeft, kRows, C>(left, static_cast<std::size_t>(first),
                                      right.From(static_cast<std::size_t>(begin)),
                                      static_cast<std::size_t>(end - begin), prefetcher, result);
    if constexpr (kTriangle == Triangle::kLower) {
      result = AddDiagonal<kLeft, kTriangle, kRows, C>(a, first, right, steps, result);
    }
    return result;
  }
};

// Multiplies the sum of the terms before it: each row by its factor, unless there are none. There
// is room for the rows of a tile behind the last factor.
struct ScaleRows {
  static constexpr Left kSide = Left::kStraight;
  const float* factors;

  template <int kRows, int C>
  HWY_INLINE TileSums<kRows, C> Add(std::int64_t first, std::int64_t, Prefetcher&,
                                    const TileSums<kRows, C>& sums) const {
    if (factors == nullptr) return sums;
    return MakePack<2 * C * kRows>([&](int i) ATTNOPS_INLINE_LAMBDA {
      return hn::Mul(sums.v[i], hn::Set(DF(), factors[first + i / (2 * C)]));
    });
  }
};

// The rows [begin, end) and C chunks of the sum of the terms. `begin` is a multiple of a chunk, or
// of rows if no term is transposed.
template <int C, class Epilogue, class... Terms>
HWY_INLINE void MultiplySumPanels(std::int64_t begin, std::int64_t end, std::int64_t chunk,
                                  const Epilogue& epilogue, const Terms&... terms) {
  constexpr bool kTransposed = ((Terms::kSide == Left::kTransposed) || ...);
  constexpr Left kTiles = kTransposed ? Left::kTransposed : Left::kStraight;
  const auto tile = [&]<int kRows>(std::int64_t first, std::int64_t last) ATTNOPS_INLINE_LAMBDA {
    TileSums<kRows, C> sums = Fill<2 * C * kRows>(0.0f);
    ((sums = terms.template Add<kRows, C>(begin + first, chunk, epilogue.prefetcher, sums)), ...);
    FinishSums<kRows, C>(sums, begin + first, last - first, chunk, epilogue);
  };
  ForEachTile<kTiles>(end - begin, tile, tile);
}

// The sum of the terms. Epilogues as for Multiply.
template <class Epilogue, class... Terms>
HWY_NOINLINE void MultiplySum(std::int64_t rows, std::int64_t chunks, const Epilogue& epilogue,
                              const Terms&... terms) {
  std::int64_t chunk = 0;
  for (; chunk + kTileChunks <= chunks; chunk += kTileChunks) {
    MultiplySumPanels<kTileChunks>(0, rows, chunk, epilogue, terms...);
  }
  if constexpr (kTileChunks > 1) {
    if (chunk < chunks) MultiplySumPanels<1>(0, rows, chunk, epilogue, terms...);
  }
}

// The lower triangle of a·b: each chunk of columns from the first row that has elements in it.
template <class Epilogue>
HWY_NOINLINE void MultiplyLower(const Panels& a, const Panels& b, std::int64_t rows,
                                std::int64_t depth, const Epilogue& epilogue) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const Term<Left::kStraight> product{a, b, depth};
  for (std::int64_t chunk = 0; chunk * size < rows; chunk += kTileChunks) {
    const std::int64_t begin = chunk * size, next = std::min(begin + size, rows);
    if constexpr (kTileChunks == 1) {
      MultiplySumPanels<1>(begin, rows, chunk, epilogue, product);
    } else {
      MultiplySumPanels<1>(begin, next, chunk, epilogue, product);
      if (next < rows) MultiplySumPanels<2>(next, rows, chunk, epilogue, product);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_MULTIPLY_SUM_INL_H_
