// Products of bfloat16 operands in pairs along the summed axis: making pairs, and multiplying them.

#if defined(ATTNOPS_SRC_GEMM_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_PAIRS_INL_H_
#undef ATTNOPS_SRC_GEMM_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_GEMM_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/core/tensor.h"
#include "src/gemm/dot_tile.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/panels.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// Panels of pairs are as those of float32 (panels.h), each 32-bit lane a pair of bfloat16 along the
// summed axis: (pairs, columns). They are moved as float32, bit by bit.

HWY_INLINE void StorePairs(const Pack<2, VU>& pairs, float* to) {
  const DF d;
  hn::Store(hn::BitCast(d, pairs.v[0]), d, to);
  hn::Store(hn::BitCast(d, pairs.v[1]), d, to + hn::Lanes(d));
}

// Two rows of bfloat16 as a chunk of pairs in storage order: the even elements, then the odd ones.
HWY_INLINE Pack<2, VU> PairsOfRows(VU first, VU second) {
  const DU16 d16;
  const DU d;
  const auto pick = [&](VU odd, VU even) ATTNOPS_INLINE_LAMBDA {
    return hn::BitCast(d, hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, even)));
  };
  return {{pick(hn::ShiftLeft<16>(second), first), pick(second, hn::ShiftRight<16>(first))}};
}

// The first n elements of a row of bfloat16, two in each lane; the others are 0.
HWY_INLINE VU LoadPackedN(const BFloat16* from, std::size_t n) {
  if (HWY_LIKELY(n == ChunkSize())) return LoadPacked(from);
  alignas(64) BFloat16 buffer[kMaxChunk];
  std::memset(buffer, 0, sizeof(buffer));
  std::memcpy(buffer, from, n * sizeof(BFloat16));
  return LoadPacked(buffer);
}

// A chunk of float32 rounded to bfloat16, two in each lane, in natural order.
HWY_INLINE VU RoundToPacked(const Chunk& chunk) {
  return hn::BitCast(DU(), ToStored<Payload::kAny>(chunk, static_cast<BFloat16*>(nullptr)).v[0]);
}

// Rows of a tensor as pairs of tokens; without a second one its element is 0.
inline void PairTokens(const BFloat16* from, std::int64_t stride, std::int64_t count,
                       std::int64_t columns, const Panels& to) {
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 float* at = to.data + chunk * to.panel;
                 const BFloat16* row = from + column;
                 std::int64_t i = 0;
                 for (; i + 1 < count; i += 2, row += 2 * stride, at += ChunkSize()) {
                   StorePairs(PairsOfRows(LoadPackedN(row, n), LoadPackedN(row + stride, n)), at);
                 }
                 if (i < count) StorePairs(PairsOfRows(LoadPackedN(row, n), hn::Zero(DU())), at);
               });
}

// The same from rows of float32 in panels, which are rounded.
inline void PairTokens(const Panels& from, std::int64_t count, std::int64_t chunks,
                       const Panels& to) {
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* row = from.data + chunk * from.panel;
    float* at = to.data + chunk * to.panel;
    std::int64_t i = 0;
    for (; i + 1 < count; i += 2, row += 2 * ChunkSize(), at += ChunkSize()) {
      StorePairs(
          PairsOfRows(RoundToPacked(LoadChunk(row)), RoundToPacked(LoadChunk(row + ChunkSize()))),
          at);
    }
    if (i < count) {
      StorePairs(PairsOfRows(RoundToPacked(LoadChunk(row)), hn::Zero(DU())), at);
    }
  }
}

// Rows of float32 in panels, rounded, as rows of bfloat16 in natural order: pairs of columns. The
// rows of `to` are whole chunks.
inline void RoundRows(const Panels& from, std::int64_t count, std::int64_t chunks,
                      const Rows<BFloat16>& to) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* row = from.data + chunk * from.panel;
    for (std::int64_t i = 0; i < count; ++i, row += size) {
      StoreChunk<Payload::kAny>(LoadChunk(row), to[i] + chunk * size);
    }
  }
}

// A complete float32 matrix, whose rows are in bfloat16's storage order, rounded to pairs of rows
// that are neighbours in natural order.
inline void PairRows(const Panels& from, std::int64_t rows, std::int64_t chunks, const Panels& to) {
  const DU d;
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t half = size / 2;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* panel = from.data + chunk * from.panel;
    float* at = to.data + chunk * to.panel;
    for (std::int64_t block = 0; block < rows; block += size) {
      for (std::int64_t i = 0; i < half; ++i, at += size) {
        const Chunk first = LoadChunk(panel + (block + i) * size);
        const Chunk second = LoadChunk(panel + (block + half + i) * size);
        Pack<2, VU> pairs;
        for (int v = 0; v < 2; ++v) {
          pairs.v[v] =
              hn::Or(hn::ShiftRight<16>(RoundToBFloat16<Payload::kAny>(first.v[v])),
                     hn::And(RoundToBFloat16<Payload::kAny>(second.v[v]), hn::Set(d, 0xffff0000u)));
        }
        StorePairs(pairs, at);
      }
    }
  }
}

// `count` rows of a tensor, `stride` elements apart, as the columns of a matrix of pairs of
// `columns` rows. Both are padded with zeros to whole chunks.
inline void LoadTransposedPairs(const BFloat16* from, std::int64_t stride, std::int64_t count,
                                std::int64_t columns, const Panels& to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const DF d;
  for (std::int64_t first = 0; first < Padded(count); first += kLanes) {
    const std::int64_t rows = std::clamp<std::int64_t>(count - first, 0, kLanes);
    float* panel = to.data + first / chunk * to.panel + first % chunk;
    ForEachChunk(columns,
                 [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                   const BFloat16* at = from + first * stride + column;
                   Square pairs;
                   if (HWY_LIKELY(rows == kLanes)) {
                     HWY_UNROLL(16)
                     for (int i = 0; i < kLanes; ++i) pairs.v[i] = LoadPackedN(at + i * stride, n);
                   } else {
                     for (int i = 0; i < kLanes; ++i) {
                       pairs.v[i] = i < rows ? LoadPackedN(at + i * stride, n) : hn::Zero(DU());
                     }
                   }
                   pairs = TransposeSquare(pairs);
                   float* result = panel + column / 2 * chunk;
                   HWY_UNROLL(16)
                   for (int i = 0; i < kLanes; ++i) {
                     hn::Store(hn::BitCast(d, pairs.v[i]), d, result + i * chunk);
                   }
                 });
  }
}

// The left operand of a product of pairs: rows of bfloat16, whose neighbours are pairs, or panels
// of pairs, of which a row of the product is a column.
struct PairLeft {
  const char* data;
  std::ptrdiff_t row, step, panel;

  static PairLeft OfRows(const Rows<const BFloat16>& rows) {
    constexpr std::ptrdiff_t kSize = sizeof(BFloat16);
    return {reinterpret_cast<const char*>(rows.data), rows.stride * kSize, 2 * kSize, 0};
  }
  static PairLeft OfPanels(const Panels& panels) {
    constexpr std::ptrdiff_t kSize = sizeof(float);
    return {reinterpret_cast<const char*>(panels.data), kSize,
            static_cast<std::ptrdiff_t>(ChunkSize()) * kSize, panels.panel * kSize};
  }
  const char* At(std::int64_t first) const {
    if (panel == 0) return data + first * row;
    const auto size = static_cast<std::int64_t>(ChunkSize());
    return data + first / size * panel + first % size * row;
  }
};

// The product of bfloat16 operands in pairs: a (rows, 2·depth) with b (2·depth, chunks·chunk) in
// pairs of rows. Epilogues as for Multiply; the sums come to them by way of L1.
template <Left kLeft, class Epilogue>
HWY_NOINLINE void MultiplyPairs(DotTile dot, const PairLeft& a, const Panels& b, std::int64_t rows,
                                std::int64_t depth, std::int64_t chunks, const Epilogue& epilogue) {
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
    const auto multiply = [&]<int kRows>(std::int64_t first,
                                         std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      const std::int64_t count = std::min<std::int64_t>(kRows, end - first);
      tile.left = a.At(first);
      tile.rows = static_cast<int>(count);
      dot(tile);
      FinishEdge(sums, {first, count, chunk, together}, epilogue);
    };
    ForEachTile<kLeft>(rows, multiply, multiply);
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

#endif  // ATTNOPS_SRC_GEMM_PAIRS_INL_H_
