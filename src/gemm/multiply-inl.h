// Products of matrices that fit into the caches: they are cut into tiles, and the sums of each tile
// go to an epilogue.

#if defined(ATTNOPS_SRC_GEMM_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_MULTIPLY_INL_H_
#undef ATTNOPS_SRC_GEMM_MULTIPLY_INL_H_
#else
#define ATTNOPS_SRC_GEMM_MULTIPLY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "src/core/assert.h"
#include "src/gemm/microkernel_f32-inl.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/panels.h"
#include "src/gemm/prefetch.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Whether the next tile is a short one where `left` rows are left. The last tile then reaches at
// most one row past the end, unless the product has fewer rows than a short tile. Panels have room
// for that.
HWY_INLINE bool IsShort(std::int64_t left) {
  constexpr std::int64_t kShort = kShortRows;
  return left <= kShort || (left > kTileRows && left <= 2 * kShort);
}

// A tile's rows [first, first+rows) and chunks [chunk, chunk+chunks) of a product.
struct TileBounds {
  std::int64_t first, rows, chunk, chunks;
};

// The epilogue of a tile at the edge of a product, for the elements within the product. A function
// of its own: inlined, it would cost the other tiles registers.
template <class Epilogue>
HWY_NOINLINE void FinishEdge(const float* sums, const TileBounds& tile, const Epilogue& epilogue) {
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    for (std::int64_t i = 0; i < tile.chunks; ++i, sums += ChunkSize()) {
      const std::int64_t chunk = tile.chunk + i;
      epilogue(tile.first + row, chunk, epilogue.Elements(chunk), LoadChunk(sums));
    }
  }
}

// Calls the epilogue for the sums of a tile, which has at most `left` rows that count.
template <int kRows, int C, class Epilogue>
HWY_INLINE void FinishSums(const TileSums<kRows, C>& sums, std::int64_t first, std::int64_t left,
                           std::int64_t chunk, const Epilogue& epilogue) {
  const TileBounds tile{first, std::min<std::int64_t>(kRows, left), chunk, C};
  if (HWY_UNLIKELY(tile.rows < kRows || epilogue.Elements(chunk + C - 1) < ChunkSize())) {
    alignas(64) float stored[C * kRows * kMaxChunk];
    ForEach<2 * C * kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      hn::Store(sums.v[i()], DF(), stored + i() * hn::Lanes(DF()));
    });
    return FinishEdge(stored, tile, epilogue);
  }
  ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
    ForEach<C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
      constexpr int i = 2 * (decltype(row)::value * C + decltype(column)::value);
      epilogue(first + row(), chunk + column(), ChunkSize(), Chunk{{sums.v[i], sums.v[i + 1]}});
    });
  });
}

// Computes one tile and calls the epilogue for its rows, at most `left` of them.
template <Left kLeft, int kRows, int C, class Right, class Epilogue>
HWY_INLINE void FinishTile(const Panels& a, const Right& b, std::int64_t first, std::int64_t left,
                           std::int64_t depth, std::int64_t chunk, const Epilogue& epilogue) {
  FinishSums<kRows, C>(
      MultiplyTile<kLeft, kRows, C>(a, static_cast<std::size_t>(first), b,
                                    static_cast<std::size_t>(depth), epilogue.prefetcher),
      first, left, chunk, epilogue);
}

// Calls f<kRows>(first, end) for each tile of a product's rows, first_f for the first tile. Rows of
// a tile from `end` on do not count. No tile straddles panels of a transposed left operand.
template <Left kLeft, class FirstF, class F>
HWY_INLINE void ForEachTile(std::int64_t rows, const FirstF& first_f, const F& f) {
  const auto tile = [](std::int64_t first, std::int64_t end, const auto& g)
                        ATTNOPS_INLINE_LAMBDA -> std::int64_t {
    if (IsShort(end - first)) {
      g.template operator()<kShortRows>(first, end);
      return first + kShortRows;
    }
    g.template operator()<kTileRows>(first, end);
    return first + kTileRows;
  };
  const std::int64_t together =
      kLeft == Left::kStraight ? rows : static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t begin = 0; begin < rows; begin += together) {
    const std::int64_t end = std::min(begin + together, rows);
    std::int64_t first = begin;
    if constexpr (!std::is_same_v<FirstF, F>) {
      if (begin == 0) first = tile(first, end, first_f);
    }
    while (first < end) first = tile(first, end, f);
  }
}

// Asserts that the panels of both operands have room for their rows, (rows, depth) of a or
// (depth, rows) if it is transposed, and that those of b are aligned for vectors.
template <Left kLeft>
HWY_INLINE void AssertOperands(const Panels& a, const Panels& b, std::int64_t rows,
                               std::int64_t depth) {
  [[maybe_unused]] const std::int64_t a_rows = kLeft == Left::kStraight ? rows : depth;
  [[maybe_unused]] const auto chunk = static_cast<std::int64_t>(ChunkSize());
  ATTNOPS_DASSERT(a_rows == 0 || a.panel == 0 || a_rows * chunk <= a.panel);
  ATTNOPS_DASSERT(b.panel == 0 || depth * chunk <= b.panel);
  ATTNOPS_DASSERT(reinterpret_cast<std::uintptr_t>(b.data) % sizeof(VF) == 0);
  ATTNOPS_DASSERT(b.panel % static_cast<std::int64_t>(hn::Lanes(DF())) == 0);
}

// All tiles of C panels of b. The first tile takes the panels from `source`.
template <Left kLeft, int C, class Source, class Epilogue>
HWY_INLINE void MultiplyPanels(const Panels& a, const Source& source, const FromPanels& b,
                               std::int64_t rows, std::int64_t depth, std::int64_t chunk,
                               const Epilogue& epilogue) {
  const auto with = [&](const auto& right) ATTNOPS_INLINE_LAMBDA {
    return [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      FinishTile<kLeft, kRows, C>(a, right, first, end - first, depth, chunk, epilogue);
    };
  };
  ForEachTile<kLeft>(rows, with(source), with(b));
}

// a·b or aᵀ·b: a is (rows, depth), or (depth, rows) if transposed, b (depth, chunks·chunk). Calls
// epilogue.prefetcher.Step() every kRunSteps steps of a tile, then epilogue(row, chunk, n, sums)
// for each of its chunks, of which n = epilogue.Elements(chunk) elements are wanted.
template <Left kLeft, class Epilogue>
HWY_NOINLINE void Multiply(const Panels& a, const Panels& b, std::int64_t rows, std::int64_t depth,
                           std::int64_t chunks, const Epilogue& epilogue) {
  AssertOperands<kLeft>(a, b, rows, depth);
  // The panels of b stay in L1 while a passes by.
  const auto multiply = [&]<int C>(std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const FromPanels panels{b.data + chunk * b.panel, static_cast<std::size_t>(b.panel)};
    MultiplyPanels<kLeft, C>(a, panels, panels, rows, depth, chunk, epilogue);
  };
  std::int64_t chunk = 0;
  for (; chunk + kTileChunks <= chunks; chunk += kTileChunks) {
    multiply.template operator()<kTileChunks>(chunk);
  }
  if constexpr (kTileChunks > 1) {
    if (chunk < chunks) multiply.template operator()<1>(chunk);
  }
}

// Multiply where b is rows of a tensor, `stride` elements apart. As many of its columns as a tile
// has are in `panels` at a time: the first tile converts them, which hides how long they take to
// come from L2, and the other tiles find them in L1.
template <Left kLeft, typename T, class Epilogue>
HWY_NOINLINE void MultiplyRows(const Panels& a, const T* b, std::int64_t stride,
                               const Panels& panels, std::int64_t rows, std::int64_t depth,
                               std::int64_t columns, const Epilogue& epilogue) {
  AssertOperands<kLeft>(a, panels, rows, depth);
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const FromPanels converted{panels.data, static_cast<std::size_t>(panels.panel)};
  std::int64_t chunk = 0;
  for (; (chunk + kTileChunks) * size <= columns; chunk += kTileChunks) {
    const FromRows<T> source{b + chunk * size, static_cast<std::size_t>(stride), panels.data,
                             converted.panel};
    MultiplyPanels<kLeft, kTileChunks>(a, source, converted, rows, depth, chunk, epilogue);
  }
  const std::int64_t left = columns - chunk * size;
  if (left <= 0) return;
  LoadRows(b + chunk * size, stride, depth, left, panels);
  if (ChunksOf(left) == kTileChunks) {
    MultiplyPanels<kLeft, kTileChunks>(a, converted, converted, rows, depth, chunk, epilogue);
  } else {
    MultiplyPanels<kLeft, 1>(a, converted, converted, rows, depth, chunk, epilogue);
  }
}

// Stores kRows rows of a product with kChunks panels of b at `to`, one chunk of all rows after the
// other.
template <Left kLeft, int kRows, int kChunks>
HWY_INLINE void StoreTile(const Panels& a, std::int64_t first, const FromPanels& b,
                          std::int64_t depth, Prefetcher& prefetcher, float* HWY_RESTRICT to) {
  constexpr int C = std::min(kChunks, kTileChunks);
  for (int i = 0; i < kChunks; i += C) {
    const FromPanels panels{b.panels + static_cast<std::size_t>(i) * b.panel, b.panel};
    const TileSums<kRows, C> sums = MultiplyTile<kLeft, kRows, C>(
        a, static_cast<std::size_t>(first), panels, static_cast<std::size_t>(depth), prefetcher);
    ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      ForEach<C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
        constexpr int v = 2 * (decltype(row)::value * C + decltype(column)::value);
        StoreChunk({{sums.v[v], sums.v[v + 1]}},
                   to + static_cast<std::size_t>((i + column()) * kRows + row()) * ChunkSize());
      });
    });
  }
}

// Multiply for an epilogue that needs more registers than the sums leave: a tile's sums are stored
// in L1. The product's columns are `parts` parts of part_chunks chunks, and epilogue.Tile(first,
// rows, chunk, sums) takes the chunk with that number of each part.
template <Left kLeft, class Epilogue>
HWY_NOINLINE void MultiplyToTiles(const Panels& a, const Panels& b, std::int64_t rows,
                                  std::int64_t depth, int parts, std::int64_t part_chunks,
                                  const Epilogue& epilogue) {
  AssertOperands<kLeft>(a, b, rows, depth);
  ATTNOPS_DASSERT(parts == 1 || parts == 2);
  alignas(64) float sums[2 * kTileRows * kMaxChunk];
  const auto multiply = [&]<int kChunks>(std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const std::int64_t second = parts == 2 ? part_chunks : 1;
    const FromPanels panels{b.data + chunk * b.panel, static_cast<std::size_t>(second * b.panel)};
    const auto tile = [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      StoreTile<kLeft, kRows, kChunks>(a, first, panels, depth, epilogue.prefetcher, sums);
      float* half = kChunks == 2 ? sums + kRows * ChunkSize() : nullptr;
      const std::int64_t count = std::min<std::int64_t>(kRows, end - first);
      epilogue.Tile(first, count, chunk, ChunkRows{{sums, half}});
      if (kChunks == 2 && parts == 1) {
        epilogue.Tile(first, count, chunk + 1, ChunkRows{{half, nullptr}});
      }
    };
    ForEachTile<kLeft>(rows, tile, tile);
  };
  // Two chunks at a time: one of each part, or neighbours where a tile has room for them.
  const std::int64_t step = parts == 2 ? 1 : kTileChunks;
  std::int64_t chunk = 0;
  if (parts == 2 || kTileChunks == 2) {
    for (; chunk + step <= part_chunks; chunk += step) multiply.template operator()<2>(chunk);
  }
  for (; chunk < part_chunks; ++chunk) multiply.template operator()<1>(chunk);
}

// About how often a product calls prefetcher.Step().
HWY_INLINE std::int64_t PausesOf(std::int64_t rows, std::int64_t depth, std::int64_t columns) {
  return DivideUp(rows, kTileRows) * DivideUp(ChunksOf(columns), kTileChunks) *
         DivideUp(depth, kRunSteps);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_MULTIPLY_INL_H_
