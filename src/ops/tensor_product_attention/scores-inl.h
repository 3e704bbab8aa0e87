// The scores of a block of tokens, through the rank or through q.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_SCORES_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_SCORES_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_SCORES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply-inl.h"
#include "src/ops/tensor_product_attention/block-inl.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// Rows of a tile of tokens and two vectors of heads: with 32 registers 16 sums, with fewer 8.
#if ATTNOPS_REGISTERS >= 32
constexpr int kTokenRows = 8;
#else
constexpr int kTokenRows = std::min<int>(4, kMaxChunk);
#endif

#if !ATTNOPS_ONE_LANE
// t = bk·bqᵀ with a lane for each rank.
inline void MultiplyKeysByRanks(const Block<BFloat16>& block, Prefetcher& prefetcher) {
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  constexpr std::int64_t kRows = DotTileArguments::kMaxNarrowRows;
  constexpr std::ptrdiff_t kSize = sizeof(BFloat16);
  DotTileArguments tile{};
  tile.left_row = problem.bk.token * kSize;
  tile.left_step = 2 * kSize;
  tile.right = work.bq_pairs.data;
  tile.depth = problem.D / 2;
  tile.vectors = 1;
  tile.sums_row = kLanes;
  tile.prefetcher = &prefetcher;
  for (std::int64_t first = 0; first < block.tokens.size(); first += kRows) {
    tile.left = RowOf<BFloat16>(problem.bk, block.batch, block.tokens.begin + first);
    tile.rows = static_cast<int>(std::min(kRows, block.tokens.size() - first));
    tile.sums = work.t.data + first * kLanes;
    problem.score_dot(tile);
  }
}
#endif

// t = bq·bkᵀ or q·bkᵀ, as many tokens as a tile has columns and some features at a time: these are
// still in L1, transposed, when they are multiplied.
template <typename T>
HWY_INLINE void MultiplyKeys(const Block<T>& block, Prefetcher& prefetcher) {
  // Not a structured binding, which clang before 16 does not capture.
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  const std::int64_t& batch = block.batch;
  const Range &heads = block.heads, &tokens = block.tokens;
#if !ATTNOPS_ONE_LANE
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (problem.HasRankLanes(kLanes)) return MultiplyKeysByRanks(block, prefetcher);
  }
#endif
  constexpr std::int64_t kTileTokens = kTileChunks * kMaxChunk;
  for (std::int64_t first = 0; first < tokens.size(); first += kTileTokens) {
    const std::int64_t count = std::min(kTileTokens, tokens.size() - first);
    const Panels t{RowOf(work.t, ChunksOf(first), 0), work.t.panel};
    for (std::int64_t feature = 0; feature < problem.D; feature += kTransposedFeatures) {
      const std::int64_t features = std::min(kTransposedFeatures, problem.D - feature);
#if !ATTNOPS_ONE_LANE
      if constexpr (std::is_same_v<T, BFloat16>) {
        if (problem.score_dot != nullptr) {
          LoadTransposedPairs(RowOf<T>(problem.bk, batch, tokens.begin + first) + feature,
                              problem.bk.token, count, features, work.right);
          const auto multiply = [&](const Panels& to, std::int64_t row,
                                    std::int64_t rows) HWY_ATTR {
            const Rows<const T> left{work.left16[row] + feature, work.left16.stride};
            MultiplyPairs<Left::kStraight>(problem.score_dot, PairLeft::OfRows(left), work.right,
                                           rows, DivideUp(features, 2), ChunksOf(count),
                                           AddToMatrix{to, feature > 0, prefetcher});
          };
          if (problem.through_rank) {
            multiply(t, 0, problem.R);
          } else {
            ForEachPlaces<T>(heads.size(), [&](std::int64_t place, std::int64_t n) HWY_ATTR {
              multiply(RowsFrom(t, place), place, n);
            });
          }
          continue;
        }
      }
#endif
      LoadTransposed(RowOf<T>(problem.bk, batch, tokens.begin + first) + feature, problem.bk.token,
                     count, features, work.right);
      const auto multiply = [&](const Panels& left, const Panels& to, std::int64_t rows) HWY_ATTR {
        Multiply<Left::kStraight>(ColumnsFrom(left, feature), work.right, rows, Padded(features),
                                  ChunksOf(count), AddToMatrix{to, feature > 0, prefetcher});
      };
      if (problem.through_rank) {
        multiply(work.bq, t, problem.R);
      } else {
        ForEachPlaces<T>(heads.size(), [&](std::int64_t place, std::int64_t n) HWY_ATTR {
          multiply(RowsFrom(work.q, place), RowsFrom(t, place), n);
        });
      }
    }
  }
}

// s = tᵀ·aqᵀ, times ak, for chunk c of the heads. Returns the larger of `max` and the largest
// score.
template <bool kRankLanes, typename T>
HWY_INLINE Chunk ScoresThroughRank(const Block<T>& block, std::int64_t c, Chunk max) {
  const Problem& problem = block.problem;
  const Range& tokens = block.tokens;
  const Workspace& work = block.work;
  const float* HWY_RESTRICT aq = RowOf(work.aq, c, 0);
  for (std::int64_t first = 0; first < tokens.size(); first += kTokenRows) {
    constexpr std::size_t kRow = kRankLanes ? kLanes : 1;
    const Pack<2 * kTokenRows> sums = AddSteps<kTokenRows, 1>(
        kRankLanes ? work.t.data + first * kLanes : ColumnsFrom(work.t, first).data,
        [](auto row) ATTNOPS_INLINE_LAMBDA { return static_cast<std::size_t>(row()) * kRow; },
        kRankLanes ? 1 : ChunkSize(), static_cast<std::size_t>(problem.R),
        [&](std::size_t r) ATTNOPS_INLINE_LAMBDA { return LoadChunk(aq + r * ChunkSize()); },
        Fill<2 * kTokenRows>(0.0f));
    ForEach<kTokenRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      constexpr int r = decltype(row)::value;
      if (first + r >= tokens.size()) return;
      const Chunk scores = Mul(Chunk{{sums.v[2 * r], sums.v[2 * r + 1]}},
                               block.LoadFactors(problem.ak, first + r, c));
      StoreChunk(scores, RowOf(work.s, c, first + r));
      max = Max(scores, max);  // max is never a NaN
    });
  }
  return max;
}

template <typename T>
HWY_INLINE Chunk ScoresThroughRank(const Block<T>& block, std::int64_t c, const Chunk& max) {
  return block.problem.HasRankLanes(kLanes) ? ScoresThroughRank<true>(block, c, max)
                                            : ScoresThroughRank<false>(block, c, max);
}

// Scores through the rank may be NaN where (aq·bq)·bkᵀ is not: an infinity in bk makes infinities
// of different signs in t, whose sum is NaN, where q·bk is infinite. Computes the scores of chunk c
// that are NaN in that order. Returns the larger of `max` and the largest score.
template <typename T>
HWY_NOINLINE Chunk ScoresWithoutRank(const Block<T>& block, std::int64_t c, Chunk max) {
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const auto bq_at = [&](std::int64_t r, std::int64_t d) {
    const auto column = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(d)));
    return RowOf(work.bq, column / chunk, r)[column % chunk];
  };
  for (std::int64_t place = 0; place < chunk; ++place) {
    const auto h = static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(place)));
    if (c * chunk + h >= block.heads.size()) continue;
    std::int64_t tokens[kBlockTokens];
    float sums[kBlockTokens];
    std::int64_t count = 0;
    for (std::int64_t token = 0; token < block.tokens.size(); ++token) {
      if (!std::isnan(RowOf(work.s, c, token)[place])) continue;
      sums[count] = 0;
      tokens[count++] = token;
    }
    if (count == 0) continue;
    for (std::int64_t d = 0; d < problem.D; ++d) {
      float q = 0;
      for (std::int64_t r = 0; r < problem.R; ++r) q += RowOf(work.aq, c, r)[place] * bq_at(r, d);
      for (std::int64_t i = 0; i < count; ++i) {
        sums[i] +=
            q * ToFloat(RowOf<T>(problem.bk, block.batch, block.tokens.begin + tokens[i])[d]);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const T* ak = RowOf<T>(problem.ak, block.batch, block.tokens.begin + tokens[i]);
      RowOf(work.s, c, tokens[i])[place] = sums[i] * ToFloat(ak[block.heads.begin + c * chunk + h]);
    }
  }
  for (std::int64_t token = 0; token < block.tokens.size(); ++token) {
    max = Max(LoadChunk(RowOf(work.s, c, token)), max);
  }
  return max;
}

// s from t = q·bkᵀ: transposed, times ak, for chunk c of the heads. Returns the larger of `max` and
// the largest score.
template <typename T>
HWY_INLINE Chunk ScoresOfQueries(const Block<T>& block, std::int64_t c, Chunk max) {
  const auto& [problem, batch, heads, tokens, work] = block;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const DU d;
  for (std::int64_t first = 0; first < Padded(tokens.size()); first += kLanes) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const float* from = RowOf(work.t, first / chunk, c * chunk + half * kLanes) + first % chunk;
      float* to = RowOf(work.s, c, first) + half * kLanes;
      const Square square = MakeSquare([&](int i) ATTNOPS_INLINE_LAMBDA {
        return hn::Load(d, reinterpret_cast<const std::uint32_t*>(from + i * chunk));
      });
      ForEachVector(TransposeSquare(square), [&](int i, VU vector) ATTNOPS_INLINE_LAMBDA {
        hn::Store(vector, d, reinterpret_cast<std::uint32_t*>(to + i * chunk));
      });
    }
  }
  for (std::int64_t token = 0; token < tokens.size(); ++token) {
    float* row = RowOf(work.s, c, token);
    const Chunk scores = Mul(LoadChunk(row), block.LoadFactors(problem.ak, token, c));
    StoreChunk(scores, row);
    max = Max(scores, max);
  }
  return max;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_SCORES_INL_H_
