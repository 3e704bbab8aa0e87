// A decoding step with ranks: what is prepared for a sequence, and blocks of its tokens.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_BLOCK_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_BLOCK_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_BLOCK_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "src/core/dtype_switch.h"
#include "src/core/numeric.h"
#include "src/gemm/prefetch.h"
#include "src/ops/tensor_product_attention/factors-inl.h"

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

// The same for the order of features in matrices. Where ranks are pairs, int8 becomes bfloat16.
template <class F>
HWY_INLINE void WithFeatureOrder(const DecodeProblem& problem, const F& f) {
  WithStorage(problem.InRankPairs() ? Storage::kBFloat16 : problem.storage, f);
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

// q = aq·bq or the given queries, transposed: (D, heads), with D in the order of features.
inline void FormQueries(const DecodeProblem& problem, std::int64_t batch, Range heads,
                        const DecodeWorkspace& work) {
  FillZero(work.q, Padded(problem.D), heads.size());
  WithFeatureOrder(problem, [&](auto storage) HWY_ATTR {
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

// aq as a matrix, times `scale`: (R_q, heads).
inline void LoadQueryFactors(const DecodeProblem& problem, std::int64_t batch, Range heads,
                             float scale, const DecodeWorkspace& work) {
  FillZero(work.aq, problem.Rq, heads.size());
  WithType(problem.dtype, [&](auto tag) HWY_ATTR {
    using T = typename decltype(tag)::Type;
    for (std::int64_t h = 0; h < heads.size(); ++h) {
      const T* aq = RowAt<T>(problem.aq, batch, heads.begin + h, 0);
      for (std::int64_t r = 0; r < problem.Rq; ++r) {
        *ElementOf(work.aq, r, h) = scale * ToFloat(aq[r]);
      }
    }
  });
}
// bq as a matrix: (D, R_q), with D in the order of features.
inline void LoadQueryRows(const DecodeProblem& problem, std::int64_t batch,
                          const DecodeWorkspace& work) {
  FillZero(work.bq, Padded(problem.D), problem.Rq);
  WithFeatureOrder(problem, [&](auto storage) HWY_ATTR {
    using S = typename decltype(storage)::Type;
    WithType(problem.dtype, [&](auto tag) HWY_ATTR {
      using T = typename decltype(tag)::Type;
      for (std::int64_t r = 0; r < problem.Rq; ++r) {
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

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_DECODE_BLOCK_INL_H_
