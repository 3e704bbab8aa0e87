// The forward of a block: its output, and the states behind it.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/causal_block-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"
#include "src/ops/linear_attention/causal_pairs-inl.h"
#include "src/ops/linear_attention/causal_token-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

template <typename T>
std::int64_t BlockEnd(const Problem& problem, Head head, std::int64_t begin, std::int64_t tokens,
                      const Workspace& work) {
  Range block{begin, std::min(tokens, begin + kBlockTokens)};
  const auto shorten = [&](std::int64_t count)
                           ATTNOPS_INLINE_LAMBDA { block.end = block.begin + count; };
  const auto shorten_by_features = [&](const Input& tensor, bool is_float, std::int64_t features,
                                       const Panels& logs) ATTNOPS_INLINE_LAMBDA {
    if (!MayGrow<T>(tensor, is_float, head, block, features)) return;
    LoadFeatureLogs<T>(tensor, is_float, head, block, features, logs);
    shorten(TokensOfGrowth(logs, block.size(), features));
  };
  if (problem.decay == Decay::kFeature) {
    shorten_by_features(problem.log_decay, problem.float_decay, problem.D, work.key.logs);
  } else if (problem.has_decay) {
    alignas(64) float logs[kBlockTokens];
    LoadLogDecays<T>(problem, head, block, logs);
    shorten(TokensOfGrowth(logs, block.size()));
  }
  if (problem.OnValues()) {
    shorten_by_features(problem.log_decay_v, problem.float_decay_v, problem.E, work.value.logs);
  }
  return block.end;
}

template <typename T>
void Start(const Problem& problem, Head head, const Workspace& work) {
  // Above the diagonal nothing is written.
  for (const Panels& square : {work.mask, work.scores, work.d_scores}) {
    if (square.data != nullptr) ZeroRows(kBlockTokens, kBlockTokens, square);
  }
  if (problem.decay == Decay::kConstant) {
    LoadTokenDecays<T>(problem, head, {0, kBlockTokens}, work, true);
  }
}

// Loads the decays of a block along one side and passes them to a visitor; `log` is their sum.
template <typename T, class Visitor>
HWY_INLINE void VisitDecays(const Input& tensor, bool is_float, Head head, Range block,
                            std::int64_t features, const SideDecay& side, float* log,
                            const Visitor& visitor) {
  LoadFeatureLogs<T>(tensor, is_float, head, block, features, side.logs);
  MakeFeatureDecays(block.size(), features, side, log, visitor);
}
template <typename T, class Visitor>
HWY_INLINE void VisitKeyDecays(const Problem& problem, Head head, Range block,
                               const Workspace& work, const Visitor& visitor) {
  VisitDecays<T>(problem.log_decay, problem.float_decay, head, block, problem.D, work.key,
                 work.log.key, visitor);
}
template <typename T, class Visitor>
HWY_INLINE void VisitValueDecays(const Problem& problem, Head head, Range block,
                                 const Workspace& work, const Visitor& visitor) {
  VisitDecays<T>(problem.log_decay_v, problem.float_decay_v, head, block, problem.E, work.value,
                 work.log.value, visitor);
}

// Visitors.

// to = x times the decays to the block's end, or from its start.
struct DecayToEnd : DecayVisitor {
  const Panels &x, &to;

  HWY_INLINE void ToEnd(std::int64_t row, std::int64_t chunk, const Chunk& decay) const {
    StoreTimes(x, decay, to, row, chunk, row);
  }
};
struct DecayFromStart : DecayVisitor {
  const Panels &x, &to;

  HWY_INLINE void FromStart(std::int64_t row, std::int64_t chunk, const Chunk& decay) const {
    StoreTimes(x, decay, to, row, chunk, row);
  }
};

// The scores of x with y within groups, and rows for those between them (ScoreLevels); x and y
// with their decays from the start and to the end.
struct ScoreVisitor : DecayVisitor {
  const Panels &x, &y;
  const SideDecay& side;
  std::int64_t chunks;
  const Panels &scores, &weighted, &x_start, &y_end;

  HWY_INLINE void Group(Range group) const { ScoreGroup(x, y, side.decays, chunks, group, scores); }
  HWY_INLINE void ToMiddle(const Level& level, std::int64_t row, std::int64_t chunk,
                           const Chunk& decay) const {
    StoreTimes(y, decay, weighted, row, chunk, level.row + row);
  }
  HWY_INLINE void FromMiddle(const Level& level, std::int64_t row, std::int64_t chunk,
                             const Chunk& decay) const {
    StoreTimes(x, decay, weighted, row, chunk, level.row + row);
  }
  HWY_INLINE void ToEnd(std::int64_t row, std::int64_t chunk, const Chunk& decay) const {
    StoreTimes(y, decay, y_end, row, chunk, row);
  }
  HWY_INLINE void FromStart(std::int64_t row, std::int64_t chunk, const Chunk& decay) const {
    StoreTimes(x, decay, x_start, row, chunk, row);
  }
};

// v with its decays to the middle of nodes, for MixLevels, and to the block's end.
struct ValueVisitor : DecayVisitor {
  const Panels &v, &weighted, &v_end;

  HWY_INLINE void ToMiddle(const Level& level, std::int64_t row, std::int64_t chunk,
                           const Chunk& decay) const {
    StoreTimes(v, decay, weighted, row, chunk, level.row + row);
  }
  HWY_INLINE void ToEnd(std::int64_t row, std::int64_t chunk, const Chunk& decay) const {
    StoreTimes(v, decay, v_end, row, chunk, row);
  }
};

// The scores of a block and its decays on the side of the keys.
template <typename T>
void MakeScores(const Problem& problem, Head head, Range block, const Workspace& work,
                Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), D = problem.D;
  if (problem.decay == Decay::kFeature) {
    const std::int64_t chunks = ChunksOf(D);
    VisitKeyDecays<T>(problem, head, block, work,
                      ScoreVisitor{{},
                                   work.q,
                                   work.k,
                                   work.key,
                                   chunks,
                                   work.scores,
                                   work.weighted,
                                   work.q_start,
                                   work.k_end});
    return ScoreLevels(work.weighted, tokens, chunks, work.scores);
  }
  LoadTokenDecays<T>(problem, head, block, work, problem.decay == Decay::kToken);
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, block);
  LoadTransposed(k.data, k.stride, tokens, D, work.columns);
  MultiplyLower(work.q, work.columns, tokens, Padded(D),
                StoreWeighted{work.mask, work.scores, false, prefetcher});
}

// Makes q_start or k_end where the features of a token share a decay; without one q and k serve,
// and with decays of features VisitKeyDecays makes them.
HWY_INLINE void DecayRows(const Problem& problem, const Panels& x, const float* factors,
                          std::int64_t tokens, const Panels& to) {
  if (problem.decay != Decay::kFeature && problem.has_decay) {
    MultiplyRowsBy(x, factors, tokens, problem.D, to);
  }
}
HWY_INLINE const Panels& QueriesFromStart(const Problem& problem, const Workspace& work) {
  return problem.has_decay ? work.q_start : work.q;
}
HWY_INLINE const Panels& KeysToEnd(const Problem& problem, const Workspace& work) {
  return problem.has_decay ? work.k_end : work.k;
}

// work.out = the output without its scale where values decay; v_end as a ValueVisitor's.
template <typename T>
void DecayedOutput(const Problem& problem, Head head, Range block, const Workspace& work,
                   const Panels& state, const Panels& v_end, Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), chunks = ChunksOf(problem.E);
  VisitValueDecays<T>(problem, head, block, work, ValueVisitor{{}, work.v, work.weighted, v_end});
  Multiply<Left::kStraight>(QueriesFromStart(problem, work), state, tokens, Padded(problem.D),
                            chunks, AddToMatrix{work.out, false, prefetcher});
  MixLevels(work.scores, work.weighted, work.value, tokens, chunks, work.out, prefetcher);
  ForEachGroup(tokens, [&](Range group) ATTNOPS_INLINE_LAMBDA {
    MixGroup(work.scores, work.v, work.value.decays, chunks, group, work.out);
  });
}

template <typename T>
void Forward(const Problem& problem, Head head, Range block, const Workspace& work,
             const Panels& state, const Ahead& ahead) {
  const std::int64_t tokens = block.size(), D = problem.D, E = problem.E;
  const bool outputs = problem.out.data != nullptr;
  Prefetcher prefetcher;
  PrefetchRows<T>(problem.k, ahead, ahead.head.key_head, D, prefetcher);
  PrefetchRows<T>(problem.v, ahead, ahead.head.head, E, prefetcher);
  PrefetchDecays<T>(problem, problem.log_decay, problem.log_decay_v, ahead, prefetcher);
  if (outputs) {
    PrefetchRows<T>(problem.q, ahead, ahead.head.key_head, D, prefetcher);
    PrefetchRows<T>(problem.out, ahead, ahead.head.head, E, prefetcher);
  }
  if (problem.IsOfTokens()) {
#if !ATTNOPS_ONE_LANE
    if constexpr (kHasPairs<T>) {
      if (problem.dot != nullptr) {
        return ForwardInPairs(problem, head, block, work, state, prefetcher);
      }
    }
#endif
    return ForwardOfTokens<T>(problem, head, block, work, state, prefetcher);
  }
  prefetcher.Spread((outputs ? PausesOf(tokens, D, E) : 0) + PausesOf(D, tokens, E));
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, block);
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, block);
  LoadRows(k.data, k.stride, tokens, D, work.k);
  LoadRows(v.data, v.stride, tokens, E, work.v);
  if (outputs) {
    const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, block);
    const Rows<T> out = RowsOf<T>(problem.out, head, head.head, block);
    LoadRows(q.data, q.stride, tokens, D, work.q);
    MakeScores<T>(problem, head, block, work, prefetcher);
    DecayRows(problem, work.q, work.from_start, tokens, work.q_start);
    if (problem.OnValues()) {
      DecayedOutput<T>(problem, head, block, work, state, work.v_end, prefetcher);
      ForEachChunk(
          E, [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
            for (std::int64_t i = 0; i < tokens; ++i) {
              StoreChunkN(Mul(LoadChunk(At(work.out, i, chunk)), Fill<2>(problem.scale)),
                          out[i] + column, n);
            }
          });
    } else {
      MultiplySum(tokens, ChunksOf(E), StoreScaled<T>{out, E, problem.scale, prefetcher},
                  Term<Left::kStraight>{QueriesFromStart(problem, work), state, Padded(D)},
                  Term<Left::kStraight, Triangle::kLower>{work.scores, work.v, tokens});
    }
  } else {
    if (problem.decay == Decay::kFeature) {
      VisitKeyDecays<T>(problem, head, block, work, DecayToEnd{{}, work.k, work.k_end});
    } else {
      LoadTokenDecays<T>(problem, head, block, work, false);
    }
    if (problem.OnValues()) {
      VisitValueDecays<T>(problem, head, block, work, DecayToEnd{{}, work.v, work.v_end});
    }
  }
  DecayRows(problem, work.k, work.to_end, tokens, work.k_end);
  UpdateBy<T>(problem, KeysToEnd(problem, work), problem.OnValues() ? work.v_end : work.v, tokens,
              work, state, prefetcher);
}

template <typename T>
void LoadState(const Problem& problem, const float* from, std::int64_t stride, const Panels& to) {
  if (from != nullptr) return LoadMatrix<T>(from, stride, problem.D, problem.E, to);
  for (std::int64_t chunk = 0; chunk < ChunksOf(problem.E); ++chunk) {
    std::fill_n(At(to, 0, chunk), Padded(problem.D) * static_cast<std::int64_t>(ChunkSize()), 0.0f);
  }
}
template <typename T>
void StoreState(const Problem& problem, const Panels& from, float* to, std::int64_t stride) {
  StoreMatrix<T>(from, problem.D, problem.E, to, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_FORWARD_INL_H_
