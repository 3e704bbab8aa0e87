// Rows of a tensor as the columns of a Panels matrix.

#if defined(ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
#undef ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
#else
#define ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/simd/io-inl.h"
#include "src/simd/panels-inl.h"
#include "src/simd/panels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
// As many vectors as a vector has lanes.
using Square = Pack<kLanes, VU>;

// Lane j of vector i becomes lane i of vector j.
HWY_INLINE Square TransposeSquare(const Square& from) {
#if HWY_TARGET == HWY_SCALAR
  return from;
#else
  const DU d;
  Square rows;
  // 4×4 within blocks of 128 bits: block b of vector 4g+j gets element 4b+j of rows 4g … 4g+3.
  HWY_UNROLL(4)
  for (int g = 0; g < kLanes; g += 4) {
    const VU even_lower = hn::InterleaveLower(d, from.v[g], from.v[g + 2]);
    const VU odd_lower = hn::InterleaveLower(d, from.v[g + 1], from.v[g + 3]);
    const VU even_upper = hn::InterleaveUpper(d, from.v[g], from.v[g + 2]);
    const VU odd_upper = hn::InterleaveUpper(d, from.v[g + 1], from.v[g + 3]);
    rows.v[g] = hn::InterleaveLower(d, even_lower, odd_lower);
    rows.v[g + 1] = hn::InterleaveUpper(d, even_lower, odd_lower);
    rows.v[g + 2] = hn::InterleaveLower(d, even_upper, odd_upper);
    rows.v[g + 3] = hn::InterleaveUpper(d, even_upper, odd_upper);
  }
  if constexpr (kLanes == 4) return rows;
  // Then the blocks.
  Square to;
#if HWY_TARGET == HWY_AVX2
  HWY_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    to.v[j] = hn::ConcatLowerLower(d, rows.v[4 + j], rows.v[j]);
    to.v[4 + j] = hn::ConcatUpperUpper(d, rows.v[4 + j], rows.v[j]);
  }
#elif HWY_TARGET == HWY_AVX3
  HWY_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const VU lower02 = hn::ConcatLowerLower(d, rows.v[8 + j], rows.v[j]);
    const VU lower13 = hn::ConcatLowerLower(d, rows.v[12 + j], rows.v[4 + j]);
    const VU upper02 = hn::ConcatUpperUpper(d, rows.v[8 + j], rows.v[j]);
    const VU upper13 = hn::ConcatUpperUpper(d, rows.v[12 + j], rows.v[4 + j]);
    to.v[j] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(lower13), lower02);
    to.v[4 + j] = hn::OddEvenBlocks(lower13, hn::SwapAdjacentBlocks(lower02));
    to.v[8 + j] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(upper13), upper02);
    to.v[12 + j] = hn::OddEvenBlocks(upper13, hn::SwapAdjacentBlocks(upper02));
  }
#else
  static_assert(kLanes == 4, "vectors of this size are not transposed");
#endif
  return to;
#endif
}

// `count` rows of a tensor, `stride` elements apart, as the columns of a float32 matrix of
// `columns` rows in T's storage order. Both are padded with zeros to whole chunks.
template <typename T>
HWY_INLINE void LoadTransposed(const T* from, std::int64_t stride, std::int64_t count,
                               std::int64_t columns, const Panels& to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const DF d;
  for (std::int64_t first = 0; first < Padded(count); first += kLanes) {
    const std::int64_t rows = std::clamp<std::int64_t>(count - first, 0, kLanes);
    float* panel = to.data + first / chunk * to.panel + first % chunk;
    ForEachChunk(
        columns, [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
          const T* at = from + first * stride + column;
          float* result = panel + column * chunk;
          alignas(64) T padded[kLanes * kMaxChunk];
          std::int64_t step = stride;
          if (HWY_UNLIKELY(rows < kLanes || n < ChunkSize())) {
            std::memset(padded, 0, sizeof(padded));
            for (std::int64_t i = 0; i < rows; ++i) {
              // A size that is known takes no call.
              if (n == kLanes) {
                std::memcpy(padded + i * chunk, at + i * stride, kLanes * sizeof(T));
              } else {
                std::memcpy(padded + i * chunk, at + i * stride, n * sizeof(T));
              }
            }
            at = padded;
            step = chunk;
          }
#if HWY_TARGET != HWY_SCALAR
          if constexpr (IsInterleaved<T>::kValue) {
            // A pair of elements is one lane until after it has moved.
            Square pairs;
            HWY_UNROLL(16)
            for (int i = 0; i < kLanes; ++i) pairs.v[i] = LoadPacked(at + i * step);
            pairs = TransposeSquare(pairs);
            HWY_UNROLL(16)
            for (int i = 0; i < kLanes; ++i) {
              const Chunk split = SplitPacked<T>(pairs.v[i]);
              hn::Store(split.v[0], d, result + i * chunk);
              hn::Store(split.v[1], d, result + (kLanes + i) * chunk);
            }
            return;
          }
#endif
          Square halves[2];
          HWY_UNROLL(16)
          for (int i = 0; i < kLanes; ++i) {
            const Chunk row = LoadChunk(at + i * step);
            halves[0].v[i] = hn::BitCast(DU(), row.v[0]);
            halves[1].v[i] = hn::BitCast(DU(), row.v[1]);
          }
          for (int half = 0; half < 2; ++half) {
            const Square square = TransposeSquare(halves[half]);
            HWY_UNROLL(16)
            for (int i = 0; i < kLanes; ++i) {
              hn::Store(hn::BitCast(d, square.v[i]), d, result + (half * kLanes + i) * chunk);
            }
          }
        });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
