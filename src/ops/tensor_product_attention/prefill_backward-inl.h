// The gradients of a head's whole queries, keys and values, and of their factors.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_BACKWARD_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "src/ops/tensor_product_attention/prefill-inl.h"
#include "src/ops/tensor_product_attention/prefill_ranks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

HWY_INLINE float SumOf(const Chunk& chunk) {
  return hn::GetLane(hn::SumOfLanes(DF(), hn::Add(chunk.v[0], chunk.v[1])));
}

// The gradient of the output of a block of queries as rows and as columns, the log-sum-exp in
// `max`, and Δ = ⟨d_out, out⟩ in `sum`.
template <typename T>
HWY_INLINE void LoadOutputBlock(const PrefillProblem& problem, const PrefillGradients& gradients,
                                std::int64_t batch, std::int64_t head, Range queries,
                                const PrefillWorkspace& work) {
  const std::int64_t N = queries.size();
  std::fill(work.max + N, work.max + Padded(N), 0.0f);
  std::fill(work.sum + N, work.sum + Padded(N), 0.0f);
  for (std::int64_t i = 0; i < N; ++i) {
    const T* d_out = RowAt<T>(gradients.d_out, batch, head, queries.begin + i);
    const T* out = RowAt<T>(gradients.out, batch, head, queries.begin + i);
    Chunk delta = Fill<2>(0.0f);
    ForEachChunk(problem.E,
                 [&](std::int64_t column, std::size_t n, std::int64_t c) ATTNOPS_INLINE_LAMBDA {
                   const Chunk d = LoadChunkN(d_out + column, n);
                   StoreChunk(d, RowOf(work.d_out, c, i));
                   delta = MulAdd(d, LoadChunkN(out + column, n), delta);
                 });
    work.sum[i] = SumOf(delta);
    work.max[i] = *RowAt<float>(gradients.lse, batch, head, queries.begin + i);
  }
  ZeroRows(work.d_out, N, problem.E);
  TransposePanels(work.d_out, Padded(N), Padded(problem.E), work.d_out_transposed);
}

// p = exp(s − lse) in the place of s, and p·(scale·ds − Δ) in that of ds, for a chunk of queries.
template <typename T>
HWY_INLINE void ScoreGradients(const Panels& s, const Panels& ds, std::int64_t c, std::int64_t keys,
                               const Chunk& lse, const Chunk& delta, float value_scale) {
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  float *scores = RowOf(s, c, 0), *gradients = RowOf(ds, c, 0);
  const auto rows = [&]<int K>() ATTNOPS_INLINE_LAMBDA {
    const auto repeat = [](const Chunk& x) ATTNOPS_INLINE_LAMBDA {
      return MakePack<2 * K>([&](int i) ATTNOPS_INLINE_LAMBDA { return x.v[i % 2]; });
    };
    const Pack<2 * K> p = ExpDifference<kAccuracy>(LoadChunks<K>(scores), repeat(lse));
    StoreChunks<K>(p, scores);
    const Pack<2 * K> shifted =
        MulSub(LoadChunks<K>(gradients), Fill<2 * K>(value_scale), repeat(delta));
    StoreChunks<K>(Mul(p, shifted), gradients);
    scores += K * chunk;
    gradients += K * chunk;
  };
  std::int64_t key = 0;
  // Eight vectors at a time fill the latency of exp.
  for (; key + 4 <= keys; key += 4) rows.template operator()<4>();
  for (; key < keys; ++key) rows.template operator()<1>();
}

// The operands of a pair of blocks: some queries of a larger block that is formed.
struct PairOperands {
  Panels q, q_transposed, d_out, d_out_transposed;
  const float *lse, *delta;

  PairOperands(const PrefillWorkspace& work, std::int64_t row)
      : q(RowsFrom(work.q, row)),
        q_transposed(ColumnsFrom(work.q_transposed, row)),
        d_out(RowsFrom(work.d_out, row)),
        d_out_transposed(ColumnsFrom(work.d_out_transposed, row)),
        lse(work.max + row),
        delta(work.sum + row) {}
};

// The weights of a pair of blocks in s and the gradients of its scores in ds. Chunks of queries on
// the diagonal take no more keys than they see; the others have 0.
template <typename T>
HWY_INLINE void PairGradients(const PrefillProblem& problem, const BlockPair& pair,
                              const PairOperands& from, const PrefillWorkspace& work) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  Prefetcher nothing;
  const auto multiply = [&](std::int64_t c, std::int64_t chunks, std::int64_t keys) HWY_ATTR {
    const auto from_chunk = [c](const Panels& matrix) HWY_ATTR {
      return Panels{RowOf(matrix, c, 0), matrix.panel};
    };
    const Panels s = from_chunk(work.s), ds = from_chunk(work.ds);
    Product<Left::kStraight>(work.pairs, work.k, from_chunk(from.q_transposed), keys,
                             Padded(problem.D), chunks, AddToMatrix{s, false, nothing});
    Product<Left::kStraight>(work.pairs, work.v, from_chunk(from.d_out_transposed), keys,
                             Padded(problem.E), chunks, AddToMatrix{ds, false, nothing});
  };
  const std::int64_t end = ChunksOf(pair.queries.size());
  if (pair.Masked()) {
    for (std::int64_t c = pair.chunk; c < end; ++c) multiply(c, 1, pair.KeysOfChunk(c));
    pair.Mask(work.s);
  } else {
    multiply(pair.chunk, pair.Chunks(), pair.keys.size());
  }
  for (std::int64_t c = pair.chunk; c < end; ++c) {
    const std::int64_t keys = pair.KeysOfChunk(c);
    ScoreGradients<T>(work.s, work.ds, c, keys, LoadChunk(from.lse + c * chunk),
                      LoadChunk(from.delta + c * chunk), problem.value_scale);
    for (const Panels& matrix : {work.s, work.ds}) {
      std::fill_n(RowOf(matrix, c, keys), (pair.keys.size() - keys) * chunk, 0.0f);
    }
  }
}

// Adds the gradients of a pair of blocks to those of its keys and values.
HWY_INLINE void AddKeyGradients(const PrefillProblem& problem, const BlockPair& pair,
                                const PairOperands& from, const PrefillWorkspace& work,
                                const Panels& to_k, const Panels& to_v) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  Prefetcher nothing;
  // Keys on the diagonal take no more chunks of queries than see the first of them.
  const std::int64_t step = pair.Masked() ? chunk : pair.keys.size();
  for (std::int64_t key = 0; key < pair.keys.size(); key += step) {
    const std::int64_t c = std::max<std::int64_t>(pair.hidden + key, 0) / chunk;
    const std::int64_t rows = std::min(step, pair.keys.size() - key), row = c * chunk;
    const std::int64_t depth = Padded(pair.queries.size()) - row;
    if (depth <= 0) break;
    const auto rows_of = [&](const Panels& matrix) HWY_ATTR {
      return Panels{RowOf(matrix, c, key), matrix.panel};
    };
    Product<Left::kStraight>(work.pairs, rows_of(work.s), RowsFrom(from.d_out, row), rows, depth,
                             ChunksOf(problem.E), AddToMatrix{RowsFrom(to_v, key), true, nothing});
    Product<Left::kStraight>(work.pairs, rows_of(work.ds), RowsFrom(from.q, row), rows, depth,
                             ChunksOf(problem.D), AddToMatrix{RowsFrom(to_k, key), true, nothing});
  }
}

// Adds them to those of its queries.
HWY_INLINE void AddQueryGradients(const PrefillProblem& problem, const BlockPair& pair,
                                  const PrefillWorkspace& work, const Panels& to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  Prefetcher nothing;
  const auto multiply = [&](std::int64_t c, std::int64_t rows, std::int64_t keys) HWY_ATTR {
    Product<Left::kTransposed>(work.pairs, Panels{RowOf(work.ds, c, 0), work.ds.panel}, work.k,
                               rows, keys, ChunksOf(problem.D),
                               AddToMatrix{RowsFrom(to, c * chunk), true, nothing});
  };
  pair.ForEachDepth(multiply);
}

template <typename T>
void BackwardHead(const PrefillProblem& problem, const PrefillGradients& gradients,
                  std::int64_t batch, std::int64_t head, const BackwardRanges& ranges,
                  const PrefillWorkspace& work, const HeadGradients& to) {
  const bool of_queries = ranges.queries.size() > 0, of_keys = ranges.keys.size() > 0;
  const Range all_queries = of_keys ? Range{0, problem.N} : ranges.queries;
  const Range all_keys = of_queries ? Range{0, problem.M} : ranges.keys;
  const auto zero = [](const Panels& matrix, std::int64_t rows, std::int64_t columns) HWY_ATTR {
    for (std::int64_t c = 0; c < ChunksOf(columns); ++c) {
      std::fill_n(RowOf(matrix, c, 0), rows * static_cast<std::int64_t>(ChunkSize()), 0.0f);
    }
  };
  if (of_queries) zero(to.q, ranges.queries.size(), problem.D);
  if (of_keys) zero(to.k, ranges.keys.size(), problem.D);
  if (of_keys) zero(to.v, ranges.keys.size(), problem.E);
  for (std::int64_t query = all_queries.begin; query < all_queries.end; query += kQueryBlock) {
    const Range queries{query, std::min(all_queries.end, query + kQueryBlock)};
    const std::int64_t end = std::min(all_keys.end, problem.KeysOf(batch, queries.end - 1));
    if (end <= all_keys.begin) continue;
    FormQueryBlock<T>(problem, batch, head, queries, work);
    LoadOutputBlock<T>(problem, gradients, batch, head, queries, work);
    for (std::int64_t first = all_keys.begin; first < end; first += kKeyBlock) {
      const Range keys{first, std::min(end, first + kKeyBlock)};
      FormRows<T>(KeyFactors(problem, batch, head), keys, work.k);
      FormRows<T>(ValueFactors(problem, batch, head), keys, work.v);
      for (std::int64_t row = 0; row < queries.size(); row += kPairQueries) {
        const BlockPair pair(
            problem, {query + row, std::min(queries.end, query + row + kPairQueries)}, keys);
        if (pair.hidden >= pair.queries.size()) continue;
        const PairOperands operands(work, row);
        PairGradients<T>(problem, pair, operands, work);
        if (of_keys) {
          const std::int64_t key = first - ranges.keys.begin;
          AddKeyGradients(problem, pair, operands, work, RowsFrom(to.k, key), RowsFrom(to.v, key));
        }
        if (of_queries) {
          AddQueryGradients(problem, pair, work,
                            RowsFrom(to.q, query + row - ranges.queries.begin));
        }
      }
    }
  }
}

// The gradients of a and b of one token from those of its whole rows, scaled: that of b is summed
// over the heads in `sums`, (ranks, columns) with whole chunks.
template <typename T>
HWY_INLINE void SplitToken(const HeadFactors& factors, std::int64_t token, bool first,
                           const Panels& from, std::int64_t row, const Output& to_a, float* sums) {
  const T* a = RowAt<T>(factors.a, factors.batch, factors.head, token);
  T* da = RowAt<T>(to_a, factors.batch, factors.head, token);
  for (std::int64_t r = 0; r < factors.ranks; ++r) {
    const T* b = RowAt<T>(factors.b, factors.batch, r, token);
    const Chunk factor = Fill<2>(factors.scale * ToFloat(a[r]));
    float* sum = sums + r * Padded(factors.columns);
    Chunk dot = Fill<2>(0.0f);
    ForEachChunk(factors.columns, [&](std::int64_t column, std::size_t n,
                                      std::int64_t c) ATTNOPS_INLINE_LAMBDA {
      const Chunk d = LoadChunk(RowOf(from, c, row));
      dot = MulAdd(d, LoadChunkN(b + column, n), dot);
      StoreChunk(first ? Mul(d, factor) : MulAdd(d, factor, LoadChunk(sum + column)), sum + column);
    });
    const VF product = hn::Set(DF(), SumOf(dot) * factors.scale);
    StoreChunkN(Chunk{{product, product}}, da + r, 1);
  }
}

// Writes the sums over all heads.
template <typename T>
HWY_INLINE void StoreSums(const HeadFactors& factors, std::int64_t token, const float* sums,
                          const Output& to) {
  for (std::int64_t r = 0; r < factors.ranks; ++r) {
    T* row = RowAt<T>(to, factors.batch, r, token);
    ForEachChunk(factors.columns, [&](std::int64_t column, std::size_t n,
                                      std::int64_t) ATTNOPS_INLINE_LAMBDA {
      StoreChunkN(LoadChunk(sums + r * Padded(factors.columns) + column), row + column, n);
    });
  }
}

// Writes zeros: the gradients of a token that its sequence does not have, whose factors are not
// read.
template <typename T>
HWY_INLINE void ZeroToken(const HeadFactors& factors, std::int64_t token, Range heads,
                          const Output& to_a, const Output& to_b) {
  const auto zero = [](T* row, std::int64_t columns) HWY_ATTR {
    ForEachChunk(columns,
                 [&](std::int64_t column, std::size_t n, std::int64_t)
                     ATTNOPS_INLINE_LAMBDA { StoreChunkN(Fill<2>(0.0f), row + column, n); });
  };
  for (std::int64_t head = heads.begin; head < heads.end; ++head) {
    zero(RowAt<T>(to_a, factors.batch, head, token), factors.ranks);
  }
  for (std::int64_t r = 0; r < factors.ranks; ++r) {
    zero(RowAt<T>(to_b, factors.batch, r, token), factors.columns);
  }
}

// SplitToken for a range of tokens and heads; `whole` chooses the gradient of a head. The sequence
// has `length` tokens.
template <typename T, class Whole>
HWY_INLINE void SplitFactors(HeadFactors factors, std::int64_t all_heads, Range heads,
                             std::int64_t length, Range segment, Range tokens, const Whole& whole,
                             const Output& to_a, const Output& to_b, float* sums) {
  for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
    if (segment.begin + i >= length) {
      ZeroToken<T>(factors, segment.begin + i, heads, to_a, to_b);
      continue;
    }
    float* of_token = sums + i * factors.ranks * Padded(factors.columns);
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
      factors.head = head;
      SplitToken<T>(factors, segment.begin + i, head == 0, whole(head - heads.begin), i, to_a,
                    of_token);
    }
    if (heads.end == all_heads) StoreSums<T>(factors, segment.begin + i, of_token, to_b);
  }
}

template <typename T>
void SplitQueries(const PrefillProblem& problem, const PrefillGradients& gradients,
                  std::int64_t batch, Range heads, Range segment, Range tokens,
                  const HeadGradients* from, const FactorSums& sums) {
  const HeadFactors factors = QueryFactors(problem, batch, 0);
  if (problem.aq.data != nullptr) {
    SplitFactors<T>(
        factors, problem.H, heads, problem.N, segment, tokens,
        [&](std::int64_t i) HWY_ATTR -> const Panels& { return from[i].q; }, gradients.aq,
        gradients.bq, sums.bq);
    return;
  }
  const Chunk scale = Fill<2>(problem.score_scale);
  for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
      T* to = RowAt<T>(gradients.q, batch, head, segment.begin + i);
      ForEachChunk(problem.D, [&](std::int64_t column, std::size_t n,
                                  std::int64_t c) ATTNOPS_INLINE_LAMBDA {
        StoreChunkN(Mul(LoadChunk(RowOf(from[head - heads.begin].q, c, i)), scale), to + column, n);
      });
    }
  }
}

template <typename T>
void SplitKeys(const PrefillProblem& problem, const PrefillGradients& gradients, std::int64_t batch,
               Range heads, Range segment, Range tokens, const HeadGradients* from,
               const FactorSums& sums) {
  SplitFactors<T>(
      KeyFactors(problem, batch, 0), problem.H, heads, problem.Length(batch), segment, tokens,
      [&](std::int64_t i) HWY_ATTR -> const Panels& { return from[i].k; }, gradients.ak,
      gradients.bk, sums.bk);
  HeadFactors values = ValueFactors(problem, batch, 0);
  values.scale = problem.value_scale;
  SplitFactors<T>(
      values, problem.H, heads, problem.Length(batch), segment, tokens,
      [&](std::int64_t i) HWY_ATTR -> const Panels& { return from[i].v; }, gradients.av,
      gradients.bv, sums.bv);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention

namespace attnops::tpa_prefill {
namespace HWY_NAMESPACE {

template <typename T>
Kernels KernelsOfTarget() {
  using namespace tensor_product_attention::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)
  return {static_cast<std::int64_t>(ChunkSize()), AttendQueries<T>, BackwardHead<T>,
          SplitQueries<T>, SplitKeys<T>};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tpa_prefill
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_BACKWARD_INL_H_
