// Terms of the gradient of theta, without their factor, the position.

#if defined(ATTNOPS_SRC_POSITIONS_THETA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_POSITIONS_THETA_INL_H_
#undef ATTNOPS_SRC_POSITIONS_THETA_INL_H_
#else
#define ATTNOPS_SRC_POSITIONS_THETA_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "src/positions/encode-inl.h"
#include "src/simd/complex-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// The imaginary part of the product of o's conjugate with its gradient d. For a rotation it is that
// of y's conjugate with d turned back; for the cosine encoding o is y·(cos, sin).
template <class E, int K>
HWY_INLINE Pack<2 * K> ThetaTerm(const Strip<E::kPlainParts, K>& y, const Strip<2, K>& d,
                                 const Angle<K>& angle) {
  const Complex<2 * K> back = TurnBack({FirstHalf(d), SecondHalf(d)}, angle);
  if constexpr (E::kPlainParts == 2) {
    return NegMulAdd(SecondHalf(y), back.re, Mul(FirstHalf(y), back.im));
  } else {
    return Mul(y, back.im);
  }
}

// Adds a chunk to as many float64 numbers.
HWY_INLINE void AddToDoubles(const Chunk& chunk, double* sums) {
  alignas(64) float values[kMaxChunk];
  StoreChunk(chunk, values);
  for (std::size_t i = 0; i < ChunkSize(); ++i) sums[i] += static_cast<double>(values[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_POSITIONS_THETA_INL_H_
