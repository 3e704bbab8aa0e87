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
  if (problem.decay == Decay::kFeature) {
    LoadFeatureLogs<T>(problem.log_decay, problem.float_decay, head, block, problem.D,
                       work.key.sums);
    shorten(TokensOfGrowth(work.key.sums, block.size(), problem.D));
  } else if (problem.has_decay) {
    alignas(64) float logs[kBlockTokens];
    LoadLogDecays<T>(problem, head, block, logs);
    shorten(TokensOfGrowth(logs, block.size()));
  }
  if (problem.OnValues()) {
    LoadFeatureLogs<T>(problem.log_decay_v, problem.float_decay_v, head, block, problem.E,
                       work.value.sums);
    shorten(TokensOfGrowth(work.value.sums, block.size(), problem.E));
  }
  return block.end;
}

template <typename T>
void Start(const Problem& problem, Head head, const Workspace& work) {
  if (problem.decay == Decay::kConstant) {
    LoadTokenDecays<T>(problem, head, {0, kBlockTokens}, work, true);
  }
  // Scores of single features' decays are written below the diagonal alone.
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t c = 0; c < kBlockTokens / chunk; ++c) {
    std::fill_n(At(work.scores, 0, c), kBlockTokens * chunk, 0.0f);
    if (work.d_scores.data != nullptr) {
      std::fill_n(At(work.d_scores, 0, c), kBlockTokens * chunk, 0.0f);
    }
  }
}

// Decays along one side, after which row 0 of the sums is `log`; group and level as in
// MakeFeatureDecays.
template <typename T, class... F>
HWY_INLINE void LoadFeatureDecays(const Input& tensor, bool is_float, Head head, Range block,
                                  std::int64_t features, const SideDecay& side, float* log,
                                  const F&... group_and_level) {
  LoadFeatureLogs<T>(tensor, is_float, head, block, features, side.sums);
  MakeFeatureDecays(block.size(), features, side, group_and_level...);
  for (std::int64_t chunk = 0; chunk < ChunksOf(features); ++chunk) {
    StoreChunk(LoadChunk(At(side.sums, 0, chunk)), ChunkOf(log, chunk));
  }
}
template <typename T, class... F>
HWY_INLINE void LoadKeyDecays(const Problem& problem, Head head, Range block, const Workspace& work,
                              const F&... group_and_level) {
  LoadFeatureDecays<T>(problem.log_decay, problem.float_decay, head, block, problem.D, work.key,
                       work.log.key, group_and_level...);
}
template <typename T, class... F>
HWY_INLINE void LoadValueDecays(const Problem& problem, Head head, Range block,
                                const Workspace& work, const F&... group_and_level) {
  LoadFeatureDecays<T>(problem.log_decay_v, problem.float_decay_v, head, block, problem.E,
                       work.value, work.log.value, group_and_level...);
}
// For group and level where only the decays themselves are wanted.
struct Nothing {
  HWY_INLINE void operator()(const Range&) const {}
  HWY_INLINE void operator()(const Level&) const {}
};

// The scores of a block and its decays on the side of the keys.
template <typename T>
void MakeScores(const Problem& problem, Head head, Range block, const Workspace& work,
                Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), D = problem.D;
  if (problem.decay == Decay::kFeature) {
    LoadKeyDecays<T>(
        problem, head, block, work,
        [&](Range group) ATTNOPS_INLINE_LAMBDA {
          ScoreGroup(work.q, work.k, work.key.from_start, ChunksOf(D), group, work.scores);
        },
        [&](const Level& nodes) ATTNOPS_INLINE_LAMBDA {
          WeightLevel(work.q, work.k, work.key, D, nodes, work.weighted);
          ScoreLevel(work.weighted, ChunksOf(D), nodes, work.scores);
        });
    return;
  }
  LoadTokenDecays<T>(problem, head, block, work, problem.decay == Decay::kToken);
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, block);
  LoadTransposed(k.data, k.stride, tokens, D, work.columns);
  MultiplyLower(work.q, work.columns, tokens, Padded(D),
                StoreWeighted{work.mask, work.scores, false, prefetcher});
}

// to = x times the decay of its token from the block's start, or to its end, for keys' features.
HWY_INLINE void DecayKeys(const Problem& problem, const Panels& x, const Panels& of_features,
                          const float* of_tokens, std::int64_t tokens, const Panels& to) {
  if (problem.decay == Decay::kFeature) {
    MultiplyMatrix(x, of_features, tokens, problem.D, to);
  } else if (problem.has_decay) {
    MultiplyRowsBy(x, of_tokens, tokens, problem.D, to);
  }
}
// Makes q_start and k_end; without a decay q and k serve.
HWY_INLINE void DecayQueriesAndKeys(const Problem& problem, std::int64_t tokens,
                                    const Workspace& work) {
  DecayKeys(problem, work.q, work.key.from_start, work.from_start, tokens, work.q_start);
  DecayKeys(problem, work.k, work.key.to_end, work.to_end, tokens, work.k_end);
}
HWY_INLINE const Panels& QueriesFromStart(const Problem& problem, const Workspace& work) {
  return problem.has_decay ? work.q_start : work.q;
}
HWY_INLINE const Panels& KeysToEnd(const Problem& problem, const Workspace& work) {
  return problem.has_decay ? work.k_end : work.k;
}

// work.out = the output without its scale where values decay.
template <typename T>
void DecayedOutput(const Problem& problem, Head head, Range block, const Workspace& work,
                   const Panels& state, Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), E = problem.E;
  LoadValueDecays<T>(
      problem, head, block, work,
      [&](Range group) ATTNOPS_INLINE_LAMBDA {
        MixGroup(work.scores, work.v, work.value.from_start, ChunksOf(E), group, work.out);
      },
      [&](const Level& nodes) ATTNOPS_INLINE_LAMBDA {
        WeightLevel(work.v, work.v, work.value, E, nodes, work.weighted);
        MixLevel(work.scores, work.weighted, work.value, ChunksOf(E), nodes, work.out, prefetcher);
      });
  Multiply<Left::kStraight>(QueriesFromStart(problem, work), state, tokens, Padded(problem.D),
                            ChunksOf(E),
                            StoreWeighted{work.value.from_start, work.out, true, prefetcher});
}

template <typename T>
void Forward(const Problem& problem, Head head, Range block, const Workspace& work,
             const States& states, const LogDecay* total, const Ahead& ahead) {
  const std::int64_t tokens = block.size(), D = problem.D, E = problem.E;
  const bool outputs = problem.out.data != nullptr && states.run.data != nullptr;
  Prefetcher prefetcher;
  PrefetchRows<T>(problem.k, ahead, ahead.head.key_head, D, prefetcher);
  PrefetchRows<T>(problem.v, ahead, ahead.head.head, E, prefetcher);
  PrefetchDecays<T>(problem, ahead, prefetcher);
  if (outputs) {
    PrefetchRows<T>(problem.q, ahead, ahead.head.key_head, D, prefetcher);
    PrefetchRows<T>(problem.out, ahead, ahead.head.head, E, prefetcher);
  }
  if (problem.IsOfTokens()) {
#if !ATTNOPS_ONE_LANE
    if constexpr (kHasPairs<T>) {
      if (problem.dot != nullptr) {
        return ForwardInPairs(problem, head, block, work, states, total, prefetcher);
      }
    }
#endif
    return ForwardOfTokens<T>(problem, head, block, work, states, total, prefetcher);
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
    DecayKeys(problem, work.q, work.key.from_start, work.from_start, tokens, work.q_start);
    if (problem.OnValues()) {
      DecayedOutput<T>(problem, head, block, work, states.run, prefetcher);
      ForEachChunk(
          E, [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
            for (std::int64_t i = 0; i < tokens; ++i) {
              StoreChunkN(Mul(LoadChunk(At(work.out, i, chunk)), Fill<2>(problem.scale)),
                          out[i] + column, n);
            }
          });
    } else {
      MultiplySum(tokens, ChunksOf(E), StoreScaled<T>{out, E, problem.scale, prefetcher},
                  Term<Left::kStraight>{QueriesFromStart(problem, work), states.run, Padded(D)},
                  Term<Left::kStraight, Triangle::kLower>{work.scores, work.v, tokens});
    }
  } else {
    if (problem.decay == Decay::kFeature) {
      LoadKeyDecays<T>(problem, head, block, work, Nothing(), Nothing());
    } else {
      LoadTokenDecays<T>(problem, head, block, work, false);
    }
    if (problem.OnValues()) LoadValueDecays<T>(problem, head, block, work, Nothing(), Nothing());
  }
  DecayKeys(problem, work.k, work.key.to_end, work.to_end, tokens, work.k_end);
  if (problem.OnValues()) MultiplyMatrix(work.v, work.value.to_end, tokens, E, work.v);
  UpdateBy<T>(problem, KeysToEnd(problem, work), work.v, tokens, work, states, prefetcher);
  AddLogs(problem, work.log, total);
}

// to = start ⊙ the decay + local.
template <typename T>
void Combine(const Problem& problem, const LogDecay& total, const Panels& start,
             const Panels& local, const Panels& to, const Workspace& work) {
  // A growth that is beyond float32 in one factor may still give a finite state: four factors
  // reach from the smallest float32 to the largest.
  constexpr int kFactors = 4;
  const std::int64_t D = Padded(problem.D), E = Padded(problem.E);
  const auto split = [](float* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= 1.0f / kFactors;
  };
  const auto is_large = [](const float* x, std::int64_t n) {
    return std::any_of(x, x + n, [](float y) { return y > kMostGrowth; });
  };
  const bool on_values = problem.OnValues();
  const bool large = is_large(total.key, D) || (on_values && is_large(total.value, E));
  if (large) split(total.key, D);
  if (large && on_values) split(total.value, E);
  MakeUpdateWeights(total.key, problem.D, work.key_keep, work.key_rest);
  if (on_values) MakeUpdateWeights(total.value, problem.E, work.value_keep, work.value_rest);
  Prefetcher prefetcher;
  const UpdateStates update{{to, {}},
                            work.key_keep,
                            work.key_rest,
                            on_values ? work.value_keep : nullptr,
                            on_values ? work.value_rest : nullptr,
                            prefetcher};
  ForEachRow(D, problem.E, [&](std::int64_t row, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const Chunk added = LoadChunk(At(local, row, chunk));
    StoreChunk(LoadChunk(At(start, row, chunk)), At(to, row, chunk));
    for (int i = 0; i < (large ? kFactors - 1 : 0); ++i) update(row, chunk, 0, Fill<2>(0.0f));
    update(row, chunk, 0, added);
  });
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
