// Exact scalar conversions from the 16-bit types, and integer division that rounds up or down.
#ifndef ATTNOPS_SRC_CORE_NUMERIC_H_
#define ATTNOPS_SRC_CORE_NUMERIC_H_

#include <cstdint>
#include <cstring>

#include "attnops/types.h"

namespace attnops {

inline float FloatFromBits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint32_t BitsFromFloat(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) {
  return FloatFromBits(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float ToFloat(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 31u;
  const std::uint32_t mantissa = value.bits & 1023u;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t bits = exponent == 31 ? 0x7f800000u : (exponent + 112) << 23;
  return FloatFromBits(sign | bits | (mantissa << 13));
}

constexpr std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// The remainder of a division that rounds down, from 0 to b−1.
constexpr std::int64_t FloorModulo(std::int64_t a, std::int64_t b) { return (a % b + b) % b; }
constexpr std::int64_t RoundUp(std::int64_t a, std::int64_t b) { return DivideUp(a, b) * b; }

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_NUMERIC_H_
