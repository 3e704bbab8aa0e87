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

#include "src/core/dtype_switch.h"
#include "src/gemm/epilogues-inl.h"
#include "src/ops/tensor_product_attention/factors-inl.h"
#include "src/ops/tensor_product_attention/forward-inl.h"
#include "src/ops/tensor_product_attention/merge-inl.h"
#include "src/rowops/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// f(TypeTag<T>()) with the element type of a cache.
template <class F>
HWY_INLINE void WithStorage(Storage storage, const F& f) {
  switch (storage) {
    case Storage::kFloat32:
      return f(TypeTag<float>());
    case Storage::kFloat16:
      return f(TypeTag<Float16>());
    case Storage::kBFloat16:
      return f(TypeTag<BFloat16>());
    case Storage::kInt8:
      return f(TypeTag<std::int8_t>());
  }
}

HWY_INLINE float* ElementOf(const Panels& matrix, std::int64_t row, std::int64_t column) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  return RowOf(matrix, column / chunk, row) + column % chunk;
}
HWY_INLINE void FillZero(const Panels& matrix, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t c = 0; c < ChunksOf(columns); ++c) {
    std::fill_n(RowOf(matrix, c, 0), rows * static_cast<std::int64_t>(ChunkSize()), 0.0f);
  }
}

// q = aq·bq or the given queries, transposed: (D, heads), D in the cache's storage order.
inline void FormQueries(const DecodeProblem& problem, std::int64_t batch, Range heads,
                        const DecodeWorkspace& work) {
  FillZero(work.q, Padded(problem.D), heads.size());
  WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
    using S = typename decltype(storage)::Type;
    WithType(problem.dtype, [&](auto tag) HWY_ATTR {
      using T = typename decltype(tag)::Type;
      for (std::int64_t h = 0; h < heads.size(); ++h) {
        for (std::int64_t i = 0; i < problem.D; ++i) {
          float sum = 0;
          if (problem.aq.data == nullptr) {
            sum = ToFloat(RowAt<T>(problem.q, batch, heads.begin + h, 0)[i]) * problem.score_scale;
          } else {
            const T* aq = RowAt<T>(problem.aq, batch, heads.begin + h, 0);
            for (std::int64_t r = 0; r < problem.Rq; ++r) {
              sum += ToFloat(aq[r]) * problem.score_scale *
                     ToFloat(RowAt<T>(problem.bq, batch, r, 0)[i]);
            }
          }
          const auto place = StorageOffset<S>(static_cast<std::size_t>(i));
          *ElementOf(work.q, static_cast<std::int64_t>(place), h) = sum;
        }
      }
    });
  });
}

inline void PrepareDecode(const DecodeProblem& problem, std::int64_t batch, Range heads,
                          const DecodeWorkspace& work) {
  if (!problem.through_rank) return FormQueries(problem, batch, heads, work);
  FillZero(work.aq, problem.Rq, heads.size());
  FillZero(work.bq, Padded(problem.D), problem.Rq);
  WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
    using S = typename decltype(storage)::Type;
    WithType(problem.dtype, [&](auto tag) HWY_ATTR {
      using T = typename decltype(tag)::Type;
      for (std::int64_t r = 0; r < problem.Rq; ++r) {
        for (std::int64_t h = 0; h < heads.size(); ++h) {
          *ElementOf(work.aq, r, h) =
              problem.score_scale * ToFloat(RowAt<T>(problem.aq, batch, heads.begin + h, 0)[r]);
        }
        const T* bq = RowAt<T>(problem.bq, batch, r, 0);
        for (std::int64_t i = 0; i < problem.D; ++i) {
          const auto place = StorageOffset<S>(static_cast<std::size_t>(i));
          *ElementOf(work.bq, static_cast<std::int64_t>(place), r) = ToFloat(bq[i]);
        }
      }
    });
  });
}

// A block of tokens of some heads.
struct DecodeBlock {
  const DecodeProblem& problem;
  std::int64_t batch;
  Range heads, tokens;
  const DecodeWorkspace& work;

  // Calls f(token, address, scales) for each token of the block.
  template <typename T, class F>
  HWY_INLINE void ForEachToken(const CacheFactor& factor, const F& f) const {
    const std::int64_t size = problem.page_size;
    std::int64_t token = tokens.begin;
    while (token < tokens.end) {
      const std::int64_t page = problem.PageOf(batch, token);
      const std::int64_t slot = problem.sequences.page_table == nullptr ? token : token % size;
      const std::int64_t end =
          std::min(tokens.end, problem.sequences.page_table == nullptr ? tokens.end
                                                                       : token - slot + size);
      const T* at = static_cast<const T*>(factor.data) + page * factor.page + slot * factor.token;
      const float* scales = factor.scales == nullptr
                                ? nullptr
                                : factor.scales + page * factor.scale_page +
                                      slot * factor.scale_token;
      for (; token < end; ++token) {
        f(token - tokens.begin, at, scales);
        at += factor.token;
        if (scales != nullptr) scales += factor.scale_token;
      }
    }
  }
  // ak or av: rows (token, rank), columns heads.
  HWY_INLINE void LoadA(const CacheFactor& factor, std::int64_t ranks) const {
    WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
      using T = typename decltype(storage)::Type;
      ForEachToken<T>(factor, [&](std::int64_t token, const T* at, const float* scales) HWY_ATTR {
        LoadHeads(at + heads.begin * factor.row, factor.row, heads.size(), ranks,
                  scales == nullptr ? 1.0f : *scales, work.row, work.a, token * ranks);
      });
    });
  }
  // bk or bv: rows (token, rank).
  HWY_INLINE void LoadB(const CacheFactor& factor, std::int64_t ranks, std::int64_t columns) const {
    WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
      using T = typename decltype(storage)::Type;
      ForEachToken<T>(factor, [&](std::int64_t token, const T* at, const float* scales) HWY_ATTR {
        for (std::int64_t r = 0; r < ranks; ++r) {
          LoadRow(at + r * factor.row, columns,
                  scales == nullptr ? 1.0f : scales[r * factor.scale_row], work.b,
                  token * ranks + r);
        }
      });
    });
  }
};

// t = q·bkᵀ, transposed, in the given order.
HWY_INLINE void MultiplyDecodeKeys(const DecodeBlock& block, bool through_rank) {
  const DecodeProblem& problem = block.problem;
  const DecodeWorkspace& work = block.work;
  const std::int64_t rows = block.tokens.size() * problem.Rk;
  const std::int64_t chunks = ChunksOf(block.heads.size());
  Prefetcher nothing;
  if (through_rank) {
    Product<Left::kStraight>(work.pairs, work.b, work.bq, rows, Padded(problem.D),
                             ChunksOf(problem.Rq), AddToMatrix{work.p, false, nothing});
    Multiply<Left::kStraight>(work.p, work.aq, rows, problem.Rq, chunks,
                              AddToMatrix{work.t, false, nothing});
  } else {
    Product<Left::kStraight>(work.pairs, work.b, work.q, rows, Padded(problem.D), chunks,
                             AddToMatrix{work.t, false, nothing});
  }
}

// s = Σ ak·t over the ranks, for all heads. Returns whether a score is NaN.
HWY_INLINE bool ScoreTokens(const DecodeBlock& block) {
  const DecodeWorkspace& work = block.work;
  const std::int64_t ranks = block.problem.Rk;
  bool all_numbers = true;
  for (std::int64_t c = 0; c < ChunksOf(block.heads.size()); ++c) {
    Chunk check = Fill<2>(0.0f);
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
      check = MulAdd(sum, Fill<2>(0.0f), check);  // NaN if one of them is infinite or NaN
    }
    all_numbers = all_numbers && AllAtMost(check, check);
  }
  return !all_numbers;
}

// The weights w = exp(s − max)·av of a chunk of heads, in the place of av, and Σ exp(s − max).
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
    const Pack<8> p = ExpDifference<Accuracy::kFloat32>(
        LoadChunks<4>(RowOf(work.s, c, token)), Join(Join(max, max), Join(max, max)));
    const Pack<4> half = Add(FirstHalf(p), SecondHalf(p));
    sum = Add(sum, Add(FirstHalf(half), SecondHalf(half)));
    ForEach<4>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      weigh(token + i(), Chunk{{p.v[2 * i()], p.v[2 * i() + 1]}});
    });
  }
  for (; token < block.tokens.size(); ++token) {
    const Chunk p = ExpDifference<Accuracy::kFloat32>(LoadChunk(RowOf(work.s, c, token)), max);
    sum = Add(sum, p);
    weigh(token, p);
  }
  return sum;
}

inline void AttendTokens(const DecodeProblem& problem, std::int64_t batch, Range heads,
                         Range tokens, const DecodeWorkspace& work, const Partial& to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t H = heads.size();
  std::fill_n(to.max, Padded(H), kLowest);
  std::fill_n(to.sum, Padded(H), 0.0f);
  const std::int64_t size = problem.BlockTokens();
  bool has_queries = !problem.through_rank;
  Prefetcher nothing;
  for (std::int64_t first = tokens.begin; first < tokens.end; first += size) {
    const DecodeBlock block{
        problem, batch, heads, {first, std::min(tokens.end, first + size)}, work};
    block.LoadB(problem.bk, problem.Rk, problem.D);
    block.LoadA(problem.ak, problem.Rk);
    MultiplyDecodeKeys(block, problem.through_rank);
    // An infinity in bk meets factors of both signs and makes scores NaN that are infinite.
    if (HWY_UNLIKELY(ScoreTokens(block)) && problem.through_rank) {
      if (!has_queries) FormQueries(problem, batch, heads, work);
      has_queries = true;
      MultiplyDecodeKeys(block, false);
      ScoreTokens(block);
    }
    block.LoadB(problem.bv, problem.Rv, problem.E);
    block.LoadA(problem.av, problem.Rv);
    for (std::int64_t c = 0; c < ChunksOf(H); ++c) {
      float* max = to.max + c * chunk;
      float* sum = to.sum + c * chunk;
      const Chunk old_max = LoadChunk(max);
      Chunk new_max = old_max;
      for (std::int64_t token = 0; token < block.tokens.size(); ++token) {
        new_max = Max(LoadChunk(RowOf(work.s, c, token)), new_max);
      }
      const Chunk block_sum = WeighTokens(block, c, new_max);
      const Chunk factor = ExpDifference<Accuracy::kFloat32>(old_max, new_max);
      StoreChunk(factor, work.factor + c * chunk);
      StoreChunk(new_max, max);
      StoreChunk(MulAdd(LoadChunk(sum), factor, block_sum), sum);
    }
    Product<Left::kTransposed>(work.pairs, work.a, work.b, H, block.tokens.size() * problem.Rv,
                               ChunksOf(problem.E),
                               AddValues{to.out, work.factor, first != tokens.begin, nothing});
  }
}

inline void FinishDecode(const DecodeProblem& problem, std::int64_t batch, Range heads, Range rows,
                         float* row, const Partial& from) {
  WithType(problem.dtype, [&](auto tag) HWY_ATTR {
    using T = typename decltype(tag)::Type;
    const bool empty = problem.Length(batch) == 0;
    for (std::int64_t h = rows.begin; h < rows.end; ++h) {
      const float factor = problem.value_scale / from.sum[h];
      for (std::int64_t i = 0; i < problem.E; ++i) {
        std::size_t place = 0;
        WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
          place = StorageOffset<typename decltype(storage)::Type>(static_cast<std::size_t>(i));
        });
        row[i] = empty ? 0.0f : *ElementOf(from.out, h, static_cast<std::int64_t>(place)) * factor;
      }
      T* to = RowAt<T>(problem.out, batch, heads.begin + h, 0);
      ForEachChunk(problem.E, [&](std::int64_t column, std::size_t n,
                                  std::int64_t) ATTNOPS_INLINE_LAMBDA {
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
