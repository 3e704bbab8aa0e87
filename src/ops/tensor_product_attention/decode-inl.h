// The kernels of a decoding step with ranks.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "src/core/dtype_switch.h"
#include "src/gemm/epilogues-inl.h"
#include "src/ops/tensor_product_attention/decode_block-inl.h"
#include "src/ops/tensor_product_attention/decode_pairs-inl.h"
#include "src/ops/tensor_product_attention/factors-inl.h"
#include "src/ops/tensor_product_attention/forward-inl.h"
#include "src/ops/tensor_product_attention/merge-inl.h"
#include "src/rowops/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// t = q·bkᵀ, transposed, in the given order.
HWY_INLINE void MultiplyDecodeKeys(const DecodeBlock& block, bool through_rank) {
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  const std::int64_t rows = block.tokens.size() * problem.Rk;
  const std::int64_t chunks = ChunksOf(block.heads.size());
  Prefetcher nothing;
  if (through_rank) {
    if (work.products.dot == nullptr && problem.Rq <= kLanes) {
      MultiplyNarrow(work.b, work.bq, rows, Padded(problem.D), work.p);
    } else {
      Product<Left::kStraight>(work.products, work.b, work.bq, rows, Padded(problem.D),
                               ChunksOf(problem.Rq), AddToMatrix{work.p, false, nothing});
    }
    Multiply<Left::kStraight>(work.p, work.aq, rows, problem.Rq, chunks,
                              AddToMatrix{work.t, false, nothing});
  } else {
    Product<Left::kStraight>(work.products, work.b, work.q, rows, Padded(problem.D), chunks,
                             AddToMatrix{work.t, false, nothing});
  }
}

// s = Σ ak·t over the ranks, for all heads, and the larger of `max` and the largest score in
// `new_max`.
HWY_INLINE void ScoreTokens(const DecodeBlock& block, const float* max, float* new_max) {
  const DecodeWorkspace& work = block.work;
  const std::int64_t ranks = block.problem.Rk;
  for (std::int64_t c = 0; c < ChunksOf(block.heads.size()); ++c) {
    const std::size_t place = static_cast<std::size_t>(c) * ChunkSize();
    Chunk most = LoadChunk(max + place);
    for (std::int64_t token = 0; token < block.tokens.size(); ++token) {
      const float* t = RowOf(work.t, c, token * ranks);
      const float* a = RowOf(work.a, c, token * ranks);
      Chunk sum = Mul(LoadChunk(t), LoadChunk(a));
      for (std::int64_t r = 1; r < ranks; ++r) {
        t += ChunkSize();
        a += ChunkSize();
        sum = MulAdd(LoadChunk(t), LoadChunk(a), sum);
      }
      StoreChunk(sum, RowOf(work.s, c, token));
      most = Max(sum, most);  // never a NaN where there is a head
    }
    StoreChunk(most, new_max + place);
  }
}

// The weights w = exp(s − max)·av of a chunk of heads, in the place of av, and Σ exp(s − max).
template <Accuracy kAccuracy>
HWY_INLINE Chunk WeighTokens(const DecodeBlock& block, std::int64_t c, const Chunk& max) {
  const DecodeWorkspace& work = block.work;
  const std::int64_t ranks = block.problem.Rv;
  Chunk sum = Fill<2>(0.0f);
  const auto weigh = [&](std::int64_t token, const Chunk& p) ATTNOPS_INLINE_LAMBDA {
    float* a = RowOf(work.a, c, token * ranks);
    for (std::int64_t r = 0; r < ranks; ++r, a += ChunkSize()) StoreChunk(Mul(LoadChunk(a), p), a);
  };
  std::int64_t token = 0;
  // Eight vectors at a time fill the latency of exp.
  for (; token + 4 <= block.tokens.size(); token += 4) {
    const Pack<8> p = ExpDifference<kAccuracy>(LoadChunks<4>(RowOf(work.s, c, token)),
                                               Join(Join(max, max), Join(max, max)));
    const Pack<4> half = Add(FirstHalf(p), SecondHalf(p));
    sum = Add(sum, Add(FirstHalf(half), SecondHalf(half)));
    ForEach<4>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      weigh(token + i(), Chunk{{p.v[2 * i()], p.v[2 * i() + 1]}});
    });
  }
  for (; token < block.tokens.size(); ++token) {
    const Chunk p = ExpDifference<kAccuracy>(LoadChunk(RowOf(work.s, c, token)), max);
    sum = Add(sum, p);
    weigh(token, p);
  }
  return sum;
}

// The scores and weights of a block: new maxima and the sums of the block in the workspace. Returns
// whether all of them are numbers.
HWY_INLINE bool WeighBlock(const DecodeBlock& block, bool through_rank, const float* max) {
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  block.LoadB(problem.bk, problem.Rk, problem.D);
  block.LoadA(problem.ak, problem.Rk);
  MultiplyDecodeKeys(block, through_rank);
  ScoreTokens(block, max, work.max);
  block.LoadA(problem.av, problem.Rv);
  for (std::int64_t c = 0; c < ChunksOf(block.heads.size()); ++c) {
    const std::size_t place = static_cast<std::size_t>(c) * ChunkSize();
    const Chunk new_max = LoadChunk(work.max + place);
    StoreChunk(problem.storage == Storage::kFloat32
                   ? WeighTokens<Accuracy::kFloat32>(block, c, new_max)
                   : WeighTokens<Accuracy::k16Bit>(block, c, new_max),
               work.sum + place);
  }
  bool numbers = true;
  for (std::int64_t h = 0; h < block.heads.size(); ++h) {
    numbers = numbers && !std::isnan(work.sum[h]);
  }
  return numbers;
}

// Decoding with matrices in float32, of any ranks.
struct AnyRanksForm {
  // What the products of a sequence take, beside aq.
  static void Prepare(const DecodeProblem& problem, std::int64_t batch, Range heads,
                      bool through_rank, const DecodeWorkspace& work) {
    if (!through_rank) return FormQueries(problem, batch, heads, work);
    LoadQueryFactors(problem, batch, heads, problem.score_scale, work);
    LoadQueryRows(problem, batch, work);
  }
  // The weights of a block; new maxima and the sums of the block in the workspace. Returns whether
  // all of them are numbers.
  static bool Weigh(const DecodeBlock& block, bool through_rank, const float* max) {
    return WeighBlock(block, through_rank, max);
  }
  // weightsᵀ·bv.
  template <class Epilogue>
  static void MultiplyValues(const DecodeBlock& block, const Epilogue& epilogue) {
    const DecodeProblem& problem = block.problem;
    const DecodeWorkspace& work = block.work;
    block.LoadB(problem.bv, problem.Rv, problem.E);
    Product<Left::kTransposed>(work.products, work.a, work.b, block.heads.size(),
                               block.tokens.size() * problem.Rv, ChunksOf(problem.E), epilogue);
  }
};

// f(form) with the way that a problem is decoded.
template <class F>
HWY_INLINE void WithForm([[maybe_unused]] const DecodeProblem& problem, const F& f) {
#if !ATTNOPS_ONE_LANE
  if (problem.InRankPairs()) return f(TwoRankForm());
#endif
  f(AnyRanksForm());
}

inline void PrepareDecode(const DecodeProblem& problem, std::int64_t batch, Range heads,
                          const DecodeWorkspace& work) {
  WithForm(problem, [&](auto form) HWY_ATTR {
    form.Prepare(problem, batch, heads, problem.through_rank, work);
  });
}

template <class Form>
void AttendTokensAs(const DecodeProblem& problem, std::int64_t batch, Range heads, Range tokens,
                    const DecodeWorkspace& work, const Partial& to) {
  const std::int64_t H = heads.size();
  std::fill_n(to.max, Padded(H), kLowest);
  std::fill_n(to.sum, Padded(H), 0.0f);
  const std::int64_t size = problem.BlockTokens();
  bool has_queries = !problem.through_rank;
  for (std::int64_t first = tokens.begin; first < tokens.end; first += size) {
    const DecodeBlock block{
        problem, batch, heads, {first, std::min(tokens.end, first + size)}, work};
    // An infinity in bk meets factors of both signs and makes scores NaN that are infinite.
    if (HWY_UNLIKELY(!Form::Weigh(block, problem.through_rank, to.max)) && problem.through_rank) {
      if (!has_queries) Form::Prepare(problem, batch, heads, false, work);
      has_queries = true;
      Form::Weigh(block, false, to.max);
    }
    for (std::int64_t c = 0; c < ChunksOf(H); ++c) {
      const std::size_t place = static_cast<std::size_t>(c) * ChunkSize();
      const Chunk new_max = LoadChunk(work.max + place);
      const Chunk factor = ExpDifference<Accuracy::kFloat32>(LoadChunk(to.max + place), new_max);
      StoreChunk(factor, work.factor + place);
      StoreChunk(new_max, to.max + place);
      StoreChunk(MulAdd(LoadChunk(to.sum + place), factor, LoadChunk(work.sum + place)),
                 to.sum + place);
    }
    Prefetcher prefetcher;
    PrefetchTokens(problem, batch, heads, first + size, prefetcher);
    const std::int64_t rows = block.tokens.size() * problem.Rv;
    prefetcher.Spread(PausesOf(H, problem.dot == nullptr ? rows : DivideUp(rows, 2), problem.E));
    Form::MultiplyValues(block, AddValues{to.out, work.factor, first != tokens.begin, prefetcher});
  }
}

inline void AttendTokens(const DecodeProblem& problem, std::int64_t batch, Range heads,
                         Range tokens, const DecodeWorkspace& work, const Partial& to) {
  WithForm(problem, [&](auto form) HWY_ATTR {
    AttendTokensAs<decltype(form)>(problem, batch, heads, tokens, work, to);
  });
}

inline void FinishDecode(const DecodeProblem& problem, std::int64_t batch, Range heads, Range rows,
                         float* row, const Partial& from) {
  WithType(problem.dtype, [&](auto tag) HWY_ATTR {
    using T = typename decltype(tag)::Type;
    const bool empty = problem.Length(batch) == 0;
    for (std::int64_t h = rows.begin; h < rows.end; ++h) {
      const float factor = problem.value_scale / from.sum[h];
      if (empty) std::fill_n(row, problem.E, 0.0f);
      WithFeatureOrder(problem, [&](auto storage) HWY_ATTR {
        using S = typename decltype(storage)::Type;
        if (empty) return;
        ForEachChunk(problem.E, [&](std::int64_t column, std::size_t n,
                                    std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
          StoreFloatsFrom<S>(Mul(LoadChunk(RowOf(from.out, chunk, h)), Fill<2>(factor)),
                             row + column, n);
        });
      });
      T* to = RowAt<T>(problem.out, batch, heads.begin + h, 0);
      ForEachChunk(problem.E,
                   [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                     StoreChunkN(LoadFloatsAs<T>(row + column, n), to + column, n);
                   });
      if (problem.lse.data != nullptr) {
        *RowAt<float>(problem.lse, batch, heads.begin + h, 0) =
            empty ? -std::numeric_limits<float>::infinity() : from.max[h] + std::log(from.sum[h]);
      }
    }
  });
}

inline DecodeKernels DecodeKernelsOfTarget() {
  return {static_cast<std::int64_t>(ChunkSize()), PrepareDecode, AttendTokens, Merge<float>,
          FinishDecode};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_INL_H_
