// Filling the tables of angles.h.

#if defined(ATTNOPS_SRC_POSITIONS_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_POSITIONS_TABLES_INL_H_
#undef ATTNOPS_SRC_POSITIONS_TABLES_INL_H_
#else
#define ATTNOPS_SRC_POSITIONS_TABLES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "src/core/assert.h"
#include "src/core/numeric.h"
#include "src/positions/angles.h"
#include "src/positions/turns.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/complex-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// The upper 32 bits of turns·position modulo 2^64, rounded; turns = high·2^32 + low.
HWY_INLINE VU PhaseOf(VU high, VU low, std::int64_t position) {
  const DU du;
  const auto bits = static_cast<std::uint64_t>(position);
#if ATTNOPS_ONE_LANE
  const std::uint64_t turns = (std::uint64_t{hn::GetLane(high)} << 32) | hn::GetLane(low);
  return hn::Set(du, static_cast<std::uint32_t>((turns * bits + (1u << 31)) >> 32));
#else
  const hn::RepartitionToWide<DU> du64;
  const VU position_low = hn::Set(du, static_cast<std::uint32_t>(bits));
  const VU position_high = hn::Set(du, static_cast<std::uint32_t>(bits >> 32));
  const auto half = hn::Set(du64, std::uint64_t{1} << 31);
  const auto even = hn::Add(hn::MulEven(low, position_low), half);
  const VU low_odd = hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, low)));
  const auto odd = hn::Add(hn::MulEven(low_odd, position_low), half);
  // The upper half of a 64-bit product is in an odd lane: right for the odd lanes, one lane too far
  // for the even ones.
  const VU carried = hn::BitCast(
      du, hn::Or(hn::ShiftRight<32>(even), hn::And(odd, hn::Set(du64, ~std::uint64_t{0} << 32))));
  return hn::Add(carried, hn::Add(hn::Mul(high, position_low), hn::Mul(low, position_high)));
#endif
}

// The sincos of position·theta for the vector of angles at `j` of a row.
HWY_INLINE SinCos ExactSinCos(const Angles& angles, std::int64_t row, std::int64_t j,
                              std::int64_t position) {
  const DF d;
  const DU du;
  const std::uint32_t* turns = angles.turns + row * angles.RowSize() + j;
  const SinCos exact =
      SinCosTurns(PhaseOf(hn::Load(du, turns), hn::Load(du, turns + angles.width), position));
  const VF nan = hn::Load(d, angles.poison + row * angles.width + j);
  return {hn::Add(exact.sin, nan), hn::Add(exact.cos, nan)};
}

// The sincos that those of other positions follow from, times the scale.
HWY_INLINE SinCos BaseSinCos(const Angles& angles, std::int64_t row, std::int64_t j,
                             std::int64_t position) {
  const SinCos exact = ExactSinCos(angles, row, j, position);
  const VF scale = hn::Set(DF(), angles.scale);
  return {hn::Mul(exact.sin, scale), hn::Mul(exact.cos, scale)};
}

HWY_INLINE SinCos AddAngles(const SinCos& a, const SinCos& b) {
  const Complex<1> sum = Turn<1>({{{a.cos}}, {{a.sin}}}, {{{b.cos}}, {{b.sin}}});
  return {sum.im.v[0], sum.re.v[0]};
}

HWY_INLINE SinCos LoadSinCos(const float* cos, std::int64_t width) {
  const DF d;
  return {hn::Load(d, cos + width), hn::Load(d, cos)};
}
HWY_INLINE void StoreSinCos(const SinCos& value, float* cos, std::int64_t width) {
  const DF d;
  hn::Store(value.cos, d, cos);
  hn::Store(value.sin, d, cos + width);
}

// Fills turns and poison from theta (rows, count), the angles of one axis, for tensors of type T. A
// theta of a single angle serves all angles of an axis; else angles beyond its count are 0.
template <typename T, typename Theta>
void FillTurns(const Theta* theta, std::int64_t row_stride, std::int64_t count,
               const Angles& angles) {
  for (std::int64_t row = 0; row < angles.rows; ++row) {
    std::uint32_t* high = angles.turns + row * angles.RowSize();
    std::uint32_t* low = high + angles.width;
    float* poison = angles.poison + row * angles.width;
    std::fill_n(high, angles.RowSize(), 0);
    std::fill_n(poison, angles.width, 0.0f);
    const std::int64_t values = count == 1 ? angles.per_axis : count;
    for (std::int64_t i = 0; i < std::min(values, angles.count); ++i) {
      const float value = ToFloat(theta[row * row_stride + (count == 1 ? 0 : i)]);
      const std::uint64_t turns = TurnsFromTheta(value);
      for (std::int64_t c = i; c < angles.count; c += angles.per_axis) {  // one of each axis
        const std::size_t to = StorageOffset<T>(static_cast<std::size_t>(c));
        high[to] = static_cast<std::uint32_t>(turns >> 32);
        low[to] = static_cast<std::uint32_t>(turns);
        if (!std::isfinite(value)) poison[to] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

// Fills those of angles.steps whose bit is set.
inline void FillSteps(const Angles& angles, std::uint32_t steps) {
  for (std::int64_t i = 0; i < angles.step_count; ++i) {
    if ((steps >> i & 1) == 0) continue;
    for (std::int64_t row = 0; row < angles.rows; ++row) {
      float* cos = angles.Step(row, i);
      for (std::int64_t j = 0; j < angles.width; j += hn::Lanes(DF())) {
        StoreSinCos(ExactSinCos(angles, row, j, i), cos + j, angles.width);
      }
    }
  }
}

// The index of a token on each axis.
struct GridIndex {
  Dims at;

  GridIndex(const Dims& shape, std::int64_t token) : at(shape) {
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      at[axis] = token % shape[axis];
      token /= shape[axis];
    }
  }
};

// The axes, from `first` to `last`, of the chunk of angles from j on.
struct ChunkAxes {
  int first, last;

  ChunkAxes(const Angles& angles, std::int64_t j)
      : first(angles.AxisOf(j)),
        last(angles.AxisOf(std::min<std::int64_t>(j + ChunkSize(), angles.count) - 1)) {}
};

// For each lane of a vector (0 or 1) of the chunk of angles from chunk_begin on: of(axis) with the
// axis of the lane's angle.
template <typename T, class Of>
HWY_INLINE SinCos OfAxes(const Angles& angles, const ChunkAxes& axes, std::int64_t chunk_begin,
                         int vector, const Of& of) {
  SinCos result = of(axes.first);
  for (int axis = axes.first + 1; axis <= axes.last; ++axis) {
    // Lanes before the axis's first angle keep what they have.
    const std::int64_t before = axis * angles.per_axis - chunk_begin;
    const MF keep = FirstElements<T>(static_cast<std::size_t>(before)).v[vector];
    const SinCos other = of(axis);
    result = {hn::IfThenElse(keep, result.sin, other.sin),
              hn::IfThenElse(keep, result.cos, other.cos)};
  }
  return result;
}

// Consecutive tokens of a grid that differ in the last axis alone and follow from the same exact
// sincos.
struct GridRun {
  std::int64_t tokens = 0;
  Dims begin;              // index of the exact sincos on each axis
  Dims step;               // from there to the first token
  bool new_begin = false;  // whether `begin` differs from that of the run before
};

// Cuts the tokens [first, first + tokens) into runs; returns how many there are.
inline int GridRuns(const Angles& angles, std::int64_t first, std::int64_t tokens, GridRun* runs) {
  const int last_axis = angles.axes() - 1;
  int count = 0;
  for (std::int64_t done = 0; done < tokens; done += runs[count++].tokens) {
    GridRun& run = runs[count];
    run.begin = run.step = GridIndex(angles.shape, first + done).at;
    const std::int64_t left = angles.shape[last_axis] - run.step[last_axis];
    for (int axis = 0; axis <= last_axis; ++axis) {
      run.step[axis] %= angles.step_count;
      run.begin[axis] -= run.step[axis];
      if (count > 0 && run.begin[axis] != runs[count - 1].begin[axis]) run.new_begin = true;
    }
    run.tokens = std::min({tokens - done, left, angles.step_count - run.step[last_axis]});
  }
  return count;
}

// Fills one row of the table for the tokens of `count` runs; `to` is the first token's row.
template <typename T>
HWY_INLINE void FillGridRow(const Angles& angles, std::int64_t row, const GridRun* runs, int count,
                            float* to, std::int64_t stride) {
  const std::int64_t width = angles.width;
  const std::int64_t chunk = ChunkSize();
  const std::int64_t lanes = hn::Lanes(DF());
  const int last_axis = angles.axes() - 1;
  for (std::int64_t j = 0; j < width; j += lanes) {
    const std::int64_t chunk_begin = j / chunk * chunk;
    const int vector = static_cast<int>((j - chunk_begin) / lanes);
    const ChunkAxes axes(angles, chunk_begin);
    const auto of_axes = [&](const auto& of)
                             HWY_ATTR { return OfAxes<T>(angles, axes, chunk_begin, vector, of); };
    const auto begin_of = [&](const GridRun& run) HWY_ATTR {
      return of_axes([&](int axis)
                         HWY_ATTR { return ExactSinCos(angles, row, j, run.begin[axis]); });
    };
    SinCos begin = begin_of(runs[0]);
    float* cos = to + j;
    for (const GridRun* run = runs; run < runs + count; ++run) {
      if (run->new_begin) begin = begin_of(*run);
      const auto at_token = [&](std::int64_t i) HWY_ATTR {
        return AddAngles(begin, of_axes([&](int axis) HWY_ATTR {
                           const std::int64_t at = run->step[axis] + (axis == last_axis ? i : 0);
                           return LoadSinCos(angles.Step(row, at) + j, width);
                         }));
      };
      if (axes.last == last_axis) {
        for (std::int64_t i = 0; i < run->tokens; ++i, cos += stride) {
          StoreSinCos(at_token(i), cos, width);
        }
      } else {
        const SinCos same = at_token(0);
        for (std::int64_t i = 0; i < run->tokens; ++i, cos += stride) {
          StoreSinCos(same, cos, width);
        }
      }
    }
  }
}

// Fills one row of the table for tokens of a grid of one axis whose positions have one base.
HWY_INLINE void FillLineRow(const Angles& angles, std::int64_t row, std::int64_t first,
                            std::int64_t tokens, float* to, std::int64_t stride) {
  const std::int64_t width = angles.width;
  const std::int64_t row_size = angles.RowSize();
  const std::int64_t begin = FloorModulo(angles.offset + first, angles.step_count);
  ATTNOPS_DASSERT(begin + tokens <= angles.step_count);
  for (std::int64_t j = 0; j < width; j += hn::Lanes(DF())) {
    const SinCos base = BaseSinCos(angles, row, j, angles.offset + first - begin);
    const float* step = angles.Step(row, begin) + j;
    if (begin == 0) StoreSinCos(base, to + j, width);
    for (std::int64_t i = begin == 0 ? 1 : 0; i < tokens; ++i) {
      StoreSinCos(AddAngles(base, LoadSinCos(step + i * row_size, width)), to + j + i * stride,
                  width);
    }
  }
}

// Stores a chunk of pairs (cos, sin) in natural order as a chunk of cos and one of sin in T's
// storage order. A NaN among them makes one of `nan`.
template <typename T>
HWY_INLINE void StorePairsAsTable(const float* pairs, float* cos, std::int64_t width, VF& nan) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  VF c[2], s[2];
  hn::LoadInterleaved2(d, pairs, c[0], s[0]);
  hn::LoadInterleaved2(d, pairs + 2 * lanes, c[1], s[1]);
  if constexpr (std::is_same_v<T, BFloat16>) {
    nan = hn::MulAdd(c[0], c[1], nan);
    nan = hn::MulAdd(s[0], s[1], nan);
  }
#if !ATTNOPS_ONE_LANE
  if constexpr (IsInterleaved<T>::kValue) {
    const VF c0 = c[0], s0 = s[0];
    c[0] = hn::ConcatEven(d, c[1], c0);
    c[1] = hn::ConcatOdd(d, c[1], c0);
    s[0] = hn::ConcatEven(d, s[1], s0);
    s[1] = hn::ConcatOdd(d, s[1], s0);
  }
#endif
  StoreSinCos({s[0], c[0]}, cos, width);
  StoreSinCos({s[1], c[1]}, cos + lanes, width);
}

// Makes every NaN of a row the one without a payload in its lower half, which rounding to bfloat16
// would drop: see Payload::kUpper.
HWY_NOINLINE inline void ReplaceNans(float* row, std::int64_t size) {
  const DF d;
  const VF nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t j = 0; j < size; j += static_cast<std::int64_t>(hn::Lanes(d))) {
    const VF v = hn::Load(d, row + j);
    hn::Store(hn::IfThenElse(hn::IsNaN(v), nan, v), d, row + j);
  }
}

// Fills one token's row from the caller's table.
template <typename T>
HWY_INLINE void FillRowFromTable(const Angles& angles, std::int64_t row, std::int64_t token,
                                 float* to) {
  const std::int64_t chunk = ChunkSize();
  const GridIndex index(angles.shape, token);
  const float* axis_rows[Dims::kMaxRank];
  std::int64_t begin = 0;
  for (int axis = 0; axis < angles.axes(); ++axis) {
    axis_rows[axis] =
        angles.table + row * angles.table_row + (begin + index.at[axis]) * angles.table_index;
    begin += angles.shape[axis];
  }
  VF nan = hn::Zero(DF());
  for (std::int64_t j = 0; j < angles.width; j += chunk) {
    const ChunkAxes axes(angles, j);
    if (axes.first == axes.last && j + chunk <= angles.count) {
      StorePairsAsTable<T>(axis_rows[axes.first] + 2 * (j - axes.first * angles.per_axis), to + j,
                           angles.width, nan);
      continue;
    }
    float pairs[2 * kMaxChunk] = {};
    for (int axis = axes.first; axis <= axes.last; ++axis) {
      const std::int64_t from = std::max(j, axis * angles.per_axis);
      const std::int64_t end = std::min({j + chunk, (axis + 1) * angles.per_axis, angles.count});
      std::memcpy(pairs + 2 * (from - j), axis_rows[axis] + 2 * (from - axis * angles.per_axis),
                  static_cast<std::size_t>(2 * (end - from)) * sizeof(float));
    }
    StorePairsAsTable<T>(pairs, to + j, angles.width, nan);
  }
  if (HWY_UNLIKELY(!hn::AllFalse(DF(), hn::IsNaN(nan)))) ReplaceNans(to, angles.RowSize());
}

// Fills the table of the tokens [first, first + tokens), counted from the grid's first token and at
// most step_count, on a line with one base, for the rows [row_begin, row_end).
template <typename T>
void FillTable(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
               std::int64_t first, std::int64_t tokens, float* table) {
  ATTNOPS_DASSERT(tokens <= angles.step_count && angles.step_count <= Angles::kMaxSteps);
  const std::int64_t stride = (row_end - row_begin) * angles.RowSize();
  if (angles.axes() > 1 && !angles.from_table) {
    GridRun runs[Angles::kMaxSteps];
    const int count = GridRuns(angles, first, tokens, runs);
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      FillGridRow<T>(angles, row, runs, count, table + (row - row_begin) * angles.RowSize(),
                     stride);
    }
    return;
  }
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    float* to = table + (row - row_begin) * angles.RowSize();
    if (angles.from_table) {
      for (std::int64_t i = 0; i < tokens; ++i) {
        FillRowFromTable<T>(angles, row, first + i, to + i * stride);
      }
    } else {
      FillLineRow(angles, row, first, tokens, to, stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_POSITIONS_TABLES_INL_H_
