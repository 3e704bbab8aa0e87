// A few vectors that take the same steps.
//
// exp and its like are chains of a dozen dependent instructions. Written for one vector
// after the other they fill the processor's window with waiting instructions; written step
// by step over several vectors, which is what these functions do, there is always one ready.

#if defined(ATTNOPS_SRC_SIMD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_PACK_INL_H_
#undef ATTNOPS_SRC_SIMD_PACK_INL_H_
#else
#define ATTNOPS_SRC_SIMD_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <utility>

// After the parameters of a lambda that runs in a kernel's inner loop: compiled for the
// kernel's target and never a call, which would pass vectors through memory.
#undef ATTNOPS_INLINE_LAMBDA
#define ATTNOPS_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using MF = hn::Mask<DF>;

template <int N, class V = VF>
struct Pack {
#if HWY_ARCH_ARM
  // NEON's vectors have constructors. g++ compiles the implicit constructors of a struct of them
  // without the target's instructions and then cannot inline them, so here they are written out.
  struct Vectors {
    V v[N];
  };
  HWY_INLINE Pack() {}
  HWY_INLINE Pack(const Vectors& from) {  // NOLINT(google-explicit-constructor): Pack<2>{{a, b}}
    for (int i = 0; i < N; ++i) v[i] = from.v[i];
  }
#endif
  V v[N];
};

// f(0), …, f(N−1), written out and not as a loop: the compiler then keeps the vectors in
// registers.
template <int N, class F>
HWY_INLINE Pack<N> MakePack(const F& f) {
  return [&]<int... I>(std::integer_sequence<int, I...>) ATTNOPS_INLINE_LAMBDA {
    return Pack<N>{{f(I)...}};
  }
  (std::make_integer_sequence<int, N>());
}

// Calls f(0), …, f(N−1) with compile-time constants, written out.
template <int N, class F>
HWY_INLINE void ForEach(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) ATTNOPS_INLINE_LAMBDA {
    (f(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, N>());
}

// One value in all lanes, as an operand of the functions below.
template <int N>
HWY_INLINE Pack<N> Fill(VF value) {
  return MakePack<N>([&](int) ATTNOPS_INLINE_LAMBDA { return value; });
}
template <int N>
HWY_INLINE Pack<N> Fill(float value) {
  return Fill<N>(hn::Set(DF(), value));
}

template <int N>
HWY_INLINE Pack<N> Add(const Pack<N>& a, const Pack<N>& b) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Add(a.v[i], b.v[i]); });
}
template <int N>
HWY_INLINE Pack<N> Sub(const Pack<N>& a, const Pack<N>& b) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Sub(a.v[i], b.v[i]); });
}
template <int N>
HWY_INLINE Pack<N> Mul(const Pack<N>& a, const Pack<N>& b) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Mul(a.v[i], b.v[i]); });
}
// a·b + c
template <int N>
HWY_INLINE Pack<N> MulAdd(const Pack<N>& a, const Pack<N>& b, const Pack<N>& c) {
  return MakePack<N>([&](int i)
                         ATTNOPS_INLINE_LAMBDA { return hn::MulAdd(a.v[i], b.v[i], c.v[i]); });
}
// a·b − c
template <int N>
HWY_INLINE Pack<N> MulSub(const Pack<N>& a, const Pack<N>& b, const Pack<N>& c) {
  return MakePack<N>([&](int i)
                         ATTNOPS_INLINE_LAMBDA { return hn::MulSub(a.v[i], b.v[i], c.v[i]); });
}
// c − a·b
template <int N>
HWY_INLINE Pack<N> NegMulAdd(const Pack<N>& a, const Pack<N>& b, const Pack<N>& c) {
  return MakePack<N>([&](int i)
                         ATTNOPS_INLINE_LAMBDA { return hn::NegMulAdd(a.v[i], b.v[i], c.v[i]); });
}
template <int N>
HWY_INLINE Pack<N> Neg(const Pack<N>& a) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Neg(a.v[i]); });
}
template <int N>
HWY_INLINE Pack<N> Abs(const Pack<N>& a) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Abs(a.v[i]); });
}
template <int N>
HWY_INLINE Pack<N> Max(const Pack<N>& a, const Pack<N>& b) {
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Max(a.v[i], b.v[i]); });
}
// 0 where x ≤ 0, else `other`.
template <int N>
HWY_INLINE Pack<N> ZeroWhereNotPositive(const Pack<N>& x, const Pack<N>& other) {
  const VF zero = hn::Zero(DF());
  return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA {
    return hn::IfThenZeroElse(hn::Le(x.v[i], zero), other.v[i]);
  });
}

template <int N>
HWY_INLINE Pack<N> Select(const Pack<N, MF>& mask, const Pack<N>& yes, const Pack<N>& no) {
  return MakePack<N>(
      [&](int i) ATTNOPS_INLINE_LAMBDA { return hn::IfThenElse(mask.v[i], yes.v[i], no.v[i]); });
}

template <int N>
HWY_INLINE bool AnyGreater(const Pack<N>& a, const Pack<N>& b) {
  MF any = hn::Gt(a.v[0], b.v[0]);
  for (int i = 1; i < N; ++i) any = hn::Or(any, hn::Gt(a.v[i], b.v[i]));
  return !hn::AllFalse(DF(), any);
}

// False where one of them is a NaN.
template <int N>
HWY_INLINE bool AllAtMost(const Pack<N>& a, const Pack<N>& b) {
  MF all = hn::Le(a.v[0], b.v[0]);
  for (int i = 1; i < N; ++i) all = hn::And(all, hn::Le(a.v[i], b.v[i]));
  return hn::AllTrue(DF(), all);
}

// Two packs as one, and its halves.
template <int N>
HWY_INLINE Pack<2 * N> Join(const Pack<N>& a, const Pack<N>& b) {
  return MakePack<2 * N>([&](int i) ATTNOPS_INLINE_LAMBDA { return i < N ? a.v[i] : b.v[i - N]; });
}
template <int N>
HWY_INLINE Pack<N / 2> FirstHalf(const Pack<N>& a) {
  return MakePack<N / 2>([&](int i) ATTNOPS_INLINE_LAMBDA { return a.v[i]; });
}
template <int N>
HWY_INLINE Pack<N / 2> SecondHalf(const Pack<N>& a) {
  return MakePack<N / 2>([&](int i) ATTNOPS_INLINE_LAMBDA { return a.v[N / 2 + i]; });
}

// The maximum and the sum of the vectors of a pack, lane by lane; N is a power of two.
template <int N>
HWY_INLINE VF MaxOfVectors(const Pack<N>& a) {
  if constexpr (N == 1) {
    return a.v[0];
  } else {
    return MaxOfVectors(Max(FirstHalf(a), SecondHalf(a)));
  }
}
template <int N>
HWY_INLINE VF SumOfVectors(const Pack<N>& a) {
  if constexpr (N == 1) {
    return a.v[0];
  } else {
    return SumOfVectors(Add(FirstHalf(a), SecondHalf(a)));
  }
}
// The sum of the products of two packs' vectors, lane by lane.
template <int N>
HWY_INLINE VF SumOfProducts(const Pack<N>& a, const Pack<N>& b) {
  if constexpr (N == 1) {
    return hn::Mul(a.v[0], b.v[0]);
  } else {
    return SumOfVectors(MulAdd(SecondHalf(a), SecondHalf(b), Mul(FirstHalf(a), FirstHalf(b))));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_PACK_INL_H_
