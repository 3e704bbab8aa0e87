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

HWY_INLINE Chunk SetChunk(float value) {
  const VF v = hn::Set(DF(), value);
  return {v, v};
}

HWY_INLINE Chunk Select(const ChunkMask& mask, const Chunk& yes, const Chunk& no) {
  return {hn::IfThenElse(mask.m0, yes.v0, no.v0), hn::IfThenElse(mask.m1, yes.v1, no.v1)};
}

HWY_INLINE Chunk MaxChunk(const Chunk& a, const Chunk& b) {
  return {hn::Max(a.v0, b.v0), hn::Max(a.v1, b.v1)};
}
HWY_INLINE Chunk AddChunk(const Chunk& a, const Chunk& b) {
  return {hn::Add(a.v0, b.v0), hn::Add(a.v1, b.v1)};
}
HWY_INLINE Chunk MulChunk(const Chunk& a, const Chunk& b) {
  return {hn::Mul(a.v0, b.v0), hn::Mul(a.v1, b.v1)};
}
HWY_INLINE Chunk MulAddChunk(const Chunk& a, const Chunk& b, const Chunk& c) {
  return {hn::MulAdd(a.v0, b.v0, c.v0), hn::MulAdd(a.v1, b.v1, c.v1)};
}
// exp(x − shift), where no x exceeds its shift by more than 87.
HWY_INLINE Chunk ExpDifference(const Chunk& x, const Chunk& shift) {
  return {ExpNoOverflow(hn::Sub(x.v0, shift.v0)), ExpNoOverflow(hn::Sub(x.v1, shift.v1))};
}

// exp(x − max) of n elements in chunks of storage order at `to`, 0 in the padding;
// returns the sum. The maximum is over all `halves` rows x, x+n, …; `to` has a row of
// `width` for each.
template <typename T>
HWY_INLINE float ExpOfRow(const T* x, std::size_t n, std::size_t halves, std::size_t width,
                          float* to) {
  const DF d;
  const std::size_t chunk = ChunkSize();
  const std::size_t full = n - n % chunk;
  Chunk max = SetChunk(kLowest);
  for (std::size_t h = 0; h < halves; ++h) {
    const T* from = x + h * n;
    for (std::size_t j = 0; j < full; j += chunk) {
      const Chunk v = LoadChunk(from + j);
      max = MaxChunk(max, v);
    }
    if (full < n) {
      const Chunk v = Select(FirstElements<T>(n - full), LoadChunkN(from + full, n - full), max);
      max = MaxChunk(max, v);
    }
  }
  const VF shift = hn::MaxOfLanes(d, hn::Max(max.v0, max.v1));
  Chunk sum = SetChunk(0.0f);
  for (std::size_t h = 0; h < halves; ++h) {
    const T* from = x + h * n;
    float* row = to + h * width;
    for (std::size_t j = 0; j < full; j += chunk) {
      const Chunk v = LoadChunk(from + j);
      const Chunk e = ExpDifference(v, {shift, shift});
      sum = AddChunk(sum, e);
      StoreChunk(e, row + j);
    }
    if (full < n) {
      const Chunk v = LoadChunkN(from + full, n - full);
      const Chunk e =
          Select(FirstElements<T>(n - full), ExpDifference(v, {shift, shift}), SetChunk(0.0f));
      sum = AddChunk(sum, e);
      StoreChunk(e, row + full);
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum.v0, sum.v1)));
}

// Columns keep a shift near their maximum instead of the maximum itself, and change
// it only when a value exceeds it by more than this: exp stays below e^16, sums of
// any length stay finite, and the rescaling is rare.
constexpr float kShiftSlack = 16.0f;

// The statistics of a set of columns, `n` of them in rows of n floats (a multiple of
// the chunk): the shift, Σ exp(x−shift) and, with kRows = 3, Σ exp(x−shift)·dy.

template <int kRows>
void StartColumns(float* columns, std::int64_t n) {
  std::fill_n(columns, n, kLowest);
  std::fill_n(columns + n, (kRows - 1) * n, 0.0f);
}

// Adds a few tokens to a chunk of columns, first in registers: Start, Add for each
// token; if then ExceedsShift(), Start with `max` and add all of them once more; Finish.
template <int kRows>
struct ColumnSums {
  Chunk shift, max, sum, dot;

  HWY_INLINE void Start(const Chunk& new_shift) {
    shift = new_shift;
    max = new_shift;
    sum = SetChunk(0.0f);
    dot = SetChunk(0.0f);
  }
  HWY_INLINE void Add(const Chunk& x) {
    max = MaxChunk(max, x);
    sum = AddChunk(sum, ExpDifference(x, shift));
  }
  HWY_INLINE void Add(const Chunk& x, const Chunk& dy) {
    max = MaxChunk(max, x);
    const Chunk e = ExpDifference(x, shift);
    sum = AddChunk(sum, e);
    dot = MulAddChunk(e, dy, dot);
  }
  HWY_INLINE bool ExceedsShift() const {
    const DF d;
    const VF slack = hn::Set(d, kShiftSlack);
    const MF above0 = hn::Gt(hn::Sub(max.v0, shift.v0), slack);
    const MF above1 = hn::Gt(hn::Sub(max.v1, shift.v1), slack);
    return !hn::AllFalse(d, hn::Or(above0, above1));
  }
  // Adds to the statistics at `columns`, whose rows are n floats apart.
  HWY_INLINE void Finish(float* columns, std::size_t n) const {
    const Chunk scale = ExpDifference(LoadChunk(columns), shift);
    StoreChunk(shift, columns);
    StoreChunk(MulAddChunk(LoadChunk(columns + n), scale, sum), columns + n);
    if constexpr (kRows == 3) {
      StoreChunk(MulAddChunk(LoadChunk(columns + 2 * n), scale, dot), columns + 2 * n);
    }
  }
};

template <int kRows>
void MergeColumns(float* to, const float* from, std::int64_t n) {
  const std::int64_t chunk = ChunkSize();
  for (std::int64_t j = 0; j < n; j += chunk) {
    const Chunk to_shift = LoadChunk(to + j);
    const Chunk from_shift = LoadChunk(from + j);
    const Chunk shift = MaxChunk(to_shift, from_shift);
    const Chunk to_scale = ExpDifference(to_shift, shift);
    const Chunk from_scale = ExpDifference(from_shift, shift);
    StoreChunk(shift, to + j);
    for (int row = 1; row < kRows; ++row) {
      float* sum = to + row * n + j;
      const Chunk scaled = MulChunk(LoadChunk(from + row * n + j), from_scale);
      StoreChunk(MulAddChunk(LoadChunk(sum), to_scale, scaled), sum);
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
