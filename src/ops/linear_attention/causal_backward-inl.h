// The backward of a block. g is scale·dO, so that scores have no scale.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "src/ops/linear_attention/causal_block-inl.h"
#include "src/ops/linear_attention/causal_forward-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

// Stores rows in a tensor of T, or of float32 if `is_float`.
template <typename T>
void StoreRows(const Panels& from, const Output& to, bool is_float, Head head, std::int64_t index,
               Range block, std::int64_t columns) {
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 for (std::int64_t i = 0; i < block.size(); ++i) {
                   const Chunk x = LoadChunk(At(from, i, chunk));
                   if (is_float) {
                     StoreFloatsFrom<T>(x, RowsOf<float>(to, head, index, block)[i] + column, n);
                   } else {
                     StoreChunkN(x, RowsOf<T>(to, head, index, block)[i] + column, n);
                   }
                 }
               });
}

// Adds rows of dq or dk to the sums of a group, which the last of its heads takes back.
HWY_INLINE void SumOverGroup(const BackwardBlock& block, const Rows<float>& sums,
                             std::int64_t columns, const Panels& rows) {
  if (sums.data == nullptr) return;
  ForEachRow(block.tokens.size(), columns,
             [&](std::int64_t row, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
               float* at = ChunkOf(sums[row], chunk);
               Chunk x = LoadChunk(At(rows, row, chunk));
               if (!block.first_of_group) x = Add(x, LoadChunk(at));
               StoreChunk(x, block.last_of_group ? At(rows, row, chunk) : at);
             });
}

// The gradients of scores, and the decays on the side of the values.
template <typename T>
void MakeScoreGradients(const Problem& problem, Head head, Range block, const Workspace& work,
                        Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), E = problem.E;
  if (problem.OnValues()) {
    const std::int64_t chunks = ChunksOf(E);
    VisitValueDecays<T>(problem, head, block, work,
                        ScoreVisitor{{},
                                     work.g,
                                     work.v,
                                     work.value,
                                     chunks,
                                     work.d_scores,
                                     work.weighted,
                                     work.g_start,
                                     work.v_end});
    ScoreLevels(work.weighted, tokens, chunks, work.d_scores);
    if (problem.decay != Decay::kFeature) {
      MultiplyMatrix(work.d_scores, work.mask, tokens, kBlockTokens, work.d_scores);
    }
    return;
  }
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, block);
  LoadTransposed(v.data, v.stride, tokens, E, work.columns);
  if (problem.decay == Decay::kFeature) {
    MultiplyLower(work.g, work.columns, tokens, Padded(E),
                  AddToMatrix{work.d_scores, false, prefetcher});
  } else {
    MultiplyLower(work.g, work.columns, tokens, Padded(E),
                  StoreWeighted{work.mask, work.d_scores, false, prefetcher});
  }
}

// dq and dk where each feature of the keys has a decay, and the scores with it.
template <typename T>
void FeatureKeyGradients(const Problem& problem, Head head, const BackwardBlock& block,
                         const Workspace& work, const Panels& g_start, const Panels& v_end,
                         Prefetcher& prefetcher) {
  const std::int64_t tokens = block.tokens.size(), D = problem.D, chunks = ChunksOf(D);
  MakeScores<T>(problem, head, block.tokens, work, prefetcher);
  TransposePanels(block.state, Padded(D), Padded(problem.E), work.state_columns);
  Multiply<Left::kStraight>(g_start, work.state_columns, tokens, Padded(problem.E), chunks,
                            AddToMatrix{work.dq, false, prefetcher});
  TransposePanels(block.d_state, Padded(D), Padded(problem.E), work.state_columns);
  Multiply<Left::kStraight>(v_end, work.state_columns, tokens, Padded(problem.E), chunks,
                            AddToMatrix{work.dk, false, prefetcher});
  MixLevels(work.d_scores, work.weighted, work.key, tokens, chunks, work.dq, prefetcher);
  MixLevelsBack(work.d_scores, work.weighted, work.key, tokens, chunks, work.dk, prefetcher);
  ForEachGroup(tokens, [&](Range group) ATTNOPS_INLINE_LAMBDA {
    MixGroup(work.d_scores, work.k, work.key.decays, chunks, group, work.dq);
    MixGroupBack(work.d_scores, work.q, work.key.decays, chunks, group, work.dk);
  });
}

// The same where a token's features share a decay.
HWY_INLINE void TokenKeyGradients(const Problem& problem, const BackwardBlock& block,
                                  const Workspace& work, const Panels& g_start, const Panels& v_end,
                                  Prefetcher& prefetcher) {
  const std::int64_t tokens = block.tokens.size(), D = problem.D, E = problem.E;
  TransposePanels(block.state, Padded(D), Padded(E), work.state_columns);
  MultiplySum(tokens, ChunksOf(D), AddToMatrix{work.dq, false, prefetcher},
              Term<Left::kStraight>{g_start, work.state_columns, Padded(E)},
              ScaleRows{problem.has_decay ? work.from_start : nullptr},
              Term<Left::kStraight, Triangle::kLower>{work.d_scores, work.k, tokens});
  TransposePanels(block.d_state, Padded(D), Padded(E), work.state_columns);
  MultiplySum(tokens, ChunksOf(D), AddToMatrix{work.dk, false, prefetcher},
              Term<Left::kStraight>{v_end, work.state_columns, Padded(E)},
              ScaleRows{problem.has_decay ? work.to_end : nullptr},
              Term<Left::kTransposed, Triangle::kUpper>{work.d_scores, work.q, tokens});
}

// g with its decays from the middle of nodes, for MixLevelsBack.
struct ValueGradientVisitor : DecayVisitor {
  const Panels &g, &weighted;

  HWY_INLINE void FromMiddle(const Level& level, std::int64_t row, std::int64_t chunk,
                             const Chunk& decay) const {
    StoreTimes(g, decay, weighted, row, chunk, level.row + row);
  }
};

template <typename T>
void ValueGradients(const Problem& problem, Head head, Range block, const Workspace& work,
                    const Panels& d_state, Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), E = problem.E, chunks = ChunksOf(E);
  const Panels& k_end = KeysToEnd(problem, work);
  if (!problem.OnValues()) {
    return MultiplySum(
        tokens, chunks,
        StoreInRows<T, Payload::kAny>{RowsOf<T>(problem.dv, head, head.head, block), E, prefetcher},
        Term<Left::kTransposed, Triangle::kUpper>{work.scores, work.g, tokens},
        Term<Left::kStraight>{k_end, d_state, Padded(problem.D)});
  }
  VisitValueDecays<T>(problem, head, block, work, ValueGradientVisitor{{}, work.g, work.weighted});
  Multiply<Left::kStraight>(k_end, d_state, tokens, Padded(problem.D), chunks,
                            AddToMatrix{work.dv, false, prefetcher});
  MixLevelsBack(work.scores, work.weighted, work.value, tokens, chunks, work.dv, prefetcher);
  ForEachGroup(tokens, [&](Range group) ATTNOPS_INLINE_LAMBDA {
    MixGroupBack(work.scores, work.g, work.value.decays, chunks, group, work.dv);
  });
}

// The gradient of a decay of features. With x and y the rows that meet S and dS (q and k, or g and
// v), from the last token to the first
//   d log λ_t = d log λ_{t+1} + x_t ⊙ dx_t − y_t ⊙ dy_t
// It begins with `next`, Σ S ⊙ dS behind the block. It is 0 where log λ is −Inf.
inline void FeatureDecayGradient(const Panels& x, const Panels& dx, const Panels& y,
                                 const Panels& dy, const float* next, const Panels& logs,
                                 std::int64_t tokens, std::int64_t features, const Panels& to) {
  const VF none = hn::Set(DF(), -std::numeric_limits<float>::infinity());
  for (std::int64_t chunk = 0; chunk < ChunksOf(features); ++chunk) {
    Chunk sum = LoadChunk(ChunkOf(next, chunk));
    for (std::int64_t i = tokens - 1; i >= 0; --i) {
      sum = MulAdd(LoadChunk(At(x, i, chunk)), LoadChunk(At(dx, i, chunk)), sum);
      sum = NegMulAdd(LoadChunk(At(y, i, chunk)), LoadChunk(At(dy, i, chunk)), sum);
      const Chunk log = LoadChunk(At(logs, i, chunk));
      for (int v = 0; v < 2; ++v) {
        sum.v[v] = hn::IfThenZeroElse(hn::Eq(log.v[v], none), sum.v[v]);
      }
      StoreChunk(sum, At(to, i, chunk));
    }
  }
}

// Σ S ⊙ dS along the rows and along the columns.
inline void SumStates(const Problem& problem, const Panels& state, const Panels& d_state,
                      float* rows, float* columns) {
  const DF d;
  const std::int64_t D = Padded(problem.D), chunks = ChunksOf(problem.E);
  std::fill_n(columns, Padded(problem.E), 0.0f);
  for (std::int64_t row = 0; row < D; ++row) {
    Chunk sum = Fill<2>(0.0f);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Chunk product =
          Mul(LoadChunk(At(state, row, chunk)), LoadChunk(At(d_state, row, chunk)));
      sum = Add(sum, product);
      float* column = ChunkOf(columns, chunk);
      StoreChunk(Add(product, LoadChunk(column)), column);
    }
    rows[row] = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum.v[0], sum.v[1])));
  }
}

template <typename T>
void StoreConstants(const Problem& problem, const double* from, std::int64_t heads) {
  for (std::int64_t i = 0; i < heads; ++i) {
    StoreDecayGradient<T>(problem, 0, i, 0, static_cast<float>(from[i]));
  }
}

// The gradients of decays, from dq, dk and dv in the workspace.
template <typename T>
void DecayGradients(const Problem& problem, Head head, const BackwardBlock& block,
                    const Workspace& work, Prefetcher& prefetcher) {
  const Range tokens = block.tokens;
  const std::int64_t count = tokens.size(), D = problem.D, E = problem.E;
  SumStates(problem, block.next_state, block.d_state, work.d_key, work.d_value);
  if (problem.d_log_decay_v.data != nullptr) {
    DecayedOutput<T>(problem, head, tokens, work, block.state, work.v_end, prefetcher);
    FeatureDecayGradient(work.g, work.out, work.v, work.dv, work.d_value, work.value.logs, count, E,
                         work.weighted);
    StoreRows<T>(work.weighted, problem.d_log_decay_v, problem.float_decay_v, head, head.head,
                 tokens, E);
  }
  if (problem.decay == Decay::kFeature) {
    if (problem.d_log_decay.data == nullptr) return;
    FeatureDecayGradient(work.q, work.dq, work.k, work.dk, work.d_key, work.key.logs, count, D,
                         work.weighted);
    StoreRows<T>(work.weighted, problem.d_log_decay, problem.float_decay, head, head.head, tokens,
                 D);
    return;
  }
  if (problem.d_log_decay.data == nullptr) return;
  alignas(64) float logs[kBlockTokens];
  LoadLogDecays<T>(problem, head, tokens, logs);
  ScoreDiagonal(work.q, work.dq, count, D, work.scores);
  ScoreDiagonal(work.k, work.dk, count, D, work.d_scores);
  const auto size = static_cast<std::int64_t>(ChunkSize());
  float sum = 0;
  for (std::int64_t i = 0; i < Padded(D); ++i) sum += work.d_key[i];
  for (std::int64_t i = count - 1; i >= 0; --i) {
    const std::int64_t chunk = i / size, at = i % size;
    sum += At(work.scores, i, chunk)[at] - At(work.d_scores, i, chunk)[at];
    if (logs[i] == -std::numeric_limits<float>::infinity()) sum = 0;
    if (block.d_constant != nullptr) {
      *block.d_constant += static_cast<double>(sum);
      continue;
    }
    StoreDecayGradient<T>(problem, head.batch, head.head, head.first + tokens.begin + i, sum);
  }
}

template <typename T>
void Backward(const Problem& problem, Head head, const BackwardBlock& block,
              const Workspace& work) {
  const Range range = block.tokens;
  const std::int64_t tokens = range.size(), D = problem.D, E = problem.E;
  const Panels& d_state = block.d_state;
  Prefetcher prefetcher;
  const Ahead& ahead = block.ahead;
  PrefetchRows<T>(problem.q, ahead, ahead.head.key_head, D, prefetcher);
  PrefetchRows<T>(problem.k, ahead, ahead.head.key_head, D, prefetcher);
  PrefetchRows<T>(problem.v, ahead, ahead.head.head, E, prefetcher);
  PrefetchRows<T>(problem.d_out, ahead, ahead.head.head, E, prefetcher);
  PrefetchRows<T>(problem.dq, ahead, ahead.head.key_head, D, prefetcher);
  PrefetchRows<T>(problem.dk, ahead, ahead.head.key_head, D, prefetcher);
  PrefetchRows<T>(problem.dv, ahead, ahead.head.head, E, prefetcher);
  PrefetchDecays<T>(problem, problem.log_decay, problem.log_decay_v, ahead, prefetcher);
  PrefetchDecays<T>(problem, problem.d_log_decay, problem.d_log_decay_v, ahead, prefetcher);
  const auto finish = [&] {
    SumOverGroup(block, block.dq_sums, D, work.dq);
    SumOverGroup(block, block.dk_sums, D, work.dk);
    if (block.last_of_group) {
      StoreRows<T>(work.dq, problem.dq, false, head, head.key_head, range, D);
      StoreRows<T>(work.dk, problem.dk, false, head, head.key_head, range, D);
    }
  };
  if (problem.IsOfTokens()) {
    const auto run = [&]() HWY_ATTR {
#if !ATTNOPS_ONE_LANE
      if constexpr (kHasPairs<T>) {
        if (problem.dot != nullptr) {
          return BackwardInPairs(problem, head, block, work, prefetcher);
        }
      }
#endif
      BackwardOfTokens<T>(problem, head, block, work, prefetcher);
    };
    run();
    if (block.dq_sums.data != nullptr) finish();
    return;
  }
  prefetcher.Spread(2 * PausesOf(tokens, E, D) + PausesOf(tokens, D, E) + PausesOf(D, tokens, E));
  const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, range);
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, range);
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, range);
  LoadRows(q.data, q.stride, tokens, D, work.q);
  LoadRows(k.data, k.stride, tokens, D, work.k);
  LoadRows(v.data, v.stride, tokens, E, work.v);
  LoadGradient<T>(problem, head, range, work.g);
  const Panels& g_start = problem.OnValues() ? work.g_start : work.g;
  const Panels& v_end = problem.OnValues() ? work.v_end : work.v;
  if (problem.decay == Decay::kFeature) {
    MakeScoreGradients<T>(problem, head, range, work, prefetcher);
    FeatureKeyGradients<T>(problem, head, block, work, g_start, v_end, prefetcher);
  } else {
    MakeScores<T>(problem, head, range, work, prefetcher);
    MakeScoreGradients<T>(problem, head, range, work, prefetcher);
    DecayRows(problem, work.q, work.from_start, tokens, work.q_start);
    DecayRows(problem, work.k, work.to_end, tokens, work.k_end);
    TokenKeyGradients(problem, block, work, g_start, v_end, prefetcher);
  }
  ValueGradients<T>(problem, head, range, work, d_state, prefetcher);
  if (problem.wants_decay) DecayGradients<T>(problem, head, block, work, prefetcher);
  UpdateBy<T>(problem, QueriesFromStart(problem, work), g_start, tokens, work, d_state, prefetcher);

  finish();
  if (problem.OnValues()) StoreRows<T>(work.dv, problem.dv, false, head, head.head, range, E);
}

template <typename T>
void BackwardState(const Problem& problem, Head head, Range block, const Workspace& work,
                   const Panels& d_state) {
#if !ATTNOPS_ONE_LANE
  if constexpr (kHasPairs<T>) {
    if (problem.dot != nullptr) {
      return BackwardStateInPairs(problem, head, block, work, d_state);
    }
  }
#endif
  const std::int64_t tokens = block.size();
  Prefetcher prefetcher;
  const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, block);
  LoadRows(q.data, q.stride, tokens, problem.D, work.q);
  LoadGradient<T>(problem, head, block, work.g);
  if (problem.decay == Decay::kFeature) {
    VisitKeyDecays<T>(problem, head, block, work, DecayFromStart{{}, work.q, work.q_start});
  } else {
    LoadTokenDecays<T>(problem, head, block, work, false);
  }
  DecayRows(problem, work.q, work.from_start, tokens, work.q_start);
  if (problem.OnValues()) {
    VisitValueDecays<T>(problem, head, block, work, DecayFromStart{{}, work.g, work.g});
  }
  UpdateBy<T>(problem, QueriesFromStart(problem, work), work.g, tokens, work, d_state, prefetcher);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BACKWARD_INL_H_
