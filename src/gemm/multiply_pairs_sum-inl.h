// Sums of two products of bfloat16 operands in pairs, of which one is triangular.

#if defined(ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_SUM_INL_H_
#undef ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_SUM_INL_H_
#else
#define ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_SUM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/core/assert.h"
#include "src/gemm/dot_tile.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/multiply_sum-inl.h"
#include "src/gemm/pairs-inl.h"
#include "src/gemm/panels.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// A product of pairs: a (rows, 2·depth) with b.
struct PairTerm {
  PairLeft a;
  Panels b;
  std::int64_t depth;
};

// A product with a triangular matrix, (steps, steps), or its transpose. The steps of a tile's own
// rows are not whole pairs of the triangle: they are multiplied one by one from `numbers`, the same
// matrix in float32 panels, not transposed. So nothing beside the triangle is multiplied.
template <Triangle kTriangle>
struct PairTriangle {
  PairLeft a;
  Panels numbers;
  Panels b;
  std::int64_t steps;
};

// kRows rows of a matrix of pairs of rows, from an even one on: one chunk of them in float32.
template <int kRows>
struct RowsOfPairs {
  Chunk rows[kRows];

  HWY_INLINE RowsOfPairs(const Panels& pairs, std::int64_t first, std::int64_t chunk) {
    const DF d;
    const DU du;
    const float* at =
        pairs.data + chunk * pairs.panel + first / 2 * static_cast<std::int64_t>(ChunkSize());
    ForEach<kRows / 2>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      const Chunk pair = LoadChunk(at + i() * ChunkSize());
      ForEach<2>([&](auto v) ATTNOPS_INLINE_LAMBDA {
        const VU bits = hn::BitCast(du, pair.v[v()]);
        rows[2 * i()].v[v()] = hn::BitCast(d, hn::ShiftLeft<16>(bits));
        rows[2 * i() + 1].v[v()] = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000u)));
      });
    });
  }
};

// x times the factor of each row, if there are such, plus the triangular product. Epilogues as for
// Multiply; the sums come to them by way of L1.
template <Triangle kTriangle, class Epilogue>
HWY_NOINLINE void MultiplyPairsSum(DotTile dot, std::int64_t rows, std::int64_t chunks,
                                   const PairTerm& x, const float* factors,
                                   const PairTriangle<kTriangle>& y, const Epilogue& epilogue) {
  static_assert(kTriangle != Triangle::kNone);
  static_assert(kTileRows % 2 == 0 && kShortRows % 2 == 0, "tiles begin with whole pairs");
  constexpr bool kLower = kTriangle == Triangle::kLower;
  constexpr Left kLeft = kLower ? Left::kStraight : Left::kTransposed;
  const auto size = static_cast<std::int64_t>(ChunkSize());
  alignas(64) float sums[kTileRows * kTileChunks * kMaxChunk];
  alignas(64) float others[kTileRows * kTileChunks * kMaxChunk];
  const auto run = [&](const PairLeft& a, std::int64_t first, std::int64_t begin, const Panels& b,
                       std::int64_t depth, const TileBounds& tile, float* to) HWY_ATTR {
    DotTileArguments arguments{};
    arguments.left = a.At(first) + begin * a.step;
    arguments.left_row = a.row;
    arguments.left_step = a.step;
    arguments.right = b.data + tile.chunk * b.panel + begin * size;
    arguments.right_panel = b.panel;
    arguments.depth = depth;
    arguments.rows = static_cast<int>(tile.rows);
    arguments.vectors = static_cast<int>(2 * tile.chunks);
    arguments.sums = to;
    arguments.sums_row = tile.chunks * size;
    arguments.sums_chunk = size;
    arguments.prefetcher = &epilogue.prefetcher;
    dot(arguments);
  };
  const auto multiply = [&]<int kRows>(std::int64_t chunk, std::int64_t first,
                                       std::int64_t end) HWY_ATTR {
    const TileBounds tile{first, std::min<std::int64_t>(kRows, end - first), chunk,
                          std::min<std::int64_t>(kTileChunks, chunks - chunk)};
    run(x.a, first, 0, x.b, x.depth, tile, sums);
    // Behind the tile's own steps, or before them.
    const std::int64_t own = std::min<std::int64_t>(kRows, y.steps - first);
    const std::int64_t begin = kLower ? 0 : (first + kRows) / 2;
    const std::int64_t last = kLower ? first / 2 : DivideUp(y.steps, 2);
    run(y.a, first, begin, y.b, std::max<std::int64_t>(last - begin, 0), tile, others);
    ATTNOPS_DASSERT(own == tile.rows);
    const float* columns[kRows];
    for (int i = 0; i < kRows; ++i) {
      const auto column = static_cast<std::size_t>(first + i);
      columns[i] = y.numbers.data +
                   column / ChunkSize() * static_cast<std::size_t>(y.numbers.panel) +
                   column % ChunkSize() + first * size;
    }
    for (std::int64_t i = 0; i < tile.chunks; ++i) {
      const RowsOfPairs<kRows> right(y.b, first, chunk + i);
      const std::size_t n = epilogue.Elements(chunk + i);
      ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
        constexpr int r = decltype(row)::value;
        if (r >= tile.rows) return;
        const std::int64_t at = (r * tile.chunks + i) * size;
        const Chunk factor = Fill<2>(factors == nullptr ? 1.0f : factors[first + r]);
        Chunk sum = MulAdd(factor, LoadChunk(sums + at), LoadChunk(others + at));
        ForEach<kRows>([&](auto other) ATTNOPS_INLINE_LAMBDA {
          constexpr int s = decltype(other)::value;
          if constexpr (kLower ? s > r : s < r) return;
          if (s >= own) return;
          const float number = kLower ? columns[s][r * size] : columns[r][s * size];
          sum = MulAdd(Fill<2>(number), right.rows[s], sum);
        });
        epilogue(first + r, chunk + i, n, sum);
      });
    }
  };
  for (std::int64_t chunk = 0; chunk < chunks; chunk += kTileChunks) {
    const auto tile = [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      multiply.template operator()<kRows>(chunk, first, end);
    };
    ForEachTile<kLeft>(rows, tile, tile);
  }
}

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_SUM_INL_H_
