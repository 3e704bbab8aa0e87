// causal_token-inl.h with bfloat16 products: rows of the tensors are the left operands as they are,
// states and scores are rounded once, and all sums are float32.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PAIRS_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/gemm/multiply_pairs-inl.h"
#include "src/gemm/multiply_pairs_sum-inl.h"
#include "src/gemm/pairs-inl.h"
#include "src/ops/linear_attention/causal_block-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"
#include "src/ops/linear_attention/causal_token-inl.h"
#include "src/simd/capabilities-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// Sums times a factor, for another epilogue.
template <class Epilogue>
struct Scaled {
  const Epilogue& epilogue;
  float factor;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return epilogue.Elements(chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    epilogue(row, chunk, n, Mul(sums, Fill<2>(factor)));
  }
};

// Where a tile's own rows are multiplied one by one: with rounded scores, or as they are. The
// gradients of decays are differences of sums with the same scores, which must be rounded alike.
enum class OwnScores { kRounded, kExact };

// Scores: sums times the scale and the mask, if there is one. `rows`, if it has data, gets them
// rounded to bfloat16 as operands, `to` in float32.
struct StoreScores {
  Panels mask, to;
  Rows<BFloat16> rows;
  float scale;
  OwnScores own;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    Chunk product = Mul(sums, Fill<2>(scale));
    if (mask.data != nullptr) product = Mul(product, LoadChunk(At(mask, row, chunk)));
    float* at = At(to, row, chunk);
    StoreChunk(own == OwnScores::kExact ? product : RoundChunk(product), at);
    if (rows.data != nullptr) {
      StoreChunk(LoadFloatsAs<BFloat16>(at, ChunkSize()), ChunkOf(rows[row], chunk));
    }
  }
};

// The lower triangle of x·yᵀ in work.scores or work.d_scores, times the decays between its tokens.
inline void MakePairTriangle(const Problem& problem, const Rows<const BFloat16>& x,
                             const Rows<const BFloat16>& y, std::int64_t tokens,
                             std::int64_t features, float scale, OwnScores own,
                             const Rows<BFloat16>& rows, const Workspace& work, const Panels& to,
                             Prefetcher& prefetcher) {
  LoadTransposedPairs(y.data, y.stride, tokens, features, work.columns);
  const LeftPairs left = LeftOfRows(x, tokens, features, work.rows16);
  MultiplyPairsLower(
      problem.dot, left.left, work.columns, tokens, left.depth,
      StoreScores{problem.has_decay ? work.mask : Panels{}, to, rows, scale, own, prefetcher});
}

// Rows of a tensor, times their factors if there are such, as pairs of tokens.
inline void PairScaledTokens(const Rows<const BFloat16>& rows, std::int64_t count,
                             std::int64_t columns, const float* factors, const Panels& to) {
  if (factors == nullptr) return PairTokens(rows.data, rows.stride, count, columns, to);
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 const auto load = [&](std::int64_t i) ATTNOPS_INLINE_LAMBDA {
                   return Mul(LoadChunkN(rows[i] + column, n), Fill<2>(factors[i]));
                 };
                 float* at = to.data + chunk * to.panel;
                 std::int64_t i = 0;
                 for (; i + 1 < count; i += 2, at += ChunkSize()) {
                   StorePairs(RoundToPairs(load(i), load(i + 1)), at);
                 }
                 if (i < count) StorePairs(RoundToPairs(load(i), Fill<2>(0.0f)), at);
               });
}

// Advances a state by scale·xᵀ·y, both pairs of tokens, with the decay work.log.
inline void UpdateByPairs(const Problem& problem, const Panels& x, const Panels& y,
                          std::int64_t tokens, float scale, const Workspace& work,
                          const Panels& state, Prefetcher& prefetcher) {
  UpdateWith<BFloat16>(problem, work, state, prefetcher, [&](const UpdateState& update) HWY_ATTR {
    MultiplyPairs<Left::kTransposed>(problem.dot, PairLeft::OfPanels(x), y, Padded(problem.D),
                                     DivideUp(tokens, 2), ChunksOf(problem.E),
                                     Scaled<UpdateState>{update, scale, prefetcher});
  });
}

// The triangle of scores, from their rounded rows or as pairs of rows.
HWY_INLINE PairTriangle<Triangle::kLower> LowerTriangle(const Panels& scores, const Panels& b,
                                                        std::int64_t tokens,
                                                        const Workspace& work) {
  return {PairLeft::OfRows({work.score_rows.data, work.score_rows.stride}), scores, b, tokens};
}
HWY_INLINE PairTriangle<Triangle::kUpper> UpperTriangle(const Panels& scores, const Panels& b,
                                                        std::int64_t tokens,
                                                        const Workspace& work) {
  PairTokens(scores, tokens, ChunksOf(tokens), work.score_pairs);
  return {PairLeft::OfPanels(work.score_pairs), scores, b, tokens};
}

inline void ForwardInPairs(const Problem& problem, Head head, Range block, const Workspace& work,
                           const Panels& state, Prefetcher& prefetcher) {
  using T = BFloat16;
  const std::int64_t tokens = block.size(), D = problem.D, E = problem.E;
  const bool outputs = problem.out.data != nullptr;
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, block);
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, block);
  prefetcher.Spread((outputs ? PausesOf(tokens, (D + tokens / 2) / 2, E) : 0) +
                    PausesOf(D, tokens / 2, E));
  LoadTokenDecays<T>(problem, head, block, work, outputs && problem.decay == Decay::kToken);
  PairTokens(v.data, v.stride, tokens, E, work.v);
  if (outputs) {
    const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, block);
    MakePairTriangle(problem, q, k, tokens, D, 1.0f, OwnScores::kExact, work.score_rows, work,
                     work.scores, prefetcher);
    PairRows(state, Padded(D), ChunksOf(E), work.state_pairs);
    const LeftPairs left = LeftOfRows(q, tokens, D, work.rows16);
    MultiplyPairsSum(problem.dot, tokens, ChunksOf(E),
                     PairTerm{left.left, work.state_pairs, left.depth},
                     problem.has_decay ? work.from_start : nullptr,
                     LowerTriangle(work.scores, work.v, tokens, work),
                     StoreScaled<T>{RowsOf<T>(problem.out, head, head.head, block), E,
                                    problem.scale, prefetcher});
  }
  PairScaledTokens(k, tokens, D, problem.has_decay ? work.to_end : nullptr, work.k);
  UpdateByPairs(problem, work.k, work.v, tokens, 1.0f, work, state, prefetcher);
}

// The update of the state's gradient. g is dO, as it is; its scale is a factor of the sums.
inline void UpdateGradient(const Problem& problem, const Rows<const BFloat16>& q, const Panels& g,
                           std::int64_t tokens, const Workspace& work, const Panels& d_state,
                           Prefetcher& prefetcher) {
  PairScaledTokens(q, tokens, problem.D, problem.has_decay ? work.from_start : nullptr, work.q);
  UpdateByPairs(problem, work.q, g, tokens, problem.scale, work, d_state, prefetcher);
}

inline void BackwardInPairs(const Problem& problem, Head head, const BackwardBlock& block,
                            const Workspace& work, Prefetcher& prefetcher) {
  using T = BFloat16;
  const Range range = block.tokens;
  const std::int64_t tokens = range.size(), D = problem.D, E = problem.E;
  const Panels& d_state = block.d_state;
  const DotTile dot = problem.dot;
  const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, range);
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, range);
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, range);
  const Rows<const T> g = RowsOf<T>(problem.d_out, head, head.head, range);
  prefetcher.Spread(2 * PausesOf(tokens, E / 2, D) + PausesOf(tokens, D / 2, E) +
                    PausesOf(D, tokens / 2, E));
  LoadTokenDecays<T>(problem, head, range, work, problem.decay == Decay::kToken);
  float scales[kBlockTokens];  // F·scale of each token
  for (std::int64_t i = 0; i < tokens; ++i) {
    scales[i] = problem.scale * (problem.has_decay ? work.from_start[i] : 1.0f);
  }
  const float* to_end = problem.has_decay ? work.to_end : nullptr;
  MakePairTriangle(problem, q, k, tokens, D, problem.scale, OwnScores::kRounded, {}, work,
                   work.scores, prefetcher);
  MakePairTriangle(problem, g, v, tokens, E, problem.scale, OwnScores::kRounded, work.score_rows,
                   work, work.d_scores, prefetcher);
  PairTokens(q.data, q.stride, tokens, D, work.q);
  PairTokens(k.data, k.stride, tokens, D, work.k);
  PairTokens(g.data, g.stride, tokens, E, work.g);

  Panels products{};
  if (problem.d_log_decay.data != nullptr) {
    products = work.weighted;
    ZeroRows(tokens, 1, products);
  }
  const auto store = [&](const Output& to, const Panels& matrix, const Rows<const T>& x, float sign)
                         HWY_ATTR {
                           const bool direct = block.dq_sums.data == nullptr;
                           return StoreGradient<T, RowsFactor<T>>{
                               direct ? RowsOf<T>(to, head, head.key_head, range) : Rows<T>{},
                               matrix,
                               D,
                               {x},
                               products,
                               sign,
                               prefetcher};
                         };
  // A left operand may be in rows16 until its product is done.
  const auto term = [&](const Rows<const T>& x, std::int64_t columns) HWY_ATTR {
    const LeftPairs left = LeftOfRows(x, tokens, columns, work.rows16);
    return PairTerm{left.left, work.state_pairs, left.depth};
  };
  PairColumns(block.state, Padded(D), ChunksOf(E), work.state_pairs);
  MultiplyPairsSum(dot, tokens, ChunksOf(D), term(g, E), scales,
                   LowerTriangle(work.d_scores, work.k, tokens, work),
                   store(problem.dq, work.dq, q, 1.0f));
  PairColumns(d_state, Padded(D), ChunksOf(E), work.state_pairs);
  MultiplyPairsSum(dot, tokens, ChunksOf(D), term(v, E), to_end,
                   UpperTriangle(work.d_scores, work.q, tokens, work),
                   store(problem.dk, work.dk, k, -1.0f));
  PairRows(d_state, Padded(D), ChunksOf(E), work.state_pairs);
  MultiplyPairsSum(
      dot, tokens, ChunksOf(E), term(k, D), to_end,
      UpperTriangle(work.scores, work.g, tokens, work),
      StoreInRows<T, Payload::kAny>{RowsOf<T>(problem.dv, head, head.head, range), E, prefetcher});
  if (products.data != nullptr) {
    TokenDecayGradients<T>(problem, head, block, products,
                           DotStates(problem, block.next_state, d_state));
  }
  UpdateGradient(problem, q, work.g, tokens, work, d_state, prefetcher);
}

inline void BackwardStateInPairs(const Problem& problem, Head head, Range block,
                                 const Workspace& work, const Panels& d_state) {
  using T = BFloat16;
  Prefetcher prefetcher;
  const Rows<const T> g = RowsOf<T>(problem.d_out, head, head.head, block);
  LoadTokenDecays<T>(problem, head, block, work, false);
  PairTokens(g.data, g.stride, block.size(), problem.E, work.g);
  UpdateGradient(problem, RowsOf<T>(problem.q, head, head.key_head, block), work.g, block.size(),
                 work, d_state, prefetcher);
}

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PAIRS_INL_H_
