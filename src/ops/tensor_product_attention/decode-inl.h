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

  // Calls f(token, address, readable, scales) for each token of the block, with the number of
  // elements from its address to the end of the tokens that follow it in memory.
  template <typename T, class F>
  HWY_INLINE void ForEachToken(const CacheFactor& factor, std::int64_t elements, const F& f) const {
    const bool paged = problem.sequences.page_table != nullptr;
    std::int64_t token = tokens.begin;
    while (token < tokens.end) {
      const std::int64_t page = problem.PageOf(batch, token);
      const std::int64_t slot = paged ? token % problem.page_size : token;
      const std::int64_t end =
          paged ? std::min(tokens.end, token - slot + problem.page_size) : tokens.end;
      const T* at = static_cast<const T*>(factor.data) + page * factor.page + slot * factor.token;
      const float* scales = factor.scales + page * factor.scale_page + slot * factor.scale_token;
      for (; token < end; ++token) {
        const std::int64_t readable =
            factor.token == elements ? (end - token) * elements : elements;
        f(token - tokens.begin, at, readable, scales);
        at += factor.token;
        scales += factor.scale_token;
      }
    }
  }
  // ak or av: rows (token, rank), columns heads.
  HWY_INLINE void LoadA(const CacheFactor& factor, std::int64_t ranks) const {
    WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
      using T = typename decltype(storage)::Type;
      constexpr bool kScaled = std::is_same_v<T, std::int8_t>;
      const std::int64_t before = heads.begin * factor.row;
      ForEachToken<T>(
          factor, problem.H * ranks,
          [&](std::int64_t token, const T* at, std::int64_t readable, const float* scales)
              HWY_ATTR {
                LoadHeads<kScaled>(at + before, factor.row, heads.size(), ranks,
                                   factor.row == ranks ? readable - before : heads.size() * ranks,
                                   kScaled ? *scales : 1.0f, work.row, work.a, token * ranks);
              });
    });
  }
  // bk or bv: rows (token, rank).
  HWY_INLINE void LoadB(const CacheFactor& factor, std::int64_t ranks, std::int64_t columns) const {
    WithStorage(problem.storage, [&](auto storage) HWY_ATTR {
      using T = typename decltype(storage)::Type;
      constexpr bool kScaled = std::is_same_v<T, std::int8_t>;
      ForEachToken<T>(factor, ranks * columns,
                      [&](std::int64_t token, const T* at, std::int64_t, const float* scales)
                          HWY_ATTR {
                            for (std::int64_t r = 0; r < ranks; ++r) {
                              LoadRow<kScaled>(at + r * factor.row, columns,
                                               kScaled ? scales[r * factor.scale_row] : 1.0f,
                                               work.b, token * ranks + r);
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
    if (work.pairs.dot == nullptr && problem.Rq <= kLanes) {
      MultiplyNarrow(work.b, work.bq, rows, Padded(problem.D), work.p);
    } else {
      Product<Left::kStraight>(work.pairs, work.b, work.bq, rows, Padded(problem.D),
                               ChunksOf(problem.Rq), AddToMatrix{work.p, false, nothing});
    }
    Multiply<Left::kStraight>(work.p, work.aq, rows, problem.Rq, chunks,
                              AddToMatrix{work.t, false, nothing});
  } else {
    Product<Left::kStraight>(work.pairs, work.b, work.q, rows, Padded(problem.D), chunks,
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

// Prefetches the tokens from `first` on that are in one page, at most a block of them.
HWY_INLINE void PrefetchTokens(const DecodeProblem& problem, std::int64_t batch, Range heads,
                               std::int64_t first, Prefetcher& prefetcher) {
  if (first >= problem.Length(batch)) return;
  const bool paged = problem.sequences.page_table != nullptr;
  const std::int64_t slot = paged ? first % problem.page_size : first;
  std::int64_t count = std::min(problem.BlockTokens(), problem.Length(batch) - first);
  if (paged) count = std::min(count, problem.page_size - slot);
  const std::int64_t page = problem.PageOf(batch, first);
  const std::int64_t size = problem.storage == Storage::kInt8      ? 1
                            : problem.storage == Storage::kFloat32 ? 4
                                                                   : 2;
  const auto add = [&](const CacheFactor& factor, std::int64_t begin, std::int64_t elements) {
    prefetcher.Add(static_cast<const char*>(factor.data) +
                       (page * factor.page + slot * factor.token + begin) * size,
                   factor.token * size, elements * size, count);
  };
  const auto extent = [](std::int64_t rows, std::int64_t stride, std::int64_t columns) {
    return (rows - 1) * stride + columns;
  };
  add(problem.bk, 0, extent(problem.Rk, problem.bk.row, problem.D));
  add(problem.ak, heads.begin * problem.ak.row, extent(heads.size(), problem.ak.row, problem.Rk));
  add(problem.av, heads.begin * problem.av.row, extent(heads.size(), problem.av.row, problem.Rv));
  add(problem.bv, 0, extent(problem.Rv, problem.bv.row, problem.E));
}

inline void AttendTokens(const DecodeProblem& problem, std::int64_t batch, Range heads,
                         Range tokens, const DecodeWorkspace& work, const Partial& to) {
  const std::int64_t H = heads.size();
  std::fill_n(to.max, Padded(H), kLowest);
  std::fill_n(to.sum, Padded(H), 0.0f);
  const std::int64_t size = problem.BlockTokens();
  bool has_queries = !problem.through_rank;
  for (std::int64_t first = tokens.begin; first < tokens.end; first += size) {
    const DecodeBlock block{
        problem, batch, heads, {first, std::min(tokens.end, first + size)}, work};
    // An infinity in bk meets factors of both signs and makes scores NaN that are infinite.
    if (HWY_UNLIKELY(!WeighBlock(block, problem.through_rank, to.max)) && problem.through_rank) {
      if (!has_queries) FormQueries(problem, batch, heads, work);
      has_queries = true;
      WeighBlock(block, false, to.max);
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
    block.LoadB(problem.bv, problem.Rv, problem.E);
    const std::int64_t rows = block.tokens.size() * problem.Rv;
    Prefetcher prefetcher;
    PrefetchTokens(problem, batch, heads, first + size, prefetcher);
    prefetcher.Spread(PausesOf(H, rows, problem.E));
    Product<Left::kTransposed>(work.pairs, work.a, work.b, H, rows, ChunksOf(problem.E),
                               AddValues{to.out, work.factor, first != tokens.begin, prefetcher});
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
