// Products of bfloat16 operands in pairs along the summed axis.

#if defined(ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_INL_H_
#undef ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/gemm/dot_tile.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/pairs-inl.h"
#include "src/gemm/panels.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// FinishEdge of a tile that is whole: written out, what does not change is computed once.
template <int kRows, int C, class Epilogue>
HWY_NOINLINE void FinishWhole(const float* HWY_RESTRICT sums, std::int64_t first,
                              std::int64_t chunk, const Epilogue& epilogue) {
  ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
    ForEach<C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
      epilogue(first + row(), chunk + column(), ChunkSize(),
               LoadChunk(sums + (row() * C + column()) * ChunkSize()));
    });
  });
}

// Rows [from, to) of `together` chunks of columns, from `chunk` on, of a product of pairs.
template <Left kLeft, class Epilogue>
HWY_INLINE void MultiplyPairsRange(DotTile dot, const PairLeft& a, const Panels& b,
                                   std::int64_t from, std::int64_t to, std::int64_t depth,
                                   std::int64_t chunk, std::int64_t together,
                                   const Epilogue& epilogue) {
  static_assert(kTileRows <= DotTileArguments::kMaxRows);
  static_assert(kTileChunks <= DotTileArguments::kMaxChunks);
  alignas(64) float sums[kTileRows * kTileChunks * kMaxChunk];
  const auto size = static_cast<std::ptrdiff_t>(ChunkSize());
  DotTileArguments tile{};
  tile.left_row = a.row;
  tile.left_step = a.step;
  tile.right = b.data + chunk * b.panel;
  tile.right_panel = b.panel;
  tile.depth = depth;
  tile.vectors = static_cast<int>(2 * together);
  tile.sums = sums;
  tile.sums_row = together * size;
  tile.sums_chunk = size;
  tile.prefetcher = &epilogue.prefetcher;
  const bool whole =
      together == kTileChunks && epilogue.Elements(chunk + together - 1) == ChunkSize();
  const auto multiply = [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
    const std::int64_t count = std::min<std::int64_t>(kRows, end - first);
    tile.left = a.At(from + first);
    tile.rows = static_cast<int>(count);
    dot(tile);
    if (HWY_LIKELY(whole && count == kRows)) {
      FinishWhole<kRows, kTileChunks>(sums, from + first, chunk, epilogue);
    } else {
      FinishEdge(sums, {from + first, count, chunk, together}, epilogue);
    }
  };
  ForEachTile<kLeft>(to - from, multiply, multiply);
}

// The product of bfloat16 operands in pairs: a (rows, 2·depth) with b (2·depth, chunks·chunk) in
// pairs of rows. Epilogues as for Multiply; the sums come to them by way of L1.
template <Left kLeft, class Epilogue>
HWY_NOINLINE void MultiplyPairs(DotTile dot, const PairLeft& a, const Panels& b, std::int64_t rows,
                                std::int64_t depth, std::int64_t chunks, const Epilogue& epilogue) {
  for (std::int64_t chunk = 0; chunk < chunks; chunk += kTileChunks) {
    MultiplyPairsRange<kLeft>(dot, a, b, 0, rows, depth, chunk,
                              std::min<std::int64_t>(kTileChunks, chunks - chunk), epilogue);
  }
}

// The lower triangle of a product with as many columns as rows: of each chunk of columns the rows
// from the first one on that is in it.
template <class Epilogue>
HWY_NOINLINE void MultiplyPairsLower(DotTile dot, const PairLeft& a, const Panels& b,
                                     std::int64_t rows, std::int64_t depth,
                                     const Epilogue& epilogue) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t chunks = ChunksOf(rows);
  for (std::int64_t chunk = 0; chunk < chunks; chunk += kTileChunks) {
    const std::int64_t together = std::min<std::int64_t>(kTileChunks, chunks - chunk);
    // Rows that only some of the chunks have, then those that all have.
    for (std::int64_t i = 1; i <= together; ++i) {
      const std::int64_t from = (chunk + i - 1) * size;
      const std::int64_t to = i == together ? rows : from + size;
      MultiplyPairsRange<Left::kStraight>(dot, a, b, from, to, depth, chunk, i, epilogue);
    }
  }
}

// The same with the epilogues of MultiplyToTiles.
template <class Epilogue>
HWY_NOINLINE void MultiplyPairsToTiles(DotTile dot, const PairLeft& a, const Panels& b,
                                       std::int64_t rows, std::int64_t depth, int parts,
                                       std::int64_t part_chunks, const Epilogue& epilogue) {
  alignas(64) float sums[2 * kTileRows * kMaxChunk];
  const auto size = static_cast<std::ptrdiff_t>(ChunkSize());
  DotTileArguments tile{};
  tile.left_row = a.row;
  tile.left_step = a.step;
  tile.depth = depth;
  tile.sums = sums;
  tile.sums_row = size;
  tile.prefetcher = &epilogue.prefetcher;
  const auto multiply_chunks = [&](std::int64_t chunk, int chunks) ATTNOPS_INLINE_LAMBDA {
    tile.right = b.data + chunk * b.panel;
    tile.right_panel = (parts == 2 ? part_chunks : 1) * b.panel;
    const auto multiply = [&]<int kRows>(std::int64_t first,
                                         std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      const std::int64_t count = std::min<std::int64_t>(kRows, end - first);
      tile.left = a.At(first);
      tile.rows = static_cast<int>(count);
      tile.sums_chunk = count * size;
      // A target whose tiles have one chunk takes the second one in a tile of its own.
      for (int i = 0; i < chunks; i += kTileChunks) {
        DotTileArguments part = tile;
        part.vectors = 2 * std::min(kTileChunks, chunks - i);
        part.right += i * tile.right_panel;
        part.sums += i * tile.sums_chunk;
        dot(part);
      }
      float* second = chunks == 2 ? sums + count * size : nullptr;
      epilogue.Tile(first, count, chunk, ChunkRows{{sums, second}});
      if (chunks == 2 && parts == 1) {
        epilogue.Tile(first, count, chunk + 1, ChunkRows{{second, nullptr}});
      }
    };
    ForEachTile<Left::kStraight>(rows, multiply, multiply);
  };
  const std::int64_t step = parts == 2 ? 1 : kTileChunks;
  std::int64_t chunk = 0;
  if (parts == 2 || kTileChunks == 2) {
    for (; chunk + step <= part_chunks; chunk += step) multiply_chunks(chunk, 2);
  }
  for (; chunk < part_chunks; ++chunk) multiply_chunks(chunk, 1);
}

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_MULTIPLY_PAIRS_INL_H_
