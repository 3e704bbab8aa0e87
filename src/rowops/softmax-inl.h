// Shared by all softmaxes: the exponential of a difference, and the start of a maximum.

#if defined(ATTNOPS_SRC_ROWOPS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_ROWOPS_SOFTMAX_INL_H_
#undef ATTNOPS_SRC_ROWOPS_SOFTMAX_INL_H_
#else
#define ATTNOPS_SRC_ROWOPS_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// The maximum of no entries. Not −Inf, so that entries of −Inf give exp(−Inf) = 0 also where there
// are no others.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// exp(x − shift), where no x exceeds its shift by more than 87.
template <Accuracy kAccuracy, int N>
HWY_INLINE Pack<N> ExpDifference(const Pack<N>& x, const Pack<N>& shift) {
  return ExpNoOverflow<kAccuracy>(Sub(x, shift));
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_ROWOPS_SOFTMAX_INL_H_
