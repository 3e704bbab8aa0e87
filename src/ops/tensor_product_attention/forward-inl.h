// The weighted values of a range of tokens, not yet divided by the softmax's sum.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "src/gemm/multiply-inl.h"
#include "src/ops/tensor_product_attention/scores-inl.h"
#include "src/rowops/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// Turns the scores of chunk c of the heads into weights p·av, p = exp(s−max). Returns Σp.
template <typename T>
HWY_INLINE Chunk Weigh(const Block<T>& block, std::int64_t c, const Chunk& max) {
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  const auto& [problem, batch, heads, tokens, work] = block;
  Chunk sum = Fill<2>(0.0f);
  std::int64_t token = 0;
  // Eight vectors at a time fill the latency of exp.
  for (; token + 4 <= tokens.size(); token += 4) {
    float* row = RowOf(work.s, c, token);
    const Pack<8> p =
        ExpDifference<kAccuracy>(LoadChunks<4>(row), Join(Join(max, max), Join(max, max)));
    const Pack<4> half = Add(FirstHalf(p), SecondHalf(p));
    sum = Add(sum, Add(FirstHalf(half), SecondHalf(half)));
    const Pack<4> av01 =
        Join(block.LoadFactors(problem.av, token, c), block.LoadFactors(problem.av, token + 1, c));
    const Pack<4> av23 = Join(block.LoadFactors(problem.av, token + 2, c),
                              block.LoadFactors(problem.av, token + 3, c));
    StoreChunks<4>(Mul(p, Join(av01, av23)), row);
  }
  for (; token < tokens.size(); ++token) {
    float* row = RowOf(work.s, c, token);
    const Chunk p = ExpDifference<kAccuracy>(LoadChunk(row), max);
    sum = Add(sum, p);
    StoreChunk(Mul(p, block.LoadFactors(problem.av, token, c)), row);
  }
  return sum;
}

// out = factor·out + sums, or without the first term if nothing was added before.
struct AddValues {
  Panels out;
  const float* factors;
  bool before;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = RowOf(out, chunk, row);
    const Chunk factor = Fill<2>(factors[row]);
    StoreChunk(before ? MulAdd(LoadChunk(at), factor, sums) : sums, at);
  }
};

// Adds weightsᵀ·bv to `out`.
template <typename T>
HWY_INLINE void MultiplyValues(const Block<T>& block, bool before, const Panels& out,
                               Prefetcher& prefetcher) {
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  const std::int64_t& batch = block.batch;
  const Range &heads = block.heads, &tokens = block.tokens;
#if !ATTNOPS_ONE_LANE
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (problem.value_dot != nullptr) {
      PairTokens(work.s, tokens.size(), ChunksOf(heads.size()), work.s_pairs);
      PairTokens(RowOf<T>(problem.bv, batch, tokens.begin), problem.bv.token, tokens.size(),
                 problem.E, work.v_pairs);
      ForEachPlaces<T>(heads.size(), [&](std::int64_t place, std::int64_t n) HWY_ATTR {
        MultiplyPairs<Left::kTransposed>(
            problem.value_dot, PairLeft::OfPanels(ColumnsFrom(work.s_pairs, place)), work.v_pairs,
            n, DivideUp(tokens.size(), 2), ChunksOf(problem.E),
            AddValues{RowsFrom(out, place), work.factor + place, before, prefetcher});
      });
      return;
    }
  }
#endif
  ForEachPlaces<T>(heads.size(), [&](std::int64_t place, std::int64_t n) HWY_ATTR {
    MultiplyRows<Left::kTransposed>(
        ColumnsFrom(work.s, place), RowOf<T>(problem.bv, batch, tokens.begin), problem.bv.token,
        work.right, n, tokens.size(), problem.E,
        AddValues{RowsFrom(out, place), work.factor + place, before, prefetcher});
  });
}

// Prefetches what the block from token `first` on reads, if there is one.
template <typename T>
HWY_INLINE void PrefetchBlock(const Problem& problem, std::int64_t batch, Range heads,
                              std::int64_t first, Prefetcher& prefetcher) {
  if (first >= problem.M) return;
  constexpr std::int64_t kSize = sizeof(T);
  const auto fetch = [&](const Input& tensor, std::int64_t column, std::int64_t columns) {
    prefetcher.Add(RowOf<T>(tensor, batch, first) + column, tensor.token * kSize, columns * kSize,
                   std::min(kBlockTokens, problem.M - first));
  };
  fetch(problem.bk, 0, problem.D);
  fetch(problem.ak, heads.begin, heads.size());
  fetch(problem.av, heads.begin, heads.size());
  fetch(problem.bv, 0, problem.E);
}

template <typename T>
void Attend(const Problem& problem, std::int64_t batch, Range heads, Range tokens,
            const Workspace& work, const Partial& to) {
  const std::int64_t H = heads.size(), D = problem.D, E = problem.E;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  std::fill_n(to.max, Padded(H), kLowest);
  std::fill_n(to.sum, Padded(H), 0.0f);
  if (!problem.through_rank) {
    // Places without a head are not computed.
    for (std::int64_t c = 0; c < ChunksOf(kBlockTokens); ++c) {
      std::fill_n(RowOf(work.t, c, 0), Padded(H) * chunk, 0.0f);
    }
  }
  for (std::int64_t first = tokens.begin; first < tokens.end; first += kBlockTokens) {
    const std::int64_t count = std::min(kBlockTokens, tokens.end - first);
    const Block<T> block{problem, batch, heads, {first, first + count}, work};
    Prefetcher prefetcher;
    PrefetchBlock<T>(problem, batch, heads, first + kBlockTokens, prefetcher);
    prefetcher.Spread((problem.HasRankLanes(kLanes)
                           ? DivideUp(count, DotTileArguments::kMaxNarrowRows) *
                                 DivideUp(D / 2, DotTileArguments::kSteps)
                           : PausesOf(problem.through_rank ? problem.R : H,
                                      Padded(D) / (problem.score_dot != nullptr ? 2 : 1), count)) +
                      PausesOf(H, DivideUp(count, problem.value_dot != nullptr ? 2 : 1), E));

    MultiplyKeys(block, prefetcher);
    for (std::int64_t c = 0; c < ChunksOf(H); ++c) {
      float* max = to.max + c * chunk;
      float* sum = to.sum + c * chunk;
      const Chunk old_max = LoadChunk(max);
      Chunk new_max = problem.through_rank ? ScoresThroughRank(block, c, old_max)
                                           : ScoresOfQueries(block, c, old_max);
      Chunk block_sum = Weigh(block, c, new_max);
      // A NaN among the scores makes their sum NaN. The weights have overwritten the scores.
      if (problem.through_rank && HWY_UNLIKELY(!AllAtMost(block_sum, block_sum))) {
        ScoresThroughRank(block, c, old_max);
        new_max = ScoresWithoutRank(block, c, old_max);
        block_sum = Weigh(block, c, new_max);
      }
      const Chunk factor = ExpDifference<Accuracy::kFloat32>(old_max, new_max);
      StoreChunk(factor, work.factor + c * chunk);
      StoreChunk(new_max, max);
      StoreChunk(MulAdd(LoadChunk(sum), factor, block_sum), sum);
    }

    MultiplyValues(block, first != tokens.begin, to.out, prefetcher);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FORWARD_INL_H_
