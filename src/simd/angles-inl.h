// Filling the tables of angles.h.

#if defined(ATTNOPS_SRC_SIMD_ANGLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ANGLES_INL_H_
#undef ATTNOPS_SRC_SIMD_ANGLES_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ANGLES_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "src/core/turns.h"
#include "src/simd/angles.h"
#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// The sincos of position·theta for the vector of angles at `turns`.
HWY_INLINE SinCos ExactSinCos(const std::uint64_t* turns, const float* poison,
                              std::int64_t position) {
  const DF d;
  const DU du;
  HWY_ALIGN std::uint32_t phases[hn::MaxLanes(du)];
  const auto multiplier = static_cast<std::uint64_t>(position);
  for (std::size_t k = 0; k < hn::Lanes(du); ++k) {
    // Rounded to 2^-32 turns.
    phases[k] = static_cast<std::uint32_t>((turns[k] * multiplier + (1u << 31)) >> 32);
  }
  const SinCos exact = SinCosTurns(hn::Load(du, phases));
  const VF nan = hn::Load(d, poison);
  return {hn::Add(exact.sin, nan), hn::Add(exact.cos, nan)};
}

// Fills turns and poison from `count` values of theta a row, at `row_stride`; one
// value serves the whole row of `pairs`, else those beyond `count` have angle 0.
template <typename T, typename Theta>
void FillTurns(const Theta* theta, std::int64_t row_stride, std::int64_t count, std::int64_t pairs,
               const Angles& angles) {
  for (std::int64_t row = 0; row < angles.rows; ++row) {
    std::uint64_t* turns = angles.turns + row * angles.width;
    float* poison = angles.poison + row * angles.width;
    std::fill_n(turns, angles.width, 0);
    std::fill_n(poison, angles.width, 0.0f);
    for (std::int64_t j = 0; j < (count == 1 ? pairs : count); ++j) {
      const float value = ToFloat(theta[row * row_stride + (count == 1 ? 0 : j)]);
      const std::size_t to = StorageOffset<T>(static_cast<std::size_t>(j));
      turns[to] = TurnsFromTheta(value);
      if (!std::isfinite(value)) poison[to] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// Fills `steps` for the first `positions` of a block.
inline void FillSteps(const Angles& angles, std::int64_t positions) {
  const DF d;
  for (std::int64_t i = 0; i < positions; ++i) {
    for (std::int64_t row = 0; row < angles.rows; ++row) {
      float* cos = angles.steps + (i * angles.rows + row) * angles.RowSize();
      for (std::int64_t j = 0; j < angles.width; j += hn::Lanes(d)) {
        const std::int64_t at = row * angles.width + j;
        const SinCos step = ExactSinCos(angles.turns + at, angles.poison + at, i);
        hn::Store(step.cos, d, cos + j);
        hn::Store(step.sin, d, cos + angles.width + j);
      }
    }
  }
}

// Fills the table of `positions` ≤ block positions from `first` on, for the rows
// [row_begin, row_end).
inline void FillTable(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                      std::int64_t first, std::int64_t positions, float* table) {
  const DF d;
  const std::int64_t width = angles.width;
  const std::int64_t table_stride = (row_end - row_begin) * angles.RowSize();
  const std::int64_t step_stride = angles.rows * angles.RowSize();
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    for (std::int64_t j = 0; j < width; j += hn::Lanes(d)) {
      const std::int64_t at = row * width + j;
      const SinCos base = ExactSinCos(angles.turns + at, angles.poison + at, first);
      float* to = table + (row - row_begin) * angles.RowSize() + j;
      const float* step = angles.steps + row * angles.RowSize() + j;
      hn::Store(base.cos, d, to);
      hn::Store(base.sin, d, to + width);
      for (std::int64_t i = 1; i < positions; ++i) {
        to += table_stride;
        step += step_stride;
        const VF cos = hn::Load(d, step);
        const VF sin = hn::Load(d, step + width);
        hn::Store(hn::NegMulAdd(base.sin, sin, hn::Mul(base.cos, cos)), d, to);
        hn::Store(hn::MulAdd(base.sin, cos, hn::Mul(base.cos, sin)), d, to + width);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ANGLES_INL_H_
