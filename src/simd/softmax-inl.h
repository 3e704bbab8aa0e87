// Softmax: of a row held in memory, and of columns that are met row by row.

#if defined(ATTNOPS_SRC_SIMD_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_SOFTMAX_INL_H_
#undef ATTNOPS_SRC_SIMD_SOFTMAX_INL_H_
#else
#define ATTNOPS_SRC_SIMD_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Stands for the maximum of nothing. Not −Inf, so that −Inf entries give exp(−Inf) = 0
// also where nothing else has been seen.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// exp(x − shift), where no x exceeds its shift by more than 87.
template <Accuracy kAccuracy, int N>
HWY_INLINE Pack<N> ExpDifference(const Pack<N>& x, const Pack<N>& shift) {
  return ExpNoOverflow<kAccuracy>(Sub(x, shift));
}

// Columns keep a shift near their maximum instead of the maximum itself: that of the first
// tokens, and a new one only when a value exceeds it by more than this. exp stays below e^16,
// sums of any length stay finite, and a new shift is rare.
constexpr float kShiftSlack = 16.0f;

// The statistics of a set of columns, `n` of them in rows of n floats (a multiple of
// the chunk): the shift, Σ exp(x−shift) and, with kRows = 3, Σ exp(x−shift)·dy.

template <int kRows>
void StartColumns(float* columns, std::int64_t n) {
  std::fill_n(columns, n, kLowest);
  std::fill_n(columns + n, (kRows - 1) * n, 0.0f);
}

// Adds at most kMaxTokens tokens to N vectors of columns, first in registers: AddTokens for one or
// two at a time. If then ExceedsShift(), all of it is to be done again with a new shift.
template <int N, Accuracy kAccuracy>
struct ColumnSums {
  static constexpr int kMaxTokens = 16;
  // Where exp does not wrap around the sums show that a value was too large; else the maximum
  // does.
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

#endif  // ATTNOPS_SRC_SIMD_SOFTMAX_INL_H_
