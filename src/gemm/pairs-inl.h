// Operands of bfloat16 products: pairs along the summed axis.

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
#include <type_traits>

#include "src/core/tensor.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/panels.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Whether kernels of a type have bfloat16 products at all.
template <typename T>
constexpr bool kHasPairs = std::is_same_v<T, BFloat16>&& ATTNOPS_ONE_LANE == 0;

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

// Two rows of float32, rounded, as a chunk of pairs in the order that they have.
HWY_INLINE Pack<2, VU> RoundToPairs(const Chunk& first, const Chunk& second) {
  const DU d;
  Pack<2, VU> pairs;
  for (int v = 0; v < 2; ++v) {
    pairs.v[v] =
        hn::Or(hn::ShiftRight<16>(RoundToBFloat16<Payload::kAny>(first.v[v])),
               hn::And(RoundToBFloat16<Payload::kAny>(second.v[v]), hn::Set(d, 0xffff0000u)));
  }
  return pairs;
}

// A chunk of float32 rounded to bfloat16.
HWY_INLINE Chunk RoundChunk(const Chunk& chunk) {
  const VU mask = hn::Set(DU(), 0xffff0000u);
  return MakePack<2>([&](int i) ATTNOPS_INLINE_LAMBDA {
    return hn::BitCast(DF(), hn::And(RoundToBFloat16<Payload::kAny>(chunk.v[i]), mask));
  });
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
      StorePairs(RoundToPairs(LoadChunk(row), LoadChunk(row + ChunkSize())), at);
    }
    if (i < count) StorePairs(RoundToPairs(LoadChunk(row), Fill<2>(0.0f)), at);
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
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t half = size / 2;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* panel = from.data + chunk * from.panel;
    float* at = to.data + chunk * to.panel;
    for (std::int64_t block = 0; block < rows; block += size) {
      for (std::int64_t i = 0; i < half; ++i, at += size) {
        StorePairs(RoundToPairs(LoadChunk(panel + (block + i) * size),
                                LoadChunk(panel + (block + half + i) * size)),
                   at);
      }
    }
  }
}

// The transpose of a float32 matrix of whole chunks, whose columns are in bfloat16's storage order,
// rounded to pairs of columns that are neighbours in natural order. Not in place.
inline void PairColumns(const Panels& from, std::int64_t rows, std::int64_t chunks,
                        const Panels& to) {
  const DF d;
  const auto size = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    float* panel = to.data + first / size * to.panel + first % size;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* at = from.data + chunk * from.panel + first * size;
      const Square pairs = MakeSquare(
          [&](int i) ATTNOPS_INLINE_LAMBDA { return RoundToPacked(LoadChunk(at + i * size)); });
      float* result = panel + chunk * kLanes * size;
      ForEachVector(TransposeSquare(pairs), [&](int i, VU pair) ATTNOPS_INLINE_LAMBDA {
        hn::Store(hn::BitCast(d, pair), d, result + i * size);
      });
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
    ForEachChunk(columns, [&](std::int64_t column, std::size_t n,
                              std::int64_t) ATTNOPS_INLINE_LAMBDA {
      const BFloat16* at = from + first * stride + column;
      Square pairs;
      if (HWY_LIKELY(rows == kLanes && n == ChunkSize())) {
        pairs =
            MakeSquare([&](int i) ATTNOPS_INLINE_LAMBDA { return LoadPacked(at + i * stride); });
      } else {
        for (int i = 0; i < kLanes; ++i) {
          pairs.v[i] = i < rows ? LoadPackedN(at + i * stride, n) : hn::Zero(DU());
        }
      }
      float* result = panel + column / 2 * chunk;
      ForEachVector(TransposeSquare(pairs), [&](int i, VU pair) ATTNOPS_INLINE_LAMBDA {
        hn::Store(hn::BitCast(d, pair), d, result + i * chunk);
      });
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

// A left operand, and how many pairs of its columns are summed.
struct LeftPairs {
  PairLeft left;
  std::int64_t depth;
};

// Rows of a tensor as they are, if the last column is in a pair, else a copy in `padded`, whose
// rows have room for whole chunks.
inline LeftPairs LeftOfRows(const Rows<const BFloat16>& rows, std::int64_t count,
                            std::int64_t columns, const Rows<BFloat16>& padded) {
  const std::int64_t depth = DivideUp(columns, 2);
  if (columns % 2 == 0) return {PairLeft::OfRows(rows), depth};
  for (std::int64_t row = 0; row < count; ++row) {
    ForEachChunk(columns,
                 [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                   hn::StoreU(hn::BitCast(DU16(), LoadPackedN(rows[row] + column, n)), DU16(),
                              reinterpret_cast<std::uint16_t*>(padded[row] + column));
                 });
  }
  return {PairLeft::OfRows({padded.data, padded.stride}), depth};
}

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_PAIRS_INL_H_
