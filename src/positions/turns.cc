#include "src/positions/turns.h"

#include "src/core/numeric.h"

namespace attnops {
namespace {

// The first 256 bits of 1/(2π) behind the binary point.
constexpr std::uint64_t kInverseTurn[] = {0x28be60db9391054a, 0x7f09d5f47d4d3770,
                                          0x36d8a5664f10e410, 0x7f9458eaf7aef158};

// 64 bits of 1/(2π) from bit `start` behind the binary point on; those before
// the point (start < 0) are 0.
std::uint64_t InverseTurnBits(int start) {
  if (start <= -64) return 0;
  if (start < 0) return kInverseTurn[0] >> -start;
  const int word = start / 64;
  const int shift = start % 64;
  if (shift == 0) return kInverseTurn[word];
  return kInverseTurn[word] << shift | kInverseTurn[word + 1] >> (64 - shift);
}

}  // namespace

std::uint64_t TurnsFromTheta(float theta) {
  const std::uint32_t bits = BitsFromFloat(theta);
  const int biased = static_cast<int>(bits >> 23 & 0xff);
  if (biased == 0xff) return 0;
  // |theta| = mantissa · 2^exponent, −149 ≤ exponent ≤ 104.
  const std::uint64_t mantissa = (bits & 0x7fffff) | (biased == 0 ? 0 : 0x800000);
  const int exponent = (biased == 0 ? 1 : biased) - 150;
  // 96 bits of 2^exponent/(2π) modulo 1: 32 more than are kept, since the product
  // with the 24-bit mantissa carries the error of the cut upwards.
  using Wide = unsigned __int128;
  const Wide fraction =
      static_cast<Wide>(InverseTurnBits(exponent)) << 32 | InverseTurnBits(exponent + 64) >> 32;
  const auto turns =
      static_cast<std::uint64_t>((fraction * mantissa + (std::uint64_t{1} << 31)) >> 32);
  return bits >> 31 != 0 ? ~turns + 1 : turns;
}

}  // namespace attnops
