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

// The product of bfloat16 operands in pairs: a (rows, 2·depth) with b (2·depth, chunks·chunk) in
// pairs of rows, of each chunk the rows from begin(chunk) on. Epilogues as for Multiply; the sums
// come to them by way of L1.
template <Left kLeft, class Begin, class Epilogue>
HWY_NOINLINE void MultiplyPairsFrom(DotTile dot, const PairLeft& a, const Panels& b,
                                    std::int64_t rows, std::int64_t depth, std::int64_t chunks,
                                    const Begin& begin, const Epilogue& epilogue) {
  static_assert(kTileRows <= DotTileArguments::kMaxRows);
  static_assert(kTileChunks <= DotTileArguments::kMaxChunks);
  alignas(64) float sums[kTileRows * kTileChunks * kMaxChunk];
  const auto size = static_cast<std::ptrdiff_t>(ChunkSize());
  DotTileArguments tile{};
  tile.left_row = a.row;
  tile.left_step = a.step;
  tile.right_panel = b.panel;
  tile.depth = depth;
  tile.sums = sums;
  tile.sums_chunk = size;
  tile.prefetcher = &epilogue.prefetcher;
  for (std::int64_t chunk = 0; chunk < chunks; chunk += kTileChunks) {
    const std::int64_t together = std::min<std::int64_t>(kTileChunks, chunks - chunk);
    tile.right = b.data + chunk * b.panel;
    tile.chunks = static_cast<int>(together);
    tile.sums_row = together * size;
    const std::int64_t from = begin(chunk);
    const auto multiply = [&]<int kRows>(std::int64_t first,
                                         std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      const std::int64_t count = std::min<std::int64_t>(kRows, end - first);
      tile.left = a.At(from + first);
      tile.rows = static_cast<int>(count);
      dot(tile);
      FinishEdge(sums, {from + first, count, chunk, together}, epilogue);
    };
    ForEachTile<kLeft>(rows - from, multiply, multiply);
  }
}

// All rows.
template <Left kLeft, class Epilogue>
HWY_INLINE void MultiplyPairs(DotTile dot, const PairLeft& a, const Panels& b, std::int64_t rows,
                              std::int64_t depth, std::int64_t chunks, const Epilogue& epilogue) {
  const auto begin = [](std::int64_t) ATTNOPS_INLINE_LAMBDA { return std::int64_t{0}; };
  MultiplyPairsFrom<kLeft>(dot, a, b, rows, depth, chunks, begin, epilogue);
}

// The lower triangle, from the first row of each chunk of columns that is in it.
template <class Epilogue>
HWY_INLINE void MultiplyPairsLower(DotTile dot, const PairLeft& a, const Panels& b,
                                   std::int64_t rows, std::int64_t depth,
                                   const Epilogue& epilogue) {
  const auto begin = [](std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    return chunk * static_cast<std::int64_t>(ChunkSize());
  };
  MultiplyPairsFrom<Left::kStraight>(dot, a, b, rows, depth, ChunksOf(rows), begin, epilogue);
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
        part.chunks = std::min(kTileChunks, chunks - i);
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
