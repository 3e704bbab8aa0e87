// exp, sigmoid and sincos on float32 vectors. The polynomials are minimax fits on
// the reduced intervals named beside them.

#if defined(ATTNOPS_SRC_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_MATH_INL_H_
#undef ATTNOPS_SRC_SIMD_MATH_INL_H_
#else
#define ATTNOPS_SRC_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// max(bound, x) and min(bound, x); a NaN in x stays one.
template <int N>
HWY_INLINE Pack<N> AtLeast(float bound, const Pack<N>& x) {
#if ATTNOPS_MIN_MAX_GIVE_SECOND
  return Max(Fill<N>(bound), x);
#else
  const VF b = hn::Set(DF(), bound);
  return MakePack<N>(
      [&](int i) ATTNOPS_INLINE_LAMBDA { return hn::IfThenElse(hn::Lt(x.v[i], b), b, x.v[i]); });
#endif
}

template <int N>
HWY_INLINE Pack<N> AtMost(float bound, const Pack<N>& x) {
#if ATTNOPS_MIN_MAX_GIVE_SECOND
  return MakePack<N>([&](int i)
                         ATTNOPS_INLINE_LAMBDA { return hn::Min(hn::Set(DF(), bound), x.v[i]); });
#else
  const VF b = hn::Set(DF(), bound);
  return MakePack<N>(
      [&](int i) ATTNOPS_INLINE_LAMBDA { return hn::IfThenElse(hn::Gt(x.v[i], b), b, x.v[i]); });
#endif
}

// How exact exp is: within 2 ulp of float32 everywhere, or within 1.2e-7 + 7.5e-8·|x|. The latter
// is hundreds of times less than rounding the result to 16 bits loses, and saves two to five
// instructions of fourteen.
enum class Accuracy { kFloat32, k16Bit };

template <typename T>
constexpr Accuracy AccuracyFor() {
  return sizeof(T) == 4 ? Accuracy::kFloat32 : Accuracy::k16Bit;
}

// exp(±x) = p · 2^n: p in [0.70, 2], and 1.5·2^23 + 127 + n, which has n + 127 in its low bits.
// For kExpMin ≤ ±x ≤ 89.
template <int N>
struct ExpSplit {
  Pack<N> p;
  Pack<N> n;
};

// Whether p · 2^⌊n⌋ is one instruction, and t − ⌊t⌋ another. ExpSplit::n is then n itself.
#undef ATTNOPS_SCALE_INSTRUCTION
#define ATTNOPS_SCALE_INSTRUCTION ATTNOPS_HAS_AVX512

// Whether exp takes every x without a clamp: 0 far below, Inf far above, NaN stays.
template <Accuracy kAccuracy>
constexpr bool kExpTakesAll = ATTNOPS_SCALE_INSTRUCTION == 1 && kAccuracy == Accuracy::k16Bit;

// c₀ + f·(c₁ + f·(c₂ + …))
template <int N, typename... Rest>
HWY_INLINE Pack<N> Polynomial(const Pack<N>& f, float first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return Fill<N>(first);
  } else {
    return MulAdd(Polynomial(f, rest...), f, Fill<N>(first));
  }
}

template <Accuracy kAccuracy, int kSign = 1, int N>
HWY_INLINE ExpSplit<N> SplitExp(const Pack<N>& x) {
#if ATTNOPS_SCALE_INSTRUCTION
  if constexpr (kExpTakesAll<kAccuracy>) {
    const Pack<N> t = Mul(x, Fill<N>(kSign * 0x1.715476p+0f));
    constexpr int kLessFloor = 1;
    const Pack<N> f = MakePack<N>(
        [&](int i) ATTNOPS_INLINE_LAMBDA { return VF{_mm512_reduce_ps(t.v[i].raw, kLessFloor)}; });
    // 2^f for 0 ≤ f ≤ 1, within 7.1e-8.
    return {Polynomial(f, 1.0f, 6.93151593e-01f, 2.40162358e-01f, 5.58051281e-02f, 9.01165512e-03f,
                       1.86910178e-03f),
            t};
  }
#endif
  // Adding 1.5·2^23 rounds to an integer, which is then in the sum's low bits.
  const Pack<N> magic = Fill<N>(0x1.8p23f + 127.0f);
  const Pack<N> log2e = Fill<N>(kSign * 0x1.715476p+0f);
  const Pack<N> sum = MulAdd(x, log2e, magic);
  const Pack<N> n = Sub(sum, magic);
#if !ATTNOPS_HAS_FMA
  // Without a fused multiply-add x·log2(e) is rounded. ln(2) is the sum of two constants, of which
  // the first has 10 bits: its product with n is exact.
  Pack<N> r = NegMulAdd(n, Fill<N>(kSign * 0.693359375f), x);
  r = NegMulAdd(n, Fill<N>(kSign * -2.12194440e-4f), r);
  const Pack<N> f = Mul(r, log2e);
#else
  Pack<N> f = MulSub(x, log2e, n);
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    f = MulAdd(x, Fill<N>(kSign * 0x1.4ae0bep-26f), f);  // the next bits of log2(e)
  }
#endif
  // 2^f for |f| ≤ 1/2, within 2.6e-9 or 1.1e-7.
  const Pack<N>& exponent = ATTNOPS_SCALE_INSTRUCTION ? n : sum;
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    return {Polynomial(f, 1.0f, 6.9314724e-1f, 2.4022652e-1f, 5.5503096e-2f, 9.617689e-3f,
                       1.3406951e-3f, 1.559548e-4f),
            exponent};
  }
  return {Polynomial(f, 1.0f, 6.93147181e-01f, 2.40222798e-01f, 5.55056040e-02f, 9.66980933e-03f,
                     1.33001871e-03f),
          exponent};
}

// p · 2^n; without the instruction 0 for n = −127.
template <int N>
HWY_INLINE Pack<N> Scale(const ExpSplit<N>& e) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA {
#if ATTNOPS_SCALE_INSTRUCTION
    return VF{_mm512_scalef_ps(e.p.v[i].raw, e.n.v[i].raw)};
#else
    return hn::Mul(e.p.v[i], hn::BitCast(DF(), hn::ShiftLeft<23>(hn::BitCast(DU(), e.n.v[i]))));
#endif
  });
}

// Below it exp is 0: it is less than half the smallest float32 or, without the instruction, its
// scale 2^n has the exponent bits of 0.
constexpr float kExpMin = ATTNOPS_SCALE_INSTRUCTION ? -104.0f : -88.0f;
constexpr float kExpMax = 88.72283f;  // the largest x with a finite exp

// exp(x) for |x| ≤ 87, or for every x if kExpTakesAll.
template <Accuracy kAccuracy, int N>
HWY_INLINE Pack<N> ExpWithin87(const Pack<N>& x) {
  return Scale(SplitExp<kAccuracy>(x));
}

// exp(x) for x ≤ 88, which softmax needs.
template <Accuracy kAccuracy, int N>
HWY_INLINE Pack<N> ExpNoOverflow(const Pack<N>& x) {
  if constexpr (kExpTakesAll<kAccuracy>) return ExpWithin87<kAccuracy>(x);
  return ExpWithin87<kAccuracy>(AtLeast(kExpMin, x));
}

// exp(x) for every x. For x > 0 2^n is applied as 2·2^(n−1), since 2^128 is no float32.
HWY_INLINE VF Exp(VF x) {
  const DF d;
  const MF overflow = hn::Gt(x, hn::Set(d, kExpMax));
  ExpSplit<1> e =
      SplitExp<Accuracy::kFloat32>(AtLeast(kExpMin, Pack<1>{{hn::IfThenZeroElse(overflow, x)}}));
  const VF one = hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f));
  e.n = Sub(e.n, Pack<1>{{one}});
  const VF half = Scale(e).v[0];
  const VF result = hn::MulAdd(half, one, half);
  return hn::IfThenElse(overflow, hn::Set(d, std::numeric_limits<float>::infinity()), result);
}

// Lanes where x is not below the bound, those with a NaN included.
template <int N>
HWY_INLINE Pack<N, MF> NotBelow(float bound, const Pack<N>& x) {
  Pack<N, MF> mask;
  const VF b = hn::Set(DF(), bound);
  for (int i = 0; i < N; ++i) {
#if ATTNOPS_HAS_AVX512
    mask.v[i] = MF{_mm512_cmp_ps_mask(x.v[i].raw, b.raw, _CMP_NLT_UQ)};
#else
    mask.v[i] = hn::Not(hn::Lt(x.v[i], b));
#endif
  }
  return mask;
}

// 1/x for x in [1, 2^126], and 0 in the lanes that are not wanted; arbitrary elsewhere.
template <int N>
HWY_INLINE Pack<N> ReciprocalAboveOne(const Pack<N>& x, const Pack<N, MF>& wanted) {
#if ATTNOPS_HAS_AVX512
  // 14 bits from the table, 28 after one step of Newton's: a division of 16 lanes
  // occupies its port four times as long.
  const Pack<N> r =
      MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::ApproximateReciprocal(x.v[i]); });
  const Pack<N> error = NegMulAdd(x, r, Fill<N>(1.0f));
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA {
    return VF{_mm512_maskz_fmadd_ps(wanted.v[i].raw, r.v[i].raw, error.v[i].raw, r.v[i].raw)};
  });
#else
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA {
    return hn::IfThenElseZero(wanted.v[i], hn::Div(hn::Set(DF(), 1.0f), x.v[i]));
  });
#endif
}

// 1/(1 + exp(−x)); results below the smallest normal float32 are 0.
template <Accuracy kAccuracy, int N>
HWY_INLINE Pack<N> Sigmoid(const Pack<N>& x) {
  const ExpSplit<N> e = SplitExp<kAccuracy, -1>(kExpTakesAll<kAccuracy> ? x : AtMost(88.0f, x));
  return ReciprocalAboveOne(Add(Scale(e), Fill<N>(1.0f)), NotBelow(-87.33654f, x));
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
