// What the forward and the backward share: turning the pairs of rows, and softmax around it.

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "src/ops/lrpe_rotate/kernels.h"
#include "src/simd/io-inl.h"
#include "src/simd/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// K chunks of pairs: those of the first half of a row before those of the second.
template <int K = 1>
using Pairs = Pack<4 * K>;

// Chunks that are worked on at a time where registers allow it: eight vectors hide the
// latency of a multiply-add, four do not.
#undef ATTNOPS_CHUNKS
#if HWY_TARGET == HWY_AVX3
#define ATTNOPS_CHUNKS 2
#else
#define ATTNOPS_CHUNKS 1
#endif

// What the rows of a call have in common.
struct RowShape {
  std::size_t half;     // pairs
  std::size_t rotated;  // those that turn
  std::size_t width;    // of half a row in tables: padded to chunks

  RowShape(const Problem& problem, const AngleTable& table)
      : half(static_cast<std::size_t>(problem.D / 2)),
        rotated(static_cast<std::size_t>(problem.rotated)),
        width(static_cast<std::size_t>(table.width)) {}
};

// The n pairs from j on of a row of the tensor; K > 1 only for n of whole chunks.
template <int K, typename T>
HWY_INLINE Pairs<K> LoadPairs(const RowShape& shape, const T* row, std::size_t j, std::size_t n) {
  if constexpr (K == 1) {
    return Join(LoadChunkN(row + j, n), LoadChunkN(row + shape.half + j, n));
  } else {
    return Join(LoadChunks<K>(row + j), LoadChunks<K>(row + shape.half + j));
  }
}
// The same of a row of a table.
template <int K>
HWY_INLINE Pairs<K> LoadTable(const RowShape& shape, const float* row, std::size_t j) {
  return Join(LoadChunks<K>(row + j), LoadChunks<K>(row + shape.width + j));
}
template <int K>
HWY_INLINE void StoreTable(const RowShape& shape, const Pairs<K>& pairs, float* row,
                           std::size_t j) {
  StoreChunks<K>(FirstHalf(pairs), row + j);
  StoreChunks<K>(SecondHalf(pairs), row + shape.width + j);
}
// Results are computed from tensors of type T: see Payload.
template <int K, Store kStore, typename T>
HWY_INLINE void StorePairs(const RowShape& shape, const Pairs<K>& pairs, T* row, std::size_t j,
                           std::size_t n) {
  if constexpr (K > 1 || kStore == Store::kStreamed) {
    StoreChunks<K, kStore, Payload::kUpper>(FirstHalf(pairs), row + j);
    StoreChunks<K, kStore, Payload::kUpper>(SecondHalf(pairs), row + shape.half + j);
  } else {
    StoreChunkN<Payload::kUpper>(FirstHalf(pairs), row + j, n);
    StoreChunkN<Payload::kUpper>(SecondHalf(pairs), row + shape.half + j, n);
  }
}

// Turns pairs by the angles at `cos`, in the backward by their negatives.
template <Pass kPass, int K>
HWY_INLINE Pairs<K> RotatePairs(const RowShape& shape, const Pairs<K>& pairs, const float* cos) {
  const auto lo = FirstHalf(pairs);
  const auto hi = SecondHalf(pairs);
  const auto c = LoadChunks<K>(cos);
  const auto s = LoadChunks<K>(cos + shape.width);
  if constexpr (kPass == Pass::kForward) {
    return Join(NegMulAdd(hi, s, Mul(lo, c)), MulAdd(hi, c, Mul(lo, s)));
  } else {
    return Join(MulAdd(hi, s, Mul(lo, c)), NegMulAdd(lo, s, Mul(hi, c)));
  }
}

// The lanes of the first n pairs of a chunk.
template <typename T>
HWY_INLINE Pack<4, MF> FirstPairs(std::size_t n) {
  const ChunkMask mask = FirstElements<T>(n);
  return {{mask.v[0], mask.v[1], mask.v[0], mask.v[1]}};
}

// The same of a single chunk where only the first `rotated` pairs turn.
template <Pass kPass, typename T>
HWY_INLINE Pairs<> RotatePairsN(const RowShape& shape, const Pairs<>& pairs, const float* cos,
                                std::size_t rotated) {
  return Select(FirstPairs<T>(rotated), RotatePairs<kPass, 1>(shape, pairs, cos), pairs);
}

// How many of the n pairs from j on turn.
HWY_INLINE std::size_t RotatedOf(const RowShape& shape, std::size_t j, std::size_t n) {
  return std::min(n, std::max(shape.rotated, j) - j);
}

// For K chunks of pairs, or a part of one, the n from j on: source<K>(j, n) gives them,
// sink<K>(j, n, pairs) takes them turned.
template <Pass kPass, typename T, class Source, class Sink>
HWY_INLINE void RotateRow(const RowShape& shape, const float* cos, const Source& source,
                          const Sink& sink) {
  constexpr int K = ATTNOPS_CHUNKS;
  const std::size_t chunk = ChunkSize();
  const std::size_t full = shape.rotated - shape.rotated % chunk;
  std::size_t j = 0;
  for (; j + K * chunk <= full; j += K * chunk) {
    const Pairs<K> pairs = source.template operator()<K>(j, K * chunk);
    sink.template operator()<K>(j, K * chunk, RotatePairs<kPass, K>(shape, pairs, cos + j));
  }
  for (; j < shape.half; j += chunk) {
    const std::size_t n = std::min(chunk, shape.half - j);
    const Pairs<> pairs = source.template operator()<1>(j, n);
    sink.template operator()<1>(
        j, n, RotatePairsN<kPass, T>(shape, pairs, cos + j, RotatedOf(shape, j, n)));
  }
}

template <typename T, typename Pointer>
HWY_INLINE T* RowOf(const Tensor<Pointer>& tensor, std::int64_t b, std::int64_t t, std::int64_t h) {
  return static_cast<T*>(tensor.data) + b * tensor.batch + t * tensor.token + h * tensor.head;
}

// One row of each tensor.
template <typename T>
struct Row {
  const T* x;
  const T* d_out;
  T* out;
  const float* cos;
  const float* columns;
};

template <typename T>
HWY_INLINE void PrefetchRow(const T* row, std::int64_t n) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < n; i += kLine) hwy::Prefetch(row + i);
}

// Runs Kernel::Run on all rows of a region, Kernel::kRowSet at a time and the last heads of a
// token singly. The heads of a token, neighbours in memory, are followed by the same token of the
// next batch, which shares its angles; meanwhile that batch's rows are fetched. The hardware,
// which follows a stream within a page, does not do that.
template <typename T, class Kernel>
HWY_INLINE void ForEachRowSet(const Problem& problem, const Region& region, const AngleTable& table,
                              float* scratch, const Columns& columns) {
  constexpr int kRowSet = Kernel::kRowSet;
  static_assert(kRowSet <= kMaxRowSet);
  const RowShape shape(problem, table);
  Row<T> rows[kRowSet];
  for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
    for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
      const bool last = b + 1 == region.batch_end;
      const std::int64_t next_t = last ? std::min(t + 1, region.token_end - 1) : t;
      const std::int64_t next_b = last ? region.batch_begin : b + 1;
      int count = 0;
      for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
        if constexpr (Kernel::kReadsX) {
          PrefetchRow(RowOf<const T>(problem.x, next_b, next_t, h), problem.D);
        }
        if constexpr (Kernel::kReadsGradient) {
          PrefetchRow(RowOf<const T>(problem.d_out, next_b, next_t, h), problem.D);
        }
        rows[count] = {RowOf<const T>(problem.x, b, t, h), RowOf<const T>(problem.d_out, b, t, h),
                       RowOf<T>(problem.out, b, t, h),
                       table.Cos(t - region.token_begin, h - region.head_begin),
                       columns.data == nullptr ? nullptr : columns.At(b, h)};
        if (++count == kRowSet) {
          Kernel::template Run<kRowSet>(shape, rows, scratch);
          count = 0;
        }
      }
      if constexpr (kRowSet > 1) {
        for (int r = 0; r < count; ++r) Kernel::template Run<1>(shape, rows + r, scratch);
      }
    }
  }
}

// Softmax over the features is exp(x − shift)/Σ for any shift that keeps both in range. Rows
// of moderate values, which is almost all of them, need none: their exponentials do not wait
// for a maximum.
constexpr float kModerate = 64.0f;

// exp(x − shift) of a row at `to`, 2·width floats, 0 in the padding; returns the sums of the
// lanes. Without kShift it is exp(x), and `magnitude` becomes the lanes' largest |x|.
template <bool kShift, typename T>
HWY_INLINE VF ExpOfFeatures(const RowShape& shape, const T* x, VF shift, float* to, VF& magnitude) {
  constexpr int K = ATTNOPS_CHUNKS;
  const std::size_t chunk = ChunkSize();
  const auto exp_of = [&]<int N>(const Pack<N>& v) ATTNOPS_INLINE_LAMBDA {
    if constexpr (kShift) {
      return ExpDifference<AccuracyFor<T>()>(v, Fill<N>(shift));
    } else {
      return ExpWithin87<AccuracyFor<T>()>(v);
    }
  };
  VF total = hn::Zero(DF());
  magnitude = hn::Zero(DF());
  std::size_t j = 0;
  for (; j + K * chunk <= shape.half; j += K * chunk) {
    const Pairs<K> v = LoadPairs<K>(shape, x, j, K * chunk);
    if constexpr (!kShift) magnitude = hn::Max(magnitude, MaxOfVectors(Abs(v)));
    const Pairs<K> e = exp_of(v);
    total = hn::Add(total, SumOfVectors(e));
    StoreTable<K>(shape, e, to, j);
  }
  for (; j < shape.half; j += chunk) {
    const std::size_t n = std::min(chunk, shape.half - j);
    const Pairs<> v = LoadPairs<1>(shape, x, j, n);
    if constexpr (!kShift) magnitude = hn::Max(magnitude, MaxOfVectors(Abs(v)));
    const Pairs<> e = Select(FirstPairs<T>(n), exp_of(v), Fill<4>(0.0f));
    total = hn::Add(total, SumOfVectors(e));
    StoreTable<1>(shape, e, to, j);
  }
  return total;
}

template <typename T>
HWY_INLINE VF MaxOfFeatures(const RowShape& shape, const T* x) {
  const std::size_t chunk = ChunkSize();
  Pairs<> max = Fill<4>(kLowest);
  for (std::size_t j = 0; j < shape.half; j += chunk) {
    const std::size_t n = std::min(chunk, shape.half - j);
    max = Max(max, Select(FirstPairs<T>(n), LoadPairs<1>(shape, x, j, n), max));
  }
  return hn::MaxOfLanes(DF(), MaxOfVectors(max));
}

// The exponentials of kRows rows at `to`; scale[r] becomes 1/Σ of row r.
template <int kRows, typename T>
HWY_INLINE void SoftmaxOfFeatures(const RowShape& shape, const Row<T>* rows, float* to,
                                  VF (&scale)[kRows]) {
  const DF d;
  for (int r = 0; r < kRows; ++r) {
    float* row = to + r * 2 * shape.width;
    VF magnitude;
    scale[r] = ExpOfFeatures<false>(shape, rows[r].x, hn::Zero(d), row, magnitude);
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(magnitude, hn::Set(d, kModerate))))) {
      const VF max = MaxOfFeatures(shape, rows[r].x);
      scale[r] = ExpOfFeatures<true>(shape, rows[r].x, max, row, magnitude);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    scale[r] = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, scale[r]));
  }
}

// Softmax over the sequence: adds the tokens of a region to the columns' sums.
// add_tokens<M>(sums, b, t, h, j, n) adds the pairs of M tokens.
template <Pass kPass, typename T, class AddTokens>
HWY_INLINE void AddColumns(const Problem& problem, const Region& region, const AngleTable& table,
                           const Columns& columns, bool first, const AddTokens& add_tokens) {
  const RowShape shape(problem, table);
  const std::size_t chunk = ChunkSize();
  for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
    for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
      // The next head's rows are fetched meanwhile: they are far apart.
      if (h + 1 < region.head_end) {
        for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
          PrefetchRow(RowOf<const T>(problem.x, b, t, h + 1), problem.D);
          if constexpr (kPass == Pass::kBackward) {
            PrefetchRow(RowOf<const T>(problem.d_out, b, t, h + 1), problem.D);
          }
        }
      }
      float* shifts = columns.At(b, h);
      float* sums_row = shifts + 2 * shape.width;
      float* dots_row = sums_row + 2 * shape.width;
      for (std::size_t j = 0; j < shape.half; j += chunk) {
        const std::size_t n = std::min(chunk, shape.half - j);
        const auto sum_tokens = [&](const Pairs<>& shift) ATTNOPS_INLINE_LAMBDA {
          ColumnSums<4, AccuracyFor<T>()> sums;
          sums.Start(shift);
          std::int64_t t = region.token_begin;
          for (; t + ATTNOPS_CHUNKS <= region.token_end; t += ATTNOPS_CHUNKS) {
            add_tokens.template operator()<ATTNOPS_CHUNKS>(sums, b, t, h, j, n);
          }
          for (; t < region.token_end; ++t) {
            add_tokens.template operator()<1>(sums, b, t, h, j, n);
          }
          return sums;
        };
        Pairs<> shift = LoadTable<1>(shape, shifts, j);
        if (first) {
          for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
            shift = Max(shift, LoadPairs<1>(shape, RowOf<const T>(problem.x, b, t, h), j, n));
          }
          StoreTable<1>(shape, shift, shifts, j);
        }
        auto sums = sum_tokens(shift);
        if (HWY_UNLIKELY(sums.ExceedsShift())) {
          const Pairs<> new_shift = sums.max;
          const Pairs<> scale = ExpDifference<Accuracy::kFloat32>(shift, new_shift);
          StoreTable<1>(shape, new_shift, shifts, j);
          StoreTable<1>(shape, Mul(LoadTable<1>(shape, sums_row, j), scale), sums_row, j);
          if constexpr (kPass == Pass::kBackward) {
            StoreTable<1>(shape, Mul(LoadTable<1>(shape, dots_row, j), scale), dots_row, j);
          }
          sums = sum_tokens(new_shift);
        }
        StoreTable<1>(shape, Add(LoadTable<1>(shape, sums_row, j), sums.sum), sums_row, j);
        if constexpr (kPass == Pass::kBackward) {
          StoreTable<1>(shape, Add(LoadTable<1>(shape, dots_row, j), sums.dot), dots_row, j);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
