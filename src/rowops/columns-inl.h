// Softmax over the sequence: the statistics of columns, to which rows are added.

#if defined(ATTNOPS_SRC_ROWOPS_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_ROWOPS_COLUMNS_INL_H_
#undef ATTNOPS_SRC_ROWOPS_COLUMNS_INL_H_
#else
#define ATTNOPS_SRC_ROWOPS_COLUMNS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/core/assert.h"
#include "src/rowops/softmax-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// A column keeps a shift near its maximum instead of the maximum itself: the maximum of the first
// tokens, and a new one only when a value exceeds it by more than this. exp stays below e^16,
// sums of any length stay finite, and a new shift is rare.
constexpr float kShiftSlack = 16.0f;

// The statistics of n columns are kRows rows of n floats, where n is a multiple of the chunk: the
// shift, Σ exp(x−shift) and, with kRows = 3, Σ exp(x−shift)·dy.

template <int kRows>
void StartColumns(float* columns, std::int64_t n) {
  std::fill_n(columns, n, kLowest);
  std::fill_n(columns + n, (kRows - 1) * n, 0.0f);
}

// The sums of at most kMaxTokens tokens for N vectors of columns, in registers. AddTokens takes one
// token or two. If ExceedsShift() afterwards, the sums must be computed again with a new shift.
template <int N, Accuracy kAccuracy>
struct ColumnSums {
  static constexpr int kMaxTokens = 16;
  // Where exp overflows to Inf, the sums show that a value was too large; where it wraps around,
  // the maximum does.
  static constexpr bool kTracksMax = ATTNOPS_SCALE_INSTRUCTION == 0;

  Pack<N> shift, max, sum, dot;

  HWY_INLINE explicit ColumnSums(const Pack<N>& shift)
      : shift(shift), max(shift), sum(Fill<N>(0.0f)), dot(Fill<N>(0.0f)) {}
  HWY_INLINE void AddTokens(const Pack<N>& x) {
    if constexpr (kTracksMax) max = Max(max, x);
    sum = Add(sum, ExpDifference<kAccuracy>(x, shift));
  }
  HWY_INLINE void AddTokens(const Pack<2 * N>& x) {
    if constexpr (kTracksMax) max = Max(max, Max(FirstHalf(x), SecondHalf(x)));
    const Pack<2 * N> e = ExpDifference<kAccuracy>(x, Join(shift, shift));
    sum = Add(sum, Add(FirstHalf(e), SecondHalf(e)));
  }
  HWY_INLINE void AddTokens(const Pack<N>& x, const Pack<N>& dy) {
    if constexpr (kTracksMax) max = Max(max, x);
    const Pack<N> e = ExpDifference<kAccuracy>(x, shift);
    sum = Add(sum, e);
    dot = MulAdd(e, dy, dot);
  }
  HWY_INLINE void AddTokens(const Pack<2 * N>& x, const Pack<2 * N>& dy) {
    if constexpr (kTracksMax) max = Max(max, Max(FirstHalf(x), SecondHalf(x)));
    const Pack<2 * N> e = ExpDifference<kAccuracy>(x, Join(shift, shift));
    sum = Add(sum, Add(FirstHalf(e), SecondHalf(e)));
    dot = MulAdd(FirstHalf(e), FirstHalf(dy), dot);
    dot = MulAdd(SecondHalf(e), SecondHalf(dy), dot);
  }
  HWY_INLINE bool ExceedsShift() const {
    if constexpr (kTracksMax) return AnyGreater(Sub(max, shift), Fill<N>(kShiftSlack));
    // Without a value above the slack the sum is at most kMaxTokens·e^16. Far above it exp may be
    // anything that is not small, −Inf and NaN included.
    return !AllAtMost(Abs(sum), Fill<N>(kMaxTokens * 8.9e6f));
  }
};

// Adds at most kMaxTokens tokens of a head, x_of<K>(t, j, n) for t < tokens, to its columns; with
// kRows = 3 also their gradients dy_of<K>(t, j, n). `first`: nothing was added before. Each row of
// the columns has kParts parts of `width` floats.
template <int kParts, int kRows, typename T, class XOf, class DyOf>
HWY_INLINE void AddToColumns(const RowShape& shape, std::int64_t tokens, const XOf& x_of,
                             const DyOf& dy_of, float* columns, bool first) {
  constexpr int kTogether = std::max(1, ATTNOPS_STRIP_CHUNKS / 2);  // tokens at a time
  constexpr bool kDots = kRows == 3;
  float* shifts = columns;
  float* sums_row = shifts + kParts * shape.width;
  float* dots_row = sums_row + kParts * shape.width;
  const auto add = [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
    const auto x_at = [&](std::int64_t t)
                          ATTNOPS_INLINE_LAMBDA { return x_of.template operator()<K>(t, j, n); };
    const auto dy_at = [&](std::int64_t t)
                           ATTNOPS_INLINE_LAMBDA { return dy_of.template operator()<K>(t, j, n); };
    const auto sum_tokens = [&](const Strip<kParts, K>& shift) ATTNOPS_INLINE_LAMBDA {
      ColumnSums<2 * kParts * K, AccuracyFor<T>()> sums(shift);
      ATTNOPS_DASSERT(tokens <= sums.kMaxTokens);
      std::int64_t t = 0;
      if constexpr (kTogether == 2) {
        for (; t + 1 < tokens; t += 2) {
          const auto x = Join(x_at(t), x_at(t + 1));
          if constexpr (kDots) {
            sums.AddTokens(x, Join(dy_at(t), dy_at(t + 1)));
          } else {
            sums.AddTokens(x);
          }
        }
      }
      for (; t < tokens; ++t) {
        if constexpr (kDots) {
          sums.AddTokens(x_at(t), dy_at(t));
        } else {
          sums.AddTokens(x_at(t));
        }
      }
      return sums;
    };
    const auto raise = [&](Strip<kParts, K> shift) ATTNOPS_INLINE_LAMBDA {
      for (std::int64_t t = 0; t < tokens; ++t) shift = Max(shift, x_at(t));
      StoreTable<kParts, K>(shape, shift, shifts, j);
      return shift;
    };
    const auto scale_row = [&](float* row, const Strip<kParts, K>& scale) ATTNOPS_INLINE_LAMBDA {
      StoreTable<kParts, K>(shape, Mul(LoadTable<kParts, K>(shape, row, j), scale), row, j);
    };
    const auto add_to_row = [&](float* row, const Strip<kParts, K>& sum) ATTNOPS_INLINE_LAMBDA {
      StoreTable<kParts, K>(shape, Add(LoadTable<kParts, K>(shape, row, j), sum), row, j);
    };
    auto shift = LoadTable<kParts, K>(shape, shifts, j);
    if (first) shift = raise(shift);
    auto sums = sum_tokens(shift);
    if (HWY_UNLIKELY(sums.ExceedsShift())) {
      const auto new_shift = raise(shift);
      const auto scale = ExpDifference<Accuracy::kFloat32>(shift, new_shift);
      scale_row(sums_row, scale);
      if constexpr (kDots) scale_row(dots_row, scale);
      sums = sum_tokens(new_shift);
    }
    add_to_row(sums_row, sums.sum);
    if constexpr (kDots) add_to_row(dots_row, sums.dot);
  };
  // Four vectors of columns at the most, and where registers allow it two tokens.
  constexpr int K = std::min(2, ATTNOPS_STRIP_CHUNKS) / kParts;
  const std::size_t chunk = ChunkSize();
  std::size_t j = 0;
  if constexpr (K == 2) {
    for (; j + 2 * chunk <= shape.encoded; j += 2 * chunk) {
      add.template operator()<2>(j, 2 * chunk);
    }
  }
  for (; j < shape.part; j += chunk) {
    add.template operator()<1>(j, std::min(chunk, shape.part - j));
  }
}

// Adds the statistics `from`, of other tokens, to `to`.
template <int kRows>
void MergeColumns(float* to, const float* from, std::int64_t n) {
  const std::int64_t chunk = ChunkSize();
  for (std::int64_t j = 0; j < n; j += chunk) {
    const Chunk to_shift = LoadChunk(to + j);
    const Chunk from_shift = LoadChunk(from + j);
    const Chunk shift = Max(to_shift, from_shift);
    const Chunk to_scale = ExpDifference<Accuracy::kFloat32>(to_shift, shift);
    const Chunk from_scale = ExpDifference<Accuracy::kFloat32>(from_shift, shift);
    StoreChunk(shift, to + j);
    for (int row = 1; row < kRows; ++row) {
      float* sum = to + row * n + j;
      const Chunk scaled = Mul(LoadChunk(from + row * n + j), from_scale);
      StoreChunk(MulAdd(LoadChunk(sum), to_scale, scaled), sum);
    }
  }
}

// Σ becomes 1/Σ, and Σ exp·dy the mean Σ p·dy.
template <int kRows>
void FinishColumns(float* columns, std::int64_t n) {
  const DF d;
  for (std::int64_t j = 0; j < n; j += hn::Lanes(d)) {
    const VF inverse = hn::Div(hn::Set(d, 1.0f), hn::Load(d, columns + n + j));
    hn::Store(inverse, d, columns + n + j);
    if constexpr (kRows == 3) {
      hn::Store(hn::Mul(hn::Load(d, columns + 2 * n + j), inverse), d, columns + 2 * n + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_ROWOPS_COLUMNS_INL_H_
