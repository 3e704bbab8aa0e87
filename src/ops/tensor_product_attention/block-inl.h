// Rows of tensors and matrices, preparing aq, bq and q of a batch, and blocks of tokens.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_BLOCK_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_BLOCK_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/multiply_pairs-inl.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/prefetch.h"
#include "src/ops/tensor_product_attention/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// Row `row` of a batch: a token of a cache, or a rank of bq.
template <typename T>
HWY_INLINE const T* RowOf(const Input& tensor, std::int64_t batch, std::int64_t row) {
  return RowAt<T>(tensor, batch, 0, row);
}
HWY_INLINE float* RowOf(const Panels& matrix, std::int64_t chunk, std::int64_t row) {
  return matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
}

// Calls f(first, count) for the places of `heads` heads in T's storage order: whole chunks, then
// the beginning of each vector of the last chunk.
template <typename T, class F>
HWY_INLINE void ForEachPlaces(std::int64_t heads, const F& f) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t whole = heads / chunk * chunk;
  const std::int64_t n = heads - whole;
  const std::int64_t lower = IsInterleaved<T>::kValue ? (n + 1) / 2 : std::min(n, chunk / 2);
  if (whole > 0) f(0, whole);
  if (n > 0) f(whole, lower);
  if (n > lower) f(whole + chunk / 2, n - lower);
}

// The rows of a matrix from `first` on, and the columns from `first` on within its panel.
HWY_INLINE Panels RowsFrom(const Panels& matrix, std::int64_t first) {
  return {RowOf(matrix, 0, first), matrix.panel};
}
HWY_INLINE Panels ColumnsFrom(const Panels& matrix, std::int64_t first) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  return {RowOf(matrix, first / chunk, 0) + first % chunk, matrix.panel};
}

template <typename T>
void Prepare(const Problem& problem, std::int64_t batch, Range heads, const Workspace& work) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t places = Padded(heads.size());
  // The rank in natural order, so that products over it take no more steps than it has.
  const auto place_of = [&](std::int64_t place, std::int64_t r) {
    return problem.through_rank ? RowOf(work.aq, place / chunk, r) + place % chunk
                                : RowOf(work.aq, r / chunk, place) + r % chunk;
  };
  for (std::int64_t place = 0; place < places; ++place) {
    const auto h = static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(place)));
    const T* from = h < heads.size() ? RowAt<T>(problem.aq, batch, heads.begin + h, 0) : nullptr;
    for (std::int64_t r = 0; r < problem.R; ++r) {
      *place_of(place, r) = from == nullptr ? 0.0f : problem.score_scale * ToFloat(from[r]);
    }
  }
  LoadRows(RowOf<T>(problem.bq, batch, 0), problem.bq.token, problem.R, problem.D, work.bq);
#if !ATTNOPS_ONE_LANE
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (problem.HasRankLanes(kLanes)) {
      LoadTransposedPairs(RowOf<T>(problem.bq, batch, 0), problem.bq.token, problem.R, problem.D,
                          work.bq_pairs);
    } else if (problem.score_dot != nullptr && problem.through_rank) {
      RoundRows(work.bq, problem.R, ChunksOf(problem.D), work.left16);
    }
  }
#endif
  if (problem.through_rank) return;
  Prefetcher nothing;
  Multiply<Left::kStraight>(work.aq, work.bq, places, problem.R, ChunksOf(problem.D),
                            AddToMatrix{work.q, false, nothing});
  // An infinity in aq has made the padding NaN.
  for (std::int64_t i = problem.D; i < Padded(problem.D); ++i) {
    const auto column = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    for (std::int64_t place = 0; place < places; ++place) {
      RowOf(work.q, column / chunk, place)[column % chunk] = 0.0f;
    }
  }
#if !ATTNOPS_ONE_LANE
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (problem.score_dot != nullptr) RoundRows(work.q, places, ChunksOf(problem.D), work.left16);
  }
#endif
}

// A block of tokens of some heads.
template <typename T>
struct Block {
  const Problem& problem;
  std::int64_t batch;
  Range heads, tokens;
  const Workspace& work;

  // Chunk c of a token's heads in ak or av.
  HWY_INLINE Chunk LoadFactors(const Input& tensor, std::int64_t token, std::int64_t c) const {
    const auto chunk = static_cast<std::int64_t>(ChunkSize());
    const std::int64_t first = c * chunk;
    return LoadChunkN(RowOf<T>(tensor, batch, tokens.begin + token) + heads.begin + first,
                      static_cast<std::size_t>(std::min(chunk, heads.size() - first)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_BLOCK_INL_H_
