// Element-wise activations and their derivatives, on chunks.

#if defined(ATTNOPS_SRC_SIMD_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ACTIVATION_INL_H_
#undef ATTNOPS_SRC_SIMD_ACTIVATION_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ACTIVATION_INL_H_
#endif

#include <hwy/highway.h>

#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Each has Forward(x) = f(x), Backward(x, dy) = dy·f'(x), and kUsesX: whether the
// backward needs x at all.

struct ActNone {
  static constexpr bool kUsesX = false;
  static HWY_INLINE VF Forward(VF x) { return x; }
  static HWY_INLINE VF Backward(VF /*x*/, VF dy) { return dy; }
};

struct ActRelu {
  static constexpr bool kUsesX = true;
  // Written so that a NaN stays one.
  static HWY_INLINE VF Forward(VF x) {
    const VF zero = hn::Zero(DF());
    return hn::IfThenZeroElse(hn::Le(x, zero), x);
  }
  static HWY_INLINE VF Backward(VF x, VF dy) {
    const VF zero = hn::Zero(DF());
    return hn::IfThenZeroElse(hn::Le(x, zero), dy);
  }
};

struct ActSigmoid {
  static constexpr bool kUsesX = true;
  static HWY_INLINE VF Forward(VF x) { return Sigmoid(x); }
  static HWY_INLINE VF Backward(VF x, VF dy) {
    // s(1−s) is even in x: from exp(−|x|) it keeps its relative accuracy.
    const DF d;
    const VF e = ExpNoOverflow(hn::Neg(hn::Abs(x)));
    const VF r = ReciprocalNearOne(hn::Add(e, hn::Set(d, 1.0f)));
    return hn::Mul(dy, hn::Mul(hn::Mul(e, r), r));
  }
};

struct ActSilu {
  static constexpr bool kUsesX = true;
  static HWY_INLINE VF Forward(VF x) { return hn::Mul(x, Sigmoid(x)); }
  static HWY_INLINE VF Backward(VF x, VF dy) {
    const VF one = hn::Set(DF(), 1.0f);
    const VF s = Sigmoid(x);
    return hn::Mul(dy, hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one)));
  }
};

template <class Act>
HWY_INLINE Chunk Activate(const Chunk& x) {
  return {Act::Forward(x.v0), Act::Forward(x.v1)};
}

template <class Act>
HWY_INLINE Chunk ActivateBackward(const Chunk& x, const Chunk& dy) {
  return {Act::Backward(x.v0, dy.v0), Act::Backward(x.v1, dy.v1)};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ACTIVATION_INL_H_
