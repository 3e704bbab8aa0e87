// Softmax over the features of rows.

#if defined(ATTNOPS_SRC_ROWOPS_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_ROWOPS_FEATURES_INL_H_
#undef ATTNOPS_SRC_ROWOPS_FEATURES_INL_H_
#else
#define ATTNOPS_SRC_ROWOPS_FEATURES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "src/rowops/softmax-inl.h"
#include "src/simd/math-inl.h"
#include "src/simd/strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Softmax over the features is exp(x − shift)/Σ for any shift with which neither overflows nor
// underflows. Rows of moderate values, |x| ≤ kModerate, need no shift: their exponentials do not
// wait for a maximum. Almost all rows are such. Where exp takes every x, the sum of a row shows
// whether it is moderate; elsewhere its largest |x| does.
constexpr float kModerate = 64.0f;
// e^64. A moderate sum is also at least 1: terms that underflow are negligible beside it.
constexpr float kModerateSum = 6.2e27f;

// Stores exp(x − shift) of a row at `to`, 0 in the padding; returns the sum of each lane. Without
// kShift it stores exp(x), and `magnitude` becomes the largest |x| of each lane if it is needed.
template <class E, bool kShift, typename T>
HWY_INLINE VF ExpOfFeatures(const RowShape& shape, const T* x, VF shift, float* to, VF& magnitude) {
  constexpr int kParts = E::kPlainParts;
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  VF total = hn::Zero(DF());
  magnitude = hn::Zero(DF());
  ForEachStrip<E::kStripChunks>(
      shape, shape.part, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const Strip<kParts, K> v = LoadStrip<kParts, K>(shape, x, j, n);
        Strip<kParts, K> e;
        if constexpr (kShift) {
          e = ExpDifference<kAccuracy>(v, Fill<2 * kParts * K>(shift));
        } else {
          if constexpr (!kExpTakesAll<kAccuracy>) {
            magnitude = hn::Max(magnitude, MaxOfVectors(Abs(v)));
          }
          e = ExpWithin87<kAccuracy>(v);
        }
        if constexpr (K == 1) e = Select(FirstOfParts<kParts, T>(n), e, Fill<2 * kParts>(0.0f));
        total = hn::Add(total, SumOfVectors(e));
        StoreTable<kParts, K>(shape, e, to, j);
      });
  return total;
}

template <int kParts, typename T>
HWY_INLINE VF MaxOfFeatures(const RowShape& shape, const T* x) {
  const std::size_t chunk = ChunkSize();
  Strip<kParts, 1> max = Fill<2 * kParts>(kLowest);
  for (std::size_t j = 0; j < shape.part; j += chunk) {
    const std::size_t n = std::min(chunk, shape.part - j);
    const Strip<kParts, 1> v = LoadStrip<kParts, 1>(shape, x, j, n);
    max = Max(max, Select(FirstOfParts<kParts, T>(n), v, max));
  }
  return hn::MaxOfLanes(DF(), MaxOfVectors(max));
}

// Stores the exponentials of kRows rows, row_of(0) and so on, at `to`; scale[r] becomes 1/Σ of row
// r in every lane.
template <class E, int kRows, typename T, class RowOf>
HWY_INLINE void SoftmaxOfFeatures(const RowShape& shape, const RowOf& row_of, float* to,
                                  VF (&scale)[kRows]) {
  constexpr int kParts = E::kPlainParts;
  const DF d;
  VF lanes[kRows];
  VF magnitude[kRows];
  const auto row_at = [&](int r) ATTNOPS_INLINE_LAMBDA { return to + r * kParts * shape.width; };
  for (int r = 0; r < kRows; ++r) {
    lanes[r] = ExpOfFeatures<E, false, T>(shape, row_of(r), hn::Zero(d), row_at(r), magnitude[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    float sum = hn::GetLane(hn::SumOfLanes(d, lanes[r]));
    const bool moderate = kExpTakesAll<AccuracyFor<T>()>
                              ? sum >= 1.0f && sum <= kModerateSum
                              : hn::AllFalse(d, hn::Gt(magnitude[r], hn::Set(d, kModerate)));
    if (HWY_UNLIKELY(!moderate)) {
      const VF max = MaxOfFeatures<kParts, T>(shape, row_of(r));
      sum = hn::GetLane(hn::SumOfLanes(
          d, ExpOfFeatures<E, true, T>(shape, row_of(r), max, row_at(r), magnitude[r])));
    }
    // A division of one lane occupies the divider a quarter as long as one of sixteen.
    scale[r] = hn::Set(d, 1.0f / sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_ROWOPS_FEATURES_INL_H_
