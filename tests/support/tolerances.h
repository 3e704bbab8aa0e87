// How far a result may be from the reference. This is the only place with tolerances: each is an
// error analysis of float32 arithmetic plus one rounding to the stored type, never a fitted number.
//
// An operator's bound is  arithmetic · scale + StorageError,  where the scale is a quantity of the
// reference that the operator names: the length of the rotated pair for lrpe_rotate, |y| for
// md_lrpe_cosine.
#ifndef ATTNOPS_TESTS_SUPPORT_TOLERANCES_H_
#define ATTNOPS_TESTS_SUPPORT_TOLERANCES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attnops/precision.h"
#include "attnops/types.h"

namespace attnops::testing {

// The largest relative error of rounding to nearest: 24, 11 and 8 bits of precision.
inline constexpr double kUnitFloat32 = 0x1p-24;
inline constexpr double kUnitFloat16 = 0x1p-11;
inline constexpr double kUnitBFloat16 = 0x1p-8;

// The smallest normal float32: what is below it may be flushed to zero on the way.
inline constexpr double kTiny = 0x1p-126;

// Rotation of a pair in float32 with an exact angle, relative to the length of the pair, with the
// final rounding to float32: the promise of the interface, at any position.
inline constexpr double kRotation = 1e-6;

// The gradient of theta, relative to the sum of its terms' magnitudes: the promise of the
// interface. A term has a few float32 roundings, their sum over a block fifteen more, that of
// blocks is float64.
inline constexpr double kThetaGradient = 1e-5;

// exp within 2 ulp (an ulp is at most two units), the library's promise for its own exp.
inline constexpr double kExp = 4 * kUnitFloat32;

// sigmoid = 1/(1+exp(-x)): the error of exp, the sum and the quotient, within 4 ulp.
inline constexpr double kSigmoid = 8 * kUnitFloat32;

// exp and sigmoid for tensors of 16 bits, where two roundings remain that grow with x: that of
// x·log2(e), a unit of it, and that of log2(e), a quarter of a unit.
inline constexpr double kExpArgument = 1.25 * kUnitFloat32;
inline double ExpFor16Bit(double x) { return kExp + kExpArgument * std::abs(x); }
inline double SigmoidFor16Bit(double x) { return kSigmoid + kExpArgument * std::abs(x); }

// sin and cos of a phase, absolute.
inline constexpr double kSinCos = 1.5e-7;

// silu = x · sigmoid(x).
inline constexpr double kSilu = kSigmoid + 2 * kUnitFloat32;

// s(1−s), relative to s, and s(1+x(1−s)), relative to s(1+|x|): two sigmoid errors, since 1−s keeps
// the absolute error of s, and the roundings of a few products and sums.
inline constexpr double kSigmoidGradient = 2 * kSigmoid + 8 * kUnitFloat32;

// One softmax term exp(x−max)/Σ, relative, without the rounding of x−max and of the sum: exp of the
// term, the mean error of exp in the sum, two rescalings by exp(max−new max), and the quotient.
inline constexpr double kSoftmax = 4 * kExp + 8 * kUnitFloat32;

// The rounding of x−max is a relative error of exp(x−max).
inline double SoftmaxArgument(double x, double max) { return kUnitFloat32 * std::abs(x - max); }

// A sum of n terms, relative to the sum of their magnitudes. Rounding errors are as good as random:
// √n/3 units are expected of one running float32 sum, fewer of several; this is six times that.
inline double SumError(std::int64_t n) {
  return 2 * kUnitFloat32 * std::sqrt(static_cast<double>(n));
}

// What it adds to a sum of products, relative to the sum of their magnitudes, that n of the
// operands which a term goes through are rounded to bfloat16.
inline double OperandError(Precision precision, int n) {
  return precision == Precision::kMedium ? std::pow(1 + kUnitBFloat16, n) - 1 : 0;
}

// A product of decays of linear_attention, relative: a factor exp of each level of the tree of a
// block's tokens and of each side, and the rounding of its argument, a sum of logarithms of this
// size. Where the sum is below −88, the product is 0.
inline double DecayError(double log) { return 16 * kExp + 4 * kUnitFloat32 * std::min(log, 88.0); }

// One rounding of a value to the stored type; float32's is part of the arithmetic above. Below
// float16's smallest normal number the spacing is 2^-24.
inline double StorageError(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat16:
      return kUnitFloat16 * std::abs(value) + 0x1p-25;
    case DType::kBFloat16:
      return kUnitBFloat16 * std::abs(value) + kTiny;
    case DType::kFloat32:
      break;
  }
  return 0;
}

// Central differences of a double-precision function of order 1, with step 1e-5: the truncation is
// of order step², the cancellation of order 1e-16 / step.
inline constexpr double kDifferenceStep = 1e-5;
inline constexpr double kDifference = 1e-8;

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_TOLERANCES_H_
