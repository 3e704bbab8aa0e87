// Complex products.

#if defined(ATTNOPS_SRC_SIMD_COMPLEX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_COMPLEX_INL_H_
#undef ATTNOPS_SRC_SIMD_COMPLEX_INL_H_
#else
#define ATTNOPS_SRC_SIMD_COMPLEX_INL_H_
#endif

#include <hwy/highway.h>

#include "src/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// A complex number in each lane of N vectors: re and im are the features of a pair to be rotated,
// or the cos and sin of an angle.
template <int N>
struct Complex {
  Pack<N> re, im;
};

// a·b: a turned by the angle b, or the sum of two angles.
template <int N>
HWY_INLINE Complex<N> Turn(const Complex<N>& a, const Complex<N>& b) {
  return {NegMulAdd(a.im, b.im, Mul(a.re, b.re)), MulAdd(a.im, b.re, Mul(a.re, b.im))};
}

// a·b with the conjugate of b: a turned back.
template <int N>
HWY_INLINE Complex<N> TurnBack(const Complex<N>& a, const Complex<N>& b) {
  return {MulAdd(a.im, b.im, Mul(a.re, b.re)), NegMulAdd(a.re, b.im, Mul(a.im, b.re))};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_COMPLEX_INL_H_
