// Transposing as many vectors as a vector has lanes.

#if defined(ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
#undef ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
#else
#define ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "src/simd/capabilities-inl.h"
#include "src/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
// As many vectors as a vector has lanes.
using Square = Pack<kLanes, VU>;

// f(i) as vector i, and f(i, vector i). Written out: a loop would go through memory.
template <class F>
HWY_INLINE Square MakeSquare(const F& f) {
  Square square;
  ForEach<kLanes>([&](auto i) ATTNOPS_INLINE_LAMBDA { square.v[i()] = f(i()); });
  return square;
}
template <class F>
HWY_INLINE void ForEachVector(const Square& square, const F& f) {
  ForEach<kLanes>([&](auto i) ATTNOPS_INLINE_LAMBDA { f(i(), square.v[i()]); });
}

// Lane j of vector i becomes lane i of vector j.
HWY_INLINE Square TransposeSquare(const Square& from) {
#if ATTNOPS_ONE_LANE
  return from;
#else
  const DU d;
  Square rows;
  // 4×4 within each 128 bits: the b-th 128 bits of vector 4g+j get element 4b+j of rows 4g … 4g+3.
  ForEach<kLanes / 4>([&](auto group) ATTNOPS_INLINE_LAMBDA {
    constexpr int g = 4 * decltype(group)::value;
    const VU even_lower = hn::InterleaveLower(d, from.v[g], from.v[g + 2]);
    const VU odd_lower = hn::InterleaveLower(d, from.v[g + 1], from.v[g + 3]);
    const VU even_upper = hn::InterleaveUpper(d, from.v[g], from.v[g + 2]);
    const VU odd_upper = hn::InterleaveUpper(d, from.v[g + 1], from.v[g + 3]);
    rows.v[g] = hn::InterleaveLower(d, even_lower, odd_lower);
    rows.v[g + 1] = hn::InterleaveUpper(d, even_lower, odd_lower);
    rows.v[g + 2] = hn::InterleaveLower(d, even_upper, odd_upper);
    rows.v[g + 3] = hn::InterleaveUpper(d, even_upper, odd_upper);
  });
  if constexpr (kLanes == 4) return rows;
  // Then the groups of 128 bits are transposed.
  Square to;
#if ATTNOPS_VECTOR_BYTES == 32
  ForEach<4>([&](auto column) ATTNOPS_INLINE_LAMBDA {
    constexpr int j = decltype(column)::value;
    to.v[j] = hn::ConcatLowerLower(d, rows.v[4 + j], rows.v[j]);
    to.v[4 + j] = hn::ConcatUpperUpper(d, rows.v[4 + j], rows.v[j]);
  });
#elif ATTNOPS_VECTOR_BYTES == 64
  ForEach<4>([&](auto column) ATTNOPS_INLINE_LAMBDA {
    constexpr int j = decltype(column)::value;
    const VU lower02 = hn::ConcatLowerLower(d, rows.v[8 + j], rows.v[j]);
    const VU lower13 = hn::ConcatLowerLower(d, rows.v[12 + j], rows.v[4 + j]);
    const VU upper02 = hn::ConcatUpperUpper(d, rows.v[8 + j], rows.v[j]);
    const VU upper13 = hn::ConcatUpperUpper(d, rows.v[12 + j], rows.v[4 + j]);
    to.v[j] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(lower13), lower02);
    to.v[4 + j] = hn::OddEvenBlocks(lower13, hn::SwapAdjacentBlocks(lower02));
    to.v[8 + j] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(upper13), upper02);
    to.v[12 + j] = hn::OddEvenBlocks(upper13, hn::SwapAdjacentBlocks(upper02));
  });
#else
  static_assert(kLanes == 4, "vectors of this size are not transposed");
#endif
  return to;
#endif
}

#if !ATTNOPS_ONE_LANE
// The sums of the lanes of four vectors within each 128 bits, next to each other.
HWY_INLINE VF SumLanesOfBlocks(VF a, VF b, VF c, VF e) {
  const DF d;
  const VF ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
  const VF be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
  return hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
}
#endif

// to[i] = the sum of the lanes of vector i, added in pairs. `to` has room for whole squares.
template <int N>
HWY_INLINE void StoreLaneSums(const Pack<N>& vectors, float* to) {
  const DF d;
#if ATTNOPS_ONE_LANE
  for (int i = 0; i < N; ++i) hn::StoreU(vectors.v[i], d, to + i);
#else
  const auto vector = [&](int i) ATTNOPS_INLINE_LAMBDA {
    return i < N ? vectors.v[std::min(i, N - 1)] : hn::Zero(d);
  };
  HWY_UNROLL(4)
  for (int first = 0; first < N; first += kLanes) {
    // The sums of four vectors, or 0.
    const auto four = [&](int i) ATTNOPS_INLINE_LAMBDA {
      const int at = first + 4 * i;
      if (at >= N) return hn::Zero(d);
      return SumLanesOfBlocks(vector(at), vector(at + 1), vector(at + 2), vector(at + 3));
    };
    const auto halves = [&](VF lower, VF upper) ATTNOPS_INLINE_LAMBDA {
      return hn::Add(hn::ConcatLowerLower(d, upper, lower), hn::ConcatUpperUpper(d, upper, lower));
    };
    VF sums;
    if constexpr (kLanes == 4) {
      sums = four(0);
    } else if constexpr (kLanes == 8) {
      sums = halves(four(0), four(1));
    } else {
      const VF s02 = halves(four(0), four(2)), s13 = halves(four(1), four(3));
      sums = hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(s13), s02),
                     hn::OddEvenBlocks(s13, hn::SwapAdjacentBlocks(s02)));
    }
    hn::StoreU(sums, d, to + first);
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_TRANSPOSE_INL_H_
