// Conversions between float and the 16-bit types, in integer arithmetic and independent of the
// library's: to nearest even, infinities kept, a NaN stays a NaN.
#ifndef ATTNOPS_TESTS_SUPPORT_ROUNDING_H_
#define ATTNOPS_TESTS_SUPPORT_ROUNDING_H_

#include <cstdint>
#include <cstring>

#include "attnops/types.h"

namespace attnops::testing {

inline std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// value / 2^shift to the nearest integer, ties to even; 0 < shift < 32.
inline std::uint32_t ShiftToNearestEven(std::uint32_t value, int shift) {
  const std::uint32_t quotient = value >> shift;
  const std::uint32_t rest = value & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  return quotient + (rest > half || (rest == half && (quotient & 1)));
}

inline std::uint16_t BFloat16Bits(std::uint32_t float_bits) {
  const bool nan = (float_bits & 0x7FFFFFFF) > 0x7F800000;
  if (nan) return static_cast<std::uint16_t>((float_bits >> 16) | 0x40);
  return static_cast<std::uint16_t>(ShiftToNearestEven(float_bits, 16));
}

inline std::uint16_t Float16Bits(std::uint32_t float_bits) {
  const std::uint32_t sign = (float_bits >> 16) & 0x8000;
  const std::uint32_t magnitude = float_bits & 0x7FFFFFFF;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const std::uint32_t fraction = magnitude & 0x7FFFFF;
  std::uint32_t bits = 0;
  if (magnitude > 0x7F800000) {
    bits = 0x7E00;
  } else if (exponent > 15) {
    bits = 0x7C00;
  } else if (exponent >= -14) {
    // A carry out of the fraction raises the exponent, up to infinity.
    bits = (static_cast<std::uint32_t>(exponent + 15) << 10) + ShiftToNearestEven(fraction, 13);
  } else if (exponent >= -25) {
    // Subnormal: a multiple of 2^-24. The value is (2^23 + fraction) · 2^(exponent−23).
    bits = ShiftToNearestEven(0x800000 | fraction, -1 - exponent);
  }
  return static_cast<std::uint16_t>(sign | bits);
}

inline float FloatOf(BFloat16 value) {
  return FloatOf(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float FloatOf(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1F;
  const std::uint32_t fraction = value.bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return FloatOf(sign | BitsOf(magnitude));
  }
  const std::uint32_t float_exponent = exponent == 0x1F ? 0xFF : exponent + 112;
  return FloatOf(sign | (float_exponent << 23) | (fraction << 13));
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_ROUNDING_H_
