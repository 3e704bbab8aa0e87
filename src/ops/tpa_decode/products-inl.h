// Register tiles of the products of a block of tokens, all of whose operands are in L1.

#if defined(ATTNOPS_SRC_OPS_TPA_DECODE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TPA_DECODE_PRODUCTS_INL_H_
#undef ATTNOPS_SRC_OPS_TPA_DECODE_PRODUCTS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TPA_DECODE_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/simd/fetch_ahead.h"
#include "src/simd/matmul-inl.h"
#include "src/simd/panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tpa_decode {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// Rows of a tile of two vectors, of a tile of tokens and two vectors of heads, and of a tile of
// heads and kValueChunks chunks of bv: with 32 registers 16 sums, with fewer 8.
#if HWY_TARGET == HWY_AVX3
constexpr int kScoreRows = 8;
constexpr int kTokenRows = 8;
constexpr int kValueChunks = 2;
#else
constexpr int kScoreRows = 4;
constexpr int kTokenRows = std::min<int>(4, kMaxChunk);
constexpr int kValueChunks = 1;
#endif
constexpr int kValueRows = std::min<int>(4, kMaxChunk);

// Steps of a product between two that fetch memory ahead.
constexpr std::int64_t kFetchSteps = 16;

HWY_INLINE float* RowOf(const Panels& matrix, std::int64_t chunk, std::int64_t row) {
  return matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
}

template <int kRows, int C>
using TileSums = Pack<2 * C * kRows>;

// A tile whose left operand's row i is i chunks from `a` and its steps are neighbours, or,
// transposed, the other way round.
template <Left kLeft, int kRows, int C, class Right>
HWY_INLINE TileSums<kRows, C> MultiplySteps(const float* HWY_RESTRICT a, std::int64_t depth,
                                            const Right& right, const TileSums<kRows, C>& sums) {
  constexpr std::size_t kRow = kLeft == Left::kStraight ? kMaxChunk : 1;
  constexpr std::size_t kStep = kLeft == Left::kStraight ? 1 : kMaxChunk;
  return AddSteps<kRows, C>(
      a, [](auto row) ATTNOPS_INLINE_LAMBDA { return static_cast<std::size_t>(row()) * kRow; },
      kStep, static_cast<std::size_t>(depth),
      [&](std::size_t k) ATTNOPS_INLINE_LAMBDA { return right(static_cast<std::int64_t>(k)); },
      sums);
}

// Rows [first, first+kScoreRows) of a·b, a of `depth` columns and b of one chunk.
HWY_INLINE TileSums<kScoreRows, 1> MultiplyRows(const Panels& a, std::int64_t first,
                                                const float* HWY_RESTRICT b, std::int64_t depth,
                                                FetchAhead& ahead) {
  constexpr std::int64_t kChunk = kMaxChunk;
  constexpr std::int64_t kSteps = std::min(kChunk, kFetchSteps);
  TileSums<kScoreRows, 1> sums = Fill<2 * kScoreRows>(0.0f);
  for (std::int64_t k = 0; k < depth; k += kSteps) {
    if (k % kFetchSteps == 0) ahead.Step();
    sums = MultiplySteps<Left::kStraight, kScoreRows, 1>(
        RowOf(a, k / kChunk, first) + k % kChunk, std::min(kSteps, depth - k),
        [&](std::int64_t i) ATTNOPS_INLINE_LAMBDA { return LoadChunk(b + (k + i) * kChunk); },
        sums);
  }
  return sums;
}

// One chunk of a·b, of those tiles of its `rows` for which wanted(first row) is true; `to` is its
// first row.
template <class Wanted>
HWY_INLINE void MultiplyChunk(const Panels& a, const float* HWY_RESTRICT b, std::int64_t rows,
                              std::int64_t depth, float* HWY_RESTRICT to, FetchAhead& ahead,
                              const Wanted& wanted) {
  for (std::int64_t first = 0; first < rows; first += kScoreRows) {
    if (!wanted(first)) continue;
    const TileSums<kScoreRows, 1> sums = MultiplyRows(a, first, b, depth, ahead);
    ForEach<kScoreRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      constexpr int r = decltype(row)::value;
      StoreChunk(Chunk{{sums.v[2 * r], sums.v[2 * r + 1]}}, to + (first + r) * kMaxChunk);
    });
  }
}

// How often MultiplyChunk and MultiplyTokens fetch.
HWY_INLINE std::int64_t FetchesOfChunk(std::int64_t rows, std::int64_t depth) {
  return DivideUp(rows, kScoreRows) * DivideUp(depth, kFetchSteps);
}
HWY_INLINE std::int64_t FetchesOfTokens(std::int64_t tokens) {
  return DivideUp(tokens, kFetchSteps);
}

// The sums of kValueRows heads over tokens, weights times C chunks of bv; right(k) gives those of
// token k.
template <int C, class Right>
HWY_INLINE TileSums<kValueRows, C> MultiplyTokens(const float* HWY_RESTRICT weights,
                                                  std::int64_t tokens, const Right& right,
                                                  FetchAhead& ahead) {
  TileSums<kValueRows, C> sums = Fill<2 * C * kValueRows>(0.0f);
  for (std::int64_t k = 0; k < tokens; k += kFetchSteps) {
    ahead.Step();
    sums = MultiplySteps<Left::kTransposed, kValueRows, C>(
        weights + k * static_cast<std::int64_t>(kMaxChunk), std::min(kFetchSteps, tokens - k),
        [&](std::int64_t i) ATTNOPS_INLINE_LAMBDA { return right(k + i); }, sums);
  }
  return sums;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tpa_decode
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TPA_DECODE_PRODUCTS_INL_H_
