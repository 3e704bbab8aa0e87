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
#include <type_traits>

#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply_pairs-inl.h"
#include "src/gemm/pairs-inl.h"
#include "src/ops/tensor_product_attention/decode_block-inl.h"
#include "src/ops/tensor_product_attention/forward-inl.h"
#include "src/ops/tensor_product_attention/rank_pairs-inl.h"
#include "src/rowops/softmax-inl.h"
#include "src/simd/capabilities-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// bq rounded to bfloat16: (R_q, D).
inline void RoundQueryRows(const DecodeProblem& problem, std::int64_t batch,
                           const DecodeWorkspace& work) {
  WithType(problem.dtype, [&](auto tag) HWY_ATTR {
    using T = typename decltype(tag)::Type;
    for (std::int64_t r = 0; r < problem.Rq; ++r) {
      const T* bq = RowAt<T>(problem.bq, batch, r, 0);
      for (std::int64_t i = 0; i < problem.D; ++i) work.row[i] = ToFloat(bq[i]);
      ForEachChunk(problem.D,
                   [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                     StoreChunk<Payload::kAny>(LoadFloatsAs<BFloat16>(work.row + column, n),
                                               work.pairs.queries[r] + column);
                   });
    }
  });
}

// The rows (token, rank) of bk as bfloat16: those of the cache, if they are one matrix there, else
// a copy. int8 is not yet multiplied by its scales; work.pairs.scales gets them.
template <typename S>
HWY_INLINE Rows<const BFloat16> KeyRows(const DecodeBlock& block) {
  const DecodeProblem& problem = block.problem;
  const CacheFactor& bk = problem.bk;
  const Rows<BFloat16>& copy = block.work.pairs.rows;
  Rows<const BFloat16> rows{copy.data, copy.stride};
  bool found = false;
  block.ForEachToken<S>(
      bk, 2 * problem.D,
      [&](std::int64_t token, const S* at, std::int64_t, const float* scales)
          ATTNOPS_INLINE_LAMBDA {
            if constexpr (std::is_same_v<S, BFloat16>) {
              if (found) return;
              if (problem.sequences.page_table == nullptr && bk.token == 2 * bk.row) {
                rows = {at, bk.row};
                found = true;
                return;
              }
            }
            for (std::int64_t r = 0; r < 2; ++r) {
              if constexpr (std::is_same_v<S, std::int8_t>) {
                block.work.pairs.scales[2 * token + r] = scales[r * bk.scale_row];
              }
              ForEachChunk(problem.D, [&](std::int64_t column, std::size_t n,
                                          std::int64_t) ATTNOPS_INLINE_LAMBDA {
                hn::StoreU(hn::BitCast(DU16(), LoadPackedNumbers(at + r * bk.row + column, n)),
                           DU16(), reinterpret_cast<std::uint16_t*>(copy[2 * token + r] + column));
              });
            }
          });
  return rows;
}

// bq·bkᵀ in work.p, (R_q, (token, rank)), or bk·qᵀ in work.t, ((token, rank), heads).
template <typename S>
HWY_INLINE void MultiplyPairedKeys(const DecodeBlock& block, bool through_rank) {
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  const Rows<const BFloat16> keys = KeyRows<S>(block);
  const std::int64_t rows = 2 * block.tokens.size();
  Prefetcher nothing;
  if (through_rank) {
    const Rows<const BFloat16> queries{work.pairs.queries.data, work.pairs.queries.stride};
    LoadTransposedPairs(keys.data, keys.stride, rows, problem.D, work.pairs.right);
    MultiplyPairs<Left::kStraight>(work.pairs.dot, PairLeft::OfRows(queries), work.pairs.right,
                                   problem.Rq, DivideUp(problem.D, 2), ChunksOf(rows),
                                   AddToMatrix{work.p, false, nothing});
  } else {
    const LeftPairs left = LeftOfRows(keys, rows, problem.D, work.pairs.rows);
    MultiplyPairs<Left::kStraight>(work.pairs.dot, left.left, work.pairs.left, rows, left.depth,
                                   ChunksOf(block.heads.size()),
                                   AddToMatrix{work.t, false, nothing});
  }
}

// R_q of scores through the ranks: that of the published models, whose aq stays in registers, or
// any; and scores from formed queries.
constexpr int kPublishedRanks = 6, kAnyRanks = -1, kFormed = 0;

// Scores of V vectors of heads from vector `first` on: for each token the sum over its ranks of ak
// times bk·q, and the larger of `max` and the largest of them in `new_max`.
template <typename S, int V, int kRanks>
HWY_INLINE void ScorePairs(const DecodeBlock& block, std::int64_t first, const float* max,
                           float* new_max) {
  const DF d;
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const std::size_t size = ChunkSize();
  [[maybe_unused]] const auto ranks = static_cast<std::size_t>(problem.Rq);
  const std::int64_t begin = 2 * first * kLanes;
  const std::int64_t heads = work.pairs.heads;
  float* scores = work.pairs.weights + first * kLanes;
  const float* rows[V];  // of aq, or of bk·qᵀ
  for (int i = 0; i < V; ++i)
    rows[i] = VectorOf(kRanks == kFormed ? work.t : work.aq, first + i, 0);
  [[maybe_unused]] Pack<V> factors[std::max(kRanks, 1)];
  if constexpr (kRanks > 0) {
    ForEach<kRanks>([&](auto r) ATTNOPS_INLINE_LAMBDA {
      factors[r()] = MakePack<V>(
          [&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Load(d, rows[i] + r() * size); });
    });
  }
  Pack<V> most = MakePack<V>(
      [&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Load(d, max + (first + i) * kLanes); });
  ForEachTokenOfHeads<S>(
      block, problem.ak,
      [&](std::int64_t token, const S* at, std::int64_t readable,
          const float* scales) ATTNOPS_INLINE_LAMBDA {
        Pack<V> products[2];
        const auto column = static_cast<std::size_t>(2 * token);
        if constexpr (kRanks != kFormed) {
          const float* HWY_RESTRICT p =
              work.p.data + column / size * static_cast<std::size_t>(work.p.panel) + column % size;
          products[0] = products[1] = Fill<V>(0.0f);
          const auto add = [&](std::size_t r, const Pack<V>& factor) ATTNOPS_INLINE_LAMBDA {
            products[0] = MulAdd(factor, Fill<V>(p[r * size]), products[0]);
            products[1] = MulAdd(factor, Fill<V>(p[r * size + 1]), products[1]);
          };
          if constexpr (kRanks > 0) {
            ForEach<kRanks>([&](auto r) ATTNOPS_INLINE_LAMBDA { add(r(), factors[r()]); });
          } else {
            for (std::size_t r = 0; r < ranks; ++r) {
              add(r, MakePack<V>([&](int i) ATTNOPS_INLINE_LAMBDA {
                    return hn::Load(d, rows[i] + r * size);
                  }));
            }
          }
        } else {
          ForEach<V>([&](auto i) ATTNOPS_INLINE_LAMBDA {
            const float* row = rows[i()] + column * size;
            products[0].v[i()] = hn::Load(d, row);
            products[1].v[i()] = hn::Load(d, row + size);
          });
        }
        if constexpr (kScaled) {
          for (int r = 0; r < 2; ++r) {
            products[r] = Mul(products[r], Fill<V>(*scales * work.pairs.scales[2 * token + r]));
          }
        }
        float* to = scores + token * heads;
        WithTwoRanks(at + begin, readable - begin, V, [&](const auto& load) ATTNOPS_INLINE_LAMBDA {
          ForEach<V>([&](auto i) ATTNOPS_INLINE_LAMBDA {
            const Chunk a = load(i());
            const VF sum =
                hn::MulAdd(a.v[1], products[1].v[i()], hn::Mul(a.v[0], products[0].v[i()]));
            hn::Store(sum, d, to + i() * kLanes);
            most.v[i()] = hn::Max(sum, most.v[i()]);  // never a NaN where there is a head
          });
        });
      });
  ForEach<V>([&](auto i) ATTNOPS_INLINE_LAMBDA {
    hn::Store(most.v[i()], d, new_max + (first + i()) * kLanes);
  });
}

// All heads. aq and the sums of two ranks and three vectors fit into the registers.
template <typename S, int kRanks>
HWY_NOINLINE void ScoreAllPairs(const DecodeBlock& block, const float* max, float* new_max) {
  const std::int64_t vectors = DivideUp(block.heads.size(), kLanes);
  for (std::int64_t v = 0; v < vectors;) {
    const std::int64_t left = vectors - v;
    if (left == 3 || left > 4) {
      ScorePairs<S, 3, kRanks>(block, v, max, new_max);
      v += 3;
    } else if (left > 1) {
      ScorePairs<S, 2, kRanks>(block, v, max, new_max);
      v += 2;
    } else {
      ScorePairs<S, 1, kRanks>(block, v, max, new_max);
      v += 1;
    }
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
  const DecodeProblem& problem = block.problem;
  const CacheFactor& bv = problem.bv;
  block.ForEachToken<S>(bv, 2 * problem.E,
                        [&](std::int64_t token, const S* at, std::int64_t,
                            const float* scales) ATTNOPS_INLINE_LAMBDA {
                          if constexpr (std::is_same_v<S, std::int8_t>) {
                            for (std::int64_t r = 0; r < 2; ++r) {
                              block.work.pairs.scales[2 * token + r] = scales[r * bv.scale_row];
                            }
                          }
                          ForEachChunk(problem.E, [&](std::int64_t column, std::size_t n,
                                                      std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                            StorePairs(PairsOfRows(LoadPackedNumbers(at + column, n),
                                                   LoadPackedNumbers(at + bv.row + column, n)),
                                       RowOf(block.work.pairs.right, chunk, token));
                          });
                        });
}

// The weights p·av of a block, rounded, in the place of p: pairs of the ranks.
template <typename S>
HWY_INLINE void PairWeights(const DecodeBlock& block) {
  const DF d;
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const std::int64_t vectors = DivideUp(block.heads.size(), kLanes);
  ForEachTokenOfHeads<S>(
      block, problem.av,
      [&](std::int64_t token, const S* at, std::int64_t readable, const float* scales)
          ATTNOPS_INLINE_LAMBDA {
            [[maybe_unused]] Chunk factor;
            if constexpr (kScaled) {
              const float* of_values = work.pairs.scales + 2 * token;
              factor = {{hn::Set(d, *scales * of_values[0]), hn::Set(d, *scales * of_values[1])}};
            }
            float* weights = work.pairs.weights + token * work.pairs.heads;
            const auto weigh = [&](const auto& load) ATTNOPS_INLINE_LAMBDA {
              for (std::int64_t v = 0; v < vectors; ++v) {
                Chunk a = load(v);
                if constexpr (kScaled) a = Mul(a, factor);
                const VF p = hn::Load(d, weights + v * kLanes);
                // Where a NaN would not survive this rounding, the sum of its head is one.
                const auto pairs =
                    ToStored<Payload::kUpper>(Mul(a, Fill<2>(p)), static_cast<BFloat16*>(nullptr));
                hn::Store(hn::BitCast(d, pairs.v[0]), d, weights + v * kLanes);
              }
            };
            WithTwoRanks(at, readable, vectors, weigh);
          });
}

// Decoding with these products, as AttendTokensAs takes it.
struct TwoRankForm {
  static void Prepare(const DecodeProblem& problem, std::int64_t batch, Range heads,
                      bool through_rank, const DecodeWorkspace& work) {
    if (through_rank) return RoundQueryRows(problem, batch, work);
    FormQueries(problem, batch, heads, work);
    PairRows(work.q, Padded(problem.D), ChunksOf(heads.size()), work.pairs.left);
  }

  static bool Weigh(const DecodeBlock& block, bool through_rank, const float* max) {
    const DF d;
    const DecodeWorkspace& work = block.work;
    const std::int64_t heads = block.heads.size(), vectors = DivideUp(heads, kLanes);
    WithPairStorage(block.problem.storage, [&](auto storage) HWY_ATTR {
      using S = typename decltype(storage)::Type;
      MultiplyPairedKeys<S>(block, through_rank);
      if (!through_rank) {
        ScoreAllPairs<S, kFormed>(block, max, work.max);
      } else if (block.problem.Rq == kPublishedRanks) {
        ScoreAllPairs<S, kPublishedRanks>(block, max, work.max);
      } else {
        ScoreAllPairs<S, kAnyRanks>(block, max, work.max);
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
