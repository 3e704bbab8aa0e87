// Attention of a block of queries to all keys of a head, both formed from their factors.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "src/gemm/epilogues-inl.h"
#include "src/ops/tensor_product_attention/factors-inl.h"
#include "src/ops/tensor_product_attention/forward-inl.h"
#include "src/rowops/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// The factors of some rows of one head: row t is scale · Σ_r a[t,r]·b[t,r], or b[t] without a.
struct HeadFactors {
  Input a, b;
  std::int64_t batch, head, ranks, columns;
  float scale;
};

HWY_INLINE HeadFactors QueryFactors(const PrefillProblem& problem, std::int64_t batch,
                                    std::int64_t head) {
  const bool full = problem.aq.data == nullptr;
  return {problem.aq,         full ? problem.q : problem.bq, batch, head, problem.Rq, problem.D,
          problem.score_scale};
}
HWY_INLINE HeadFactors KeyFactors(const PrefillProblem& problem, std::int64_t batch,
                                  std::int64_t head) {
  return {problem.ak, problem.bk, batch, head, problem.Rk, problem.D, 1.0f};
}
HWY_INLINE HeadFactors ValueFactors(const PrefillProblem& problem, std::int64_t batch,
                                    std::int64_t head) {
  return {problem.av, problem.bv, batch, head, problem.Rv, problem.E, 1.0f};
}

// One strip of kChunks chunks of row t: Σ_r a[r]·b[r], whose ranks are `stride` elements apart.
template <int kChunks, typename T>
HWY_INLINE void FormStrip(const float* a, const T* b, std::int64_t stride, std::int64_t ranks,
                          const Panels& to, std::int64_t chunk, std::int64_t row) {
  Pack<2 * kChunks> sums = Mul(LoadChunks<kChunks>(b), Fill<2 * kChunks>(a[0]));
  for (std::int64_t r = 1; r < ranks; ++r) {
    sums = MulAdd(LoadChunks<kChunks>(b + r * stride), Fill<2 * kChunks>(a[r]), sums);
  }
  ForEach<kChunks>([&](auto i) ATTNOPS_INLINE_LAMBDA {
    StoreChunk(Chunk{{sums.v[2 * i()], sums.v[2 * i() + 1]}}, RowOf(to, chunk + i(), row));
  });
}

// Forms the rows of these tokens; columns are in T's storage order.
template <typename T>
HWY_NOINLINE void FormRows(const HeadFactors& factors, Range tokens, const Panels& to) {
  constexpr int kStrip = 4;  // chunks whose sums over the ranks are in registers
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t whole = factors.columns / (kStrip * chunk) * kStrip;
  constexpr std::int64_t kRanks = 16;  // whose factors are converted at a time
  float a[kRanks];
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t token = tokens.begin + i;
    if (factors.a.data == nullptr) {
      LoadRow<true>(RowAt<T>(factors.b, factors.batch, factors.head, token), factors.columns,
                    factors.scale, to, i);
      continue;
    }
    const T* from = RowAt<T>(factors.a, factors.batch, factors.head, token);
    const T* b = RowAt<T>(factors.b, factors.batch, 0, token);
    for (std::int64_t r = 0; r < std::min(factors.ranks, kRanks); ++r) {
      a[r] = factors.scale * ToFloat(from[r]);
    }
    if (HWY_LIKELY(factors.ranks <= kRanks)) {
      for (std::int64_t c = 0; c < whole; c += kStrip) {
        FormStrip<kStrip>(a, b + c * chunk, factors.b.head, factors.ranks, to, c, i);
      }
    }
    const std::int64_t formed = factors.ranks <= kRanks ? whole * chunk : 0;
    ForEachChunk(factors.columns - formed,
                 [&](std::int64_t column, std::size_t n, std::int64_t c) ATTNOPS_INLINE_LAMBDA {
                   const T* at = b + formed + column;
                   Chunk sum = Mul(LoadChunkN(at, n), Fill<2>(factors.scale * ToFloat(from[0])));
                   for (std::int64_t r = 1; r < factors.ranks; ++r) {
                     sum = MulAdd(LoadChunkN(at + r * factors.b.head, n),
                                  Fill<2>(factors.scale * ToFloat(from[r])), sum);
                   }
                   StoreChunk(sum, RowOf(to, formed / chunk + c, i));
                 });
  }
}

// Sets the rows from `count` on to 0, up to whole chunks of rows.
HWY_INLINE void ZeroRows(const Panels& matrix, std::int64_t count, std::int64_t columns) {
  for (std::int64_t c = 0; c < ChunksOf(columns); ++c) {
    std::fill_n(RowOf(matrix, c, count),
                (Padded(count) - count) * static_cast<std::int64_t>(ChunkSize()), 0.0f);
  }
}

// The queries of a block as rows and as columns.
template <typename T>
HWY_INLINE void FormQueryBlock(const PrefillProblem& problem, std::int64_t batch, std::int64_t head,
                               Range queries, const PrefillWorkspace& work) {
  FormRows<T>(QueryFactors(problem, batch, head), queries, work.q);
  ZeroRows(work.q, queries.size(), problem.D);
  TransposePanels(work.q, Padded(queries.size()), Padded(problem.D), work.q_transposed);
}

// Blocks of keys and of queries that see some of them.
struct BlockPair {
  Range queries, keys;
  std::int64_t hidden;  // how many queries do not see the first key
  std::int64_t chunk;   // the first chunk of queries of which one sees a key

  // Query i of the block sees key j if i ≥ j + hidden.
  BlockPair(const PrefillProblem& problem, Range block, Range key_block)
      : queries(block),
        keys(key_block),
        hidden(problem.causal ? keys.begin - (problem.M - problem.N) - queries.begin
                              : std::numeric_limits<std::int32_t>::min()),
        chunk(std::max<std::int64_t>(hidden, 0) / static_cast<std::int64_t>(ChunkSize())) {}

  std::int64_t FirstRow() const { return chunk * static_cast<std::int64_t>(ChunkSize()); }
  std::int64_t Rows() const { return queries.size() - FirstRow(); }
  std::int64_t Chunks() const { return ChunksOf(queries.size()) - chunk; }
  // How many keys the queries of a chunk see; the first of them may see fewer.
  std::int64_t KeysOfChunk(std::int64_t c) const {
    const std::int64_t last =
        std::min((c + 1) * static_cast<std::int64_t>(ChunkSize()), queries.size()) - 1;
    return std::min(keys.size(), last - hidden + 1);
  }
  // Whether a query does not see all keys.
  bool Masked() const { return keys.size() - 1 + hidden > 0; }
  // The panels of the queries' columns from the first chunk on.
  Panels Columns(const Panels& matrix) const { return {RowOf(matrix, chunk, 0), matrix.panel}; }

  // Calls f(chunk, rows, keys) for the rows from that chunk of queries on and the keys that they
  // take: all at once or, on the diagonal, chunk by chunk with no more keys than it sees.
  template <class F>
  void ForEachDepth(const F& f) const {
    if (!Masked()) return f(chunk, Rows(), keys.size());
    const auto size = static_cast<std::int64_t>(ChunkSize());
    for (std::int64_t c = chunk; c < ChunksOf(queries.size()); ++c) {
      f(c, std::min(size, queries.size() - c * size), KeysOfChunk(c));
    }
  }

  // Makes the scores that are masked −Inf.
  void Mask(const Panels& s) const {
    for (std::int64_t j = std::max<std::int64_t>(0, 1 - hidden); j < keys.size(); ++j) {
      const std::int64_t end = std::min(j + hidden, queries.size());
      const auto size = static_cast<std::int64_t>(ChunkSize());
      for (std::int64_t i = FirstRow(); i < end; ++i) {
        RowOf(s, i / size, j)[i % size] = -std::numeric_limits<float>::infinity();
      }
    }
  }
};

// exp(s − max) of a chunk of queries in the place of s; returns its sum over the keys.
template <typename T>
HWY_INLINE Chunk ExpScores(const Panels& s, std::int64_t c, std::int64_t keys, const Chunk& max) {
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  Chunk sum = Fill<2>(0.0f);
  std::int64_t key = 0;
  // Eight vectors at a time fill the latency of exp.
  for (; key + 4 <= keys; key += 4) {
    float* row = RowOf(s, c, key);
    const Pack<8> p =
        ExpDifference<kAccuracy>(LoadChunks<4>(row), Join(Join(max, max), Join(max, max)));
    const Pack<4> half = Add(FirstHalf(p), SecondHalf(p));
    sum = Add(sum, Add(FirstHalf(half), SecondHalf(half)));
    StoreChunks<4>(p, row);
  }
  for (; key < keys; ++key) {
    float* row = RowOf(s, c, key);
    const Chunk p = ExpDifference<kAccuracy>(LoadChunk(row), max);
    sum = Add(sum, p);
    StoreChunk(p, row);
  }
  return sum;
}

// Adds weightsᵀ·v of a pair of blocks to the sums of the blocks before times their factors. Chunks
// of queries on the diagonal take no more keys than they see.
HWY_INLINE void MultiplyWeights(const PrefillProblem& problem, const BlockPair& pair,
                                const PrefillWorkspace& work, const Panels& weights,
                                const float* factors, const Panels& out) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  Prefetcher nothing;
  const auto multiply = [&](std::int64_t c, std::int64_t rows, std::int64_t keys) HWY_ATTR {
    Product<Left::kTransposed>(
        work.pairs, Panels{RowOf(weights, c, 0), weights.panel}, work.v, rows, keys,
        ChunksOf(problem.E),
        AddValues{RowsFrom(out, c * chunk), factors + c * chunk, pair.keys.begin > 0, nothing});
  };
  pair.ForEachDepth(multiply);
}

// Writes the output and the log-sum-exp of the queries of a head, which see keys before `end`.
template <typename T>
HWY_INLINE void StoreOutput(const PrefillProblem& problem, std::int64_t batch, std::int64_t head,
                            Range queries, std::int64_t end, const Partial& from) {
  for (std::int64_t i = 0; i < queries.size(); ++i) {
    T* to = RowAt<T>(problem.out, batch, head, queries.begin + i);
    const Chunk factor = Fill<2>(end == 0 ? 0.0f : problem.value_scale / from.sum[i]);
    ForEachChunk(problem.E, [&](std::int64_t column, std::size_t n,
                                std::int64_t c) ATTNOPS_INLINE_LAMBDA {
      const Chunk sums = end == 0 ? Fill<2>(0.0f) : Mul(LoadChunk(RowOf(from.out, c, i)), factor);
      StoreChunkN(sums, to + column, n);
    });
    if (problem.lse.data == nullptr) continue;
    *RowAt<float>(problem.lse, batch, head, queries.begin + i) =
        end == 0 ? -std::numeric_limits<float>::infinity() : from.max[i] + std::log(from.sum[i]);
  }
}

// The weights of a pair of blocks in work.s, from queries that are columns of q_transposed; `max`,
// `sum` and `factor` are those of the queries.
template <typename T>
HWY_INLINE void Weigh(const PrefillProblem& problem, const BlockPair& pair,
                      const PrefillWorkspace& work, const Panels& q_transposed, float* max,
                      float* sum, float* factor) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  Prefetcher nothing;
  const Panels s = pair.Columns(work.s);
  Product<Left::kStraight>(work.pairs, work.k, pair.Columns(q_transposed), pair.keys.size(),
                           Padded(problem.D), pair.Chunks(), AddToMatrix{s, false, nothing});
  pair.Mask(work.s);
  for (std::int64_t c = pair.chunk; c < ChunksOf(pair.queries.size()); ++c) {
    const std::int64_t keys = pair.KeysOfChunk(c), at = c * chunk;
    const Chunk old_max = LoadChunk(max + at);
    Chunk new_max = old_max;
    for (std::int64_t key = 0; key < keys; ++key) {
      new_max = Max(LoadChunk(RowOf(work.s, c, key)), new_max);  // new_max is never a NaN
    }
    const Chunk block_sum = ExpScores<T>(work.s, c, keys, new_max);
    const Chunk change = ExpDifference<Accuracy::kFloat32>(old_max, new_max);
    StoreChunk(change, factor + at);
    StoreChunk(new_max, max + at);
    StoreChunk(MulAdd(LoadChunk(sum + at), change, block_sum), sum + at);
  }
}

// Attention of a block of queries of one head, with formed queries and keys.
template <typename T>
void AttendHead(const PrefillProblem& problem, std::int64_t batch, std::int64_t head, Range queries,
                const PrefillWorkspace& work) {
  const std::int64_t N = queries.size();
  FormQueryBlock<T>(problem, batch, head, queries, work);
  std::fill_n(work.max, Padded(N), kLowest);
  std::fill_n(work.sum, Padded(N), 0.0f);
  const std::int64_t end = problem.KeysOf(batch, queries.end - 1);
  for (std::int64_t first = 0; first < end; first += kKeyBlock) {
    const Range keys{first, std::min(end, first + kKeyBlock)};
    FormRows<T>(KeyFactors(problem, batch, head), keys, work.k);
    FormRows<T>(ValueFactors(problem, batch, head), keys, work.v);
    for (std::int64_t row = 0; row < N; row += kPairQueries) {
      const BlockPair pair(
          problem, {queries.begin + row, std::min(queries.end, queries.begin + row + kPairQueries)},
          keys);
      if (pair.hidden >= pair.queries.size()) continue;
      Weigh<T>(problem, pair, work, ColumnsFrom(work.q_transposed, row), work.max + row,
               work.sum + row, work.factor + row);
      MultiplyWeights(problem, pair, work, work.s, work.factor + row, RowsFrom(work.out, row));
    }
  }
  StoreOutput<T>(problem, batch, head, queries, end, {work.max, work.sum, work.out});
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_INL_H_
