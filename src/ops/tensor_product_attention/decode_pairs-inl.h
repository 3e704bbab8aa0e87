// A decoding step in bfloat16 products, where keys and values have two ranks: those of a token are
// a pair along the summed axis, so factors of heads are operands as they are in memory.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_PAIRS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_PAIRS_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply_pairs-inl.h"
#include "src/gemm/pairs-inl.h"
#include "src/gemm/rank_pairs.h"
#include "src/ops/tensor_product_attention/decode_block-inl.h"
#include "src/ops/tensor_product_attention/forward-inl.h"
#include "src/ops/tensor_product_attention/rank_pairs-inl.h"
#include "src/rowops/softmax-inl.h"
#include "src/simd/capabilities-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// bq and aq as RankScores takes them, rounded to bfloat16.
inline void PrepareRanks(const DecodeProblem& problem, std::int64_t batch, Range heads,
                         const DecodeWorkspace& work) {
  constexpr std::int64_t kRanks = RankScores::kRanks, kFeatures = RankScores::kFeatures;
  constexpr std::int64_t kPlaces = RankScores::kLanes;
  const RankPairSpace& to = work.pairs;
  const std::int64_t steps = DivideUp(problem.D, kFeatures);
  std::fill_n(to.bq, DivideUp(problem.Rq, kRanks) * steps * kPlaces, 0u);
  WithType(problem.dtype, [&](auto tag) HWY_ATTR {
    using T = typename decltype(tag)::Type;
    for (std::int64_t r = 0; r < problem.Rq; ++r) {
      const T* bq = RowAt<T>(problem.bq, batch, r, 0);
      std::fill_n(work.row, steps * kFeatures, 0.0f);
      for (std::int64_t i = 0; i < problem.D; ++i) work.row[i] = ToFloat(bq[i]);
      for (std::int64_t i = 0; i < steps * kFeatures; i += 2) {
        to.bq[(r / kRanks * steps + i / kFeatures) * kPlaces + r % kRanks * 2 + i / 2 % 2] =
            RoundToPair(work.row[i], work.row[i + 1]);
      }
    }
  });
  LoadQueryFactors(problem, batch, heads, 1.0f, work);
  const std::int64_t pairs = DivideUp(problem.Rq, 2);
  for (std::int64_t h = 0; h < RoundUp(heads.size(), kPlaces); ++h) {
    const auto at = [&](std::int64_t r) HWY_ATTR {
      return h < heads.size() && r < problem.Rq ? *ElementOf(work.aq, r, h) : 0.0f;
    };
    for (std::int64_t r = 0; r < pairs; ++r) {
      to.aq[(h / kPlaces * pairs + r) * kPlaces + h % kPlaces] =
          RoundToPair(at(2 * r), at(2 * r + 1));
    }
  }
}

// The rows (token, rank) of bk as bfloat16: those of the cache, if they are one matrix of whole
// steps there, else a copy. int8 is not yet multiplied by its scales; work.pairs.scales gets them.
template <typename S>
HWY_INLINE Rows<const BFloat16> KeyRows(const DecodeBlock& block) {
  const DecodeProblem& problem = block.problem;
  const CacheFactor& bk = problem.bk;
  if constexpr (std::is_same_v<S, BFloat16>) {
    const std::int64_t first = block.tokens.begin;
    const bool paged = problem.sequences.page_table != nullptr;
    const std::int64_t slot = paged ? first % problem.page_size : first;
    const bool in_one_page = !paged || slot + block.tokens.size() <= problem.page_size;
    if (in_one_page && bk.token == 2 * bk.row && problem.D % RankScores::kFeatures == 0) {
      return {static_cast<const S*>(bk.data) + problem.PageOf(block.batch, first) * bk.page +
                  slot * bk.token,
              bk.row};
    }
  }
  // Copies, which the stores below cannot change.
  const Rows<BFloat16> copy = block.work.pairs.rows;
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t row = bk.row, scale_row = bk.scale_row;
  const std::int64_t columns = problem.D, whole = columns / size * size;
  float* to_scales = block.work.pairs.scales;
  block.ForEachToken<S>(
      bk, 2 * columns,
      [=](std::int64_t token, const S* at, std::int64_t, const float* scales)
          ATTNOPS_INLINE_LAMBDA {
            for (std::int64_t r = 0; r < 2; ++r) {
              if constexpr (std::is_same_v<S, std::int8_t>) {
                to_scales[2 * token + r] = scales[r * scale_row];
              }
              const S* from = at + r * row;
              auto* to = reinterpret_cast<std::uint16_t*>(copy[2 * token + r]);
              const auto store = [&](std::int64_t column, std::size_t n) ATTNOPS_INLINE_LAMBDA {
                hn::StoreU(hn::BitCast(DU16(), LoadPackedNumbers(from + column, n)), DU16(),
                           to + column);
              };
              for (std::int64_t column = 0; column < whole; column += size) {
                store(column, ChunkSize());
              }
              if (whole < columns) store(whole, static_cast<std::size_t>(columns - whole));
            }
          });
  return {copy.data, copy.stride};
}

// The addresses of the factors of a block's heads, pair after pair.
template <typename S>
struct HeadRows {
  const void* rows[kBlockTokens];

  HeadRows(const DecodeBlock& block, const CacheFactor& factor) {
    const std::int64_t heads = block.heads.size(), begin = block.heads.begin * factor.row;
    block.ForEachToken<S>(
        factor, 2 * block.problem.H,
        [&](std::int64_t token, const S* at, std::int64_t, const float*) ATTNOPS_INLINE_LAMBDA {
          rows[token] = at + begin;
          if (HWY_LIKELY(factor.row == 2)) return;
          auto* pairs =
              reinterpret_cast<S*>(block.work.pairs.factors + token * block.work.pairs.heads);
          for (std::int64_t h = 0; h < heads; ++h) {
            std::memcpy(pairs + 2 * h, at + begin + h * factor.row, 2 * sizeof(S));
          }
          rows[token] = pairs;
        });
  }
  HeadPairs Of(const DecodeBlock& block) const {
    return {rows, std::is_same_v<S, std::int8_t>, block.heads.size()};
  }
};

// Multiplies work.pairs.scales, which are of rows of bk or bv, by the scales of their tokens in ak
// or av.
HWY_INLINE void ScaleByTokens(const DecodeBlock& block, const CacheFactor& factor) {
  block.ForEachToken<std::int8_t>(factor, 2 * block.problem.H,
                                  [&](std::int64_t token, const std::int8_t*, std::int64_t,
                                      const float* scales) ATTNOPS_INLINE_LAMBDA {
                                    for (int r = 0; r < 2; ++r)
                                      block.work.pairs.scales[2 * token + r] *= *scales;
                                  });
}

// Scores through the ranks.
template <typename S>
HWY_NOINLINE void ScoreThroughRanks(const DecodeBlock& block, const float* max, float* new_max) {
  const DecodeProblem& problem = block.problem;
  const RankPairSpace& pairs = block.work.pairs;
  const std::int64_t tokens = block.tokens.size();
  const Rows<const BFloat16> keys = KeyRows<S>(block);
  if constexpr (std::is_same_v<S, std::int8_t>) {
    ScaleByTokens(block, problem.ak);
    for (std::int64_t i = 0; i < 2 * tokens; ++i) pairs.scales[i] *= problem.score_scale;
  } else {
    std::fill_n(pairs.scales, 2 * tokens, problem.score_scale);
  }
  const HeadRows<S> ak(block, problem.ak);
  RankPairsFor(pairs.dot).score({tokens, keys.data, keys.stride,
                                 DivideUp(problem.D, RankScores::kFeatures), problem.Rq, pairs.bq,
                                 pairs.aq, pairs.scales, pairs.products, ak.Of(block),
                                 pairs.weights, pairs.heads, max, new_max});
}

// Scores of a vector of heads from formed queries, s = Σ ak·t over the ranks with t = bk·qᵀ, and
// the larger of `max` and the largest of them in `new_max`.
template <typename S>
HWY_NOINLINE void ScoreFormed(const DecodeBlock& block, const float* max, float* new_max) {
  const DF d;
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const std::int64_t tokens = block.tokens.size();
  const Rows<const BFloat16> keys = KeyRows<S>(block);
  const LeftPairs left = LeftOfRows(keys, 2 * tokens, problem.D, work.pairs.rows);
  Prefetcher nothing;
  MultiplyPairs<Left::kStraight>(work.pairs.dot, left.left, work.pairs.left, 2 * tokens, left.depth,
                                 ChunksOf(block.heads.size()), AddToMatrix{work.t, false, nothing});
  if constexpr (kScaled) ScaleByTokens(block, problem.ak);
  const HeadRows<S> ak(block, problem.ak);
  const std::int64_t vectors = DivideUp(block.heads.size(), kLanes);
  for (std::int64_t v = 0; v < vectors; ++v) {
    const auto n = static_cast<std::size_t>(
        std::min<std::int64_t>(2 * kLanes, 2 * (block.heads.size() - v * kLanes)));
    VF most = hn::Load(d, max + v * kLanes);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const Chunk a = LoadTwoRanks(static_cast<const S*>(ak.rows[token]) + v * 2 * kLanes, n);
      VF sums[2];
      for (int r = 0; r < 2; ++r) {
        sums[r] = hn::Load(d, VectorOf(work.t, v, 2 * token + r));
        if constexpr (kScaled) {
          sums[r] = hn::Mul(sums[r], hn::Set(d, work.pairs.scales[2 * token + r]));
        }
      }
      const VF score = hn::MulAdd(a.v[1], sums[1], hn::Mul(a.v[0], sums[0]));
      hn::Store(score, d, work.pairs.weights + token * work.pairs.heads + v * kLanes);
      most = hn::Max(score, most);  // never a NaN where there is a head
    }
    hn::Store(most, d, new_max + v * kLanes);
  }
}

// p = exp(s − max) of a vector of heads, in the place of the scores. Returns Σp.
HWY_INLINE VF ExpOfScores(const DecodeBlock& block, std::int64_t v, VF max) {
  constexpr int kTogether = 8;  // fill the latency of exp
  const DF d;
  const std::int64_t heads = block.work.pairs.heads, tokens = block.tokens.size();
  float* at = block.work.pairs.weights + v * kLanes;
  const auto run = [&]<int N>() ATTNOPS_INLINE_LAMBDA {
    const Pack<N> p = ExpDifference<Accuracy::k16Bit>(
        MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Load(d, at + i * heads); }),
        Fill<N>(max));
    ForEach<N>([&](auto i) ATTNOPS_INLINE_LAMBDA { hn::Store(p.v[i()], d, at + i() * heads); });
    at += N * heads;
    return SumOfVectors(p);
  };
  VF sum = hn::Zero(d);
  std::int64_t token = 0;
  for (; token + kTogether <= tokens; token += kTogether) {
    sum = hn::Add(sum, run.template operator()<kTogether>());
  }
  for (; token < tokens; ++token) sum = hn::Add(sum, run.template operator()<1>());
  return sum;
}

// bv in pairs of a token's ranks: rows are tokens. work.pairs.scales gets the scales of int8.
template <typename S>
HWY_INLINE void PairValues(const DecodeBlock& block) {
  const CacheFactor& bv = block.problem.bv;
  const auto size = static_cast<std::int64_t>(ChunkSize());
  // Copies, which the stores below cannot change.
  const std::int64_t row = bv.row, scale_row = bv.scale_row;
  const std::int64_t columns = block.problem.E, whole = columns / size * size;
  const Panels to = block.work.pairs.right;
  float* to_scales = block.work.pairs.scales;
  block.ForEachToken<S>(bv, 2 * columns,
                        [=](std::int64_t token, const S* at, std::int64_t, const float* scales)
                            ATTNOPS_INLINE_LAMBDA {
                              if constexpr (std::is_same_v<S, std::int8_t>) {
                                for (std::int64_t r = 0; r < 2; ++r)
                                  to_scales[2 * token + r] = scales[r * scale_row];
                              }
                              float* pairs = to.data + token * size;
                              const auto store = [&](std::int64_t column,
                                                     std::size_t n) ATTNOPS_INLINE_LAMBDA {
                                StorePairs(PairsOfRows(LoadPackedNumbers(at + column, n),
                                                       LoadPackedNumbers(at + row + column, n)),
                                           pairs);
                                pairs += to.panel;
                              };
                              for (std::int64_t column = 0; column < whole; column += size) {
                                store(column, ChunkSize());
                              }
                              if (whole < columns)
                                store(whole, static_cast<std::size_t>(columns - whole));
                            });
}

// The weights p·av of a block, rounded, in the place of p: pairs of the ranks. Where a NaN would
// not survive this rounding, the sum of its head is one.
template <typename S>
HWY_INLINE void PairWeights(const DecodeBlock& block) {
  const RankPairSpace& pairs = block.work.pairs;
  if constexpr (std::is_same_v<S, std::int8_t>) ScaleByTokens(block, block.problem.av);
  const HeadRows<S> av(block, block.problem.av);
  RankPairsFor(pairs.dot).weigh(
      {block.tokens.size(), av.Of(block), pairs.scales, pairs.weights, pairs.heads});
}

// Decoding with these products, as AttendTokensAs takes it.
struct TwoRankForm {
  static void Prepare(const DecodeProblem& problem, std::int64_t batch, Range heads,
                      bool through_rank, const DecodeWorkspace& work) {
    if (through_rank) return PrepareRanks(problem, batch, heads, work);
    FormQueries(problem, batch, heads, work);
    PairRows(work.q, Padded(problem.D), ChunksOf(heads.size()), work.pairs.left);
  }

  static bool Weigh(const DecodeBlock& block, bool through_rank, const float* max) {
    const DF d;
    const DecodeWorkspace& work = block.work;
    const std::int64_t heads = block.heads.size(), vectors = DivideUp(heads, kLanes);
    WithPairStorage(block.problem.storage, [&](auto storage) HWY_ATTR {
      using S = typename decltype(storage)::Type;
      if (through_rank) {
        ScoreThroughRanks<S>(block, max, work.max);
      } else {
        ScoreFormed<S>(block, max, work.max);
      }
      for (std::int64_t v = 0; v < vectors; ++v) {
        const VF most = hn::Load(d, work.max + v * kLanes);
        hn::Store(ExpOfScores(block, v, most), d, work.sum + v * kLanes);
      }
      PairValues<S>(block);
      PairWeights<S>(block);
    });
    // The rest of the last chunk has no heads.
    std::fill(work.max + vectors * kLanes, work.max + Padded(heads), 0.0f);
    std::fill(work.sum + vectors * kLanes, work.sum + Padded(heads), 0.0f);
    return std::none_of(work.sum, work.sum + heads, [](float sum) { return std::isnan(sum); });
  }

  template <class Epilogue>
  static void MultiplyValues(const DecodeBlock& block, const Epilogue& epilogue) {
    const RankPairSpace& pairs = block.work.pairs;
    constexpr std::ptrdiff_t kSize = sizeof(float);
    const PairLeft weights{reinterpret_cast<const char*>(pairs.weights), kSize, pairs.heads * kSize,
                           0};
    MultiplyPairs<Left::kStraight>(pairs.dot, weights, pairs.right, block.heads.size(),
                                   block.tokens.size(), ChunksOf(block.problem.E), epilogue);
  }
};

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_PAIRS_INL_H_
