// exp, sigmoid and sincos on float32 vectors. The polynomials are minimax fits on
// the reduced ranges named beside them.

#if defined(ATTNOPS_SRC_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_MATH_INL_H_
#undef ATTNOPS_SRC_SIMD_MATH_INL_H_
#else
#define ATTNOPS_SRC_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// exp(x) = p · 2^n, both returned: p in [0.70, 1.42] and, in the low bits of the
// second vector, n + 127. Garbage where |x| > 126.
struct ExpParts {
  VF p;
  VU biased;
};
HWY_INLINE ExpParts SplitExp(VF x) {
  const DF d;
  // Adding 1.5·2^23 rounds to an integer, which is then in the sum's low bits.
  const VF magic = hn::Set(d, 0x1.8p23f + 127.0f);
  const VF sum = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const VF n = hn::Sub(sum, magic);
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // ln 2 in 10 bits: exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // e^r = 1 + r + r²·(…) for |r| ≤ ln(2)/2, within 3.1e-9.
  VF p = hn::Set(d, 1.3814467e-3f);
  p = hn::MulAdd(p, r, hn::Set(d, 8.3687808e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1668393e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666520e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.9999994e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return {p, hn::BitCast(DU(), sum)};
}

// ln of the smallest normal float32, rounded up: below it exp is flushed to 0.
constexpr float kExpMin = -87.33654f;
constexpr float kExpMax = 88.72283f;  // the largest x with a finite exp

// exp(x) for x ≤ 87: the one that softmax and sigmoid need.
HWY_INLINE VF ExpNoOverflow(VF x) {
  const DF d;
  const ExpParts e = SplitExp(x);
  const VF result = hn::Mul(e.p, hn::BitCast(d, hn::ShiftLeft<23>(e.biased)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpMin)), result);
}

HWY_INLINE VF Exp(VF x) {
  const DF d;
  const DU du;
  const ExpParts e = SplitExp(x);
  // For x > 0 2^n is applied as 2·2^(n−1), since 2^128 is no float32.
  const MF positive = hn::Gt(x, hn::Zero(d));
  const VU one = hn::IfThenElseZero(hn::RebindMask(du, positive), hn::Set(du, 1u));
  const VF scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(e.biased, one)));
  VF result = hn::Mul(e.p, scale);
  result = hn::IfThenElse(positive, hn::Add(result, result), result);
  result = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpMin)), result);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, kExpMax)),
                        hn::Set(d, std::numeric_limits<float>::infinity()), result);
}

// 1/x for x in [1, 2].
HWY_INLINE VF ReciprocalNearOne(VF x) {
  const DF d;
#if HWY_TARGET == HWY_AVX3
  // 14 bits from the table, 28 after one step of Newton's: a division of 16 lanes
  // occupies its port four times as long.
  const VF r = hn::ApproximateReciprocal(x);
  return hn::MulAdd(r, hn::NegMulAdd(x, r, hn::Set(d, 1.0f)), r);
#else
  return hn::Div(hn::Set(d, 1.0f), x);
#endif
}

// From exp(−|x|), which neither overflows nor cancels: small results keep their
// relative accuracy.
HWY_INLINE VF Sigmoid(VF x) {
  const DF d;
  const VF e = ExpNoOverflow(hn::Neg(hn::Abs(x)));
  const VF r = ReciprocalNearOne(hn::Add(e, hn::Set(d, 1.0f)));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(e, r), r);
}

// Sine and cosine of phase · 2π/2^32.
struct SinCos {
  VF sin, cos;
};
HWY_INLINE SinCos SinCosTurns(VU phase) {
  const DF d;
  const DU du;
  const DI di;
  // The nearest quarter turn and the signed rest, exact in integers.
  const VU quarter = hn::ShiftRight<30>(hn::Add(phase, hn::Set(du, 1u << 29)));
  const VU rest = hn::Sub(phase, hn::ShiftLeft<30>(quarter));
  const VF r = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, rest)), hn::Set(d, 1.4629180793e-9f));
  const VF r2 = hn::Mul(r, r);
  // |r| ≤ π/4: sin within 1.8e-9, cos within 1e-10.
  VF s = hn::MulAdd(r2, hn::Set(d, -1.9495636e-4f), hn::Set(d, 8.3319787e-3f));
  s = hn::MulAdd(s, r2, hn::Set(d, -1.6666651e-1f));
  s = hn::MulAdd(hn::Mul(s, r2), r, r);
  VF c = hn::MulAdd(r2, hn::Set(d, 2.4438452e-5f), hn::Set(d, -1.3887368e-3f));
  c = hn::MulAdd(c, r2, hn::Set(d, 4.1666646e-2f));
  c = hn::MulAdd(c, r2, hn::Set(d, -0.5f));
  c = hn::MulAdd(c, r2, hn::Set(d, 1.0f));
  // Quarters 1 and 3 exchange the two; 2 and 3 negate the sine, 1 and 2 the cosine.
  const MF odd = hn::RebindMask(d, hn::TestBit(quarter, hn::Set(du, 1u)));
  const VU sin_sign = hn::ShiftLeft<31>(hn::ShiftRight<1>(quarter));
  const VU cos_sign = hn::ShiftLeft<31>(hn::ShiftRight<1>(hn::Add(quarter, hn::Set(du, 1u))));
  return {hn::Xor(hn::IfThenElse(odd, c, s), hn::BitCast(d, sin_sign)),
          hn::Xor(hn::IfThenElse(odd, s, c), hn::BitCast(d, cos_sign))};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_MATH_INL_H_
