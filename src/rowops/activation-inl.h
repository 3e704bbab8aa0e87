// Element-wise activations and their derivatives.

#if defined(ATTNOPS_SRC_ROWOPS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_ROWOPS_ACTIVATION_INL_H_
#undef ATTNOPS_SRC_ROWOPS_ACTIVATION_INL_H_
#else
#define ATTNOPS_SRC_ROWOPS_ACTIVATION_INL_H_
#endif

#include <hwy/highway.h>

#include "src/simd/math-inl.h"
#include "src/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Each has Forward(x) = f(x) and kUsesX: whether the backward needs x. If it does, the activation
// has Backward(x, dy) = dy·f'(x).

struct ActNone {
  static constexpr bool kUsesX = false;
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Forward(const Pack<N>& x) {
    return x;
  }
};

// A NaN stays one.
struct ActRelu {
  static constexpr bool kUsesX = true;
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Forward(const Pack<N>& x) {
    return ZeroWhereNotPositive(x, x);
  }
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Backward(const Pack<N>& x, const Pack<N>& dy) {
    return ZeroWhereNotPositive(x, dy);
  }
};

struct ActSigmoid {
  static constexpr bool kUsesX = true;
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Forward(const Pack<N>& x) {
    return Sigmoid<kAccuracy>(x);
  }
  // s(1−s) is even in x: from exp(−|x|) it keeps its relative accuracy.
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Backward(const Pack<N>& x, const Pack<N>& dy) {
    const Pack<N> e = ExpNoOverflow<kAccuracy>(Neg(Abs(x)));
    const Pack<N> r = ReciprocalAboveOne(Add(e, Fill<N>(1.0f)), NotBelow(0.0f, e));
    return Mul(dy, Mul(Mul(e, r), r));
  }
};

struct ActSilu {
  static constexpr bool kUsesX = true;
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Forward(const Pack<N>& x) {
    return Mul(x, Sigmoid<kAccuracy>(x));
  }
  template <Accuracy kAccuracy, int N>
  static HWY_INLINE Pack<N> Backward(const Pack<N>& x, const Pack<N>& dy) {
    const Pack<N> one = Fill<N>(1.0f);
    const Pack<N> s = Sigmoid<kAccuracy>(x);
    return Mul(dy, Mul(s, MulAdd(x, Sub(one, s), one)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_ROWOPS_ACTIVATION_INL_H_
