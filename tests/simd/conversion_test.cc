// Conversions between float and the 16-bit types: all 16-bit values, tails, and the floats around
// every rounding boundary. exhaustive_test takes all floats.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attnops/types.h"
#include "tests/simd/functions.h"
#include "tests/support/rounding.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

bool IsNan(Float16 value) { return (value.bits & 0x7FFF) > 0x7C00; }
bool IsNan(BFloat16 value) { return (value.bits & 0x7FFF) > 0x7F80; }

template <typename T>
T Expected(float value);
template <>
Float16 Expected(float value) {
  return {Float16Bits(BitsOf(value))};
}
template <>
BFloat16 Expected(float value) {
  return {BFloat16Bits(BitsOf(value))};
}

template <typename T>
class Conversion : public ::testing::Test {};
using HalfTypes = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(Conversion, HalfTypes);

template <typename T>
void CheckFromFloat(const std::vector<float>& from) {
  std::vector<T> to(from.size());
  simd::ConvertFromFloat(from.data(), to.data(), from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    const T expected = Expected<T>(from[i]);
    if (IsNan(expected)) {
      ASSERT_TRUE(IsNan(to[i])) << std::hex << BitsOf(from[i]) << " became " << to[i].bits;
    } else {
      ASSERT_EQ(to[i].bits, expected.bits) << std::hex << BitsOf(from[i]);
    }
  }
}

TYPED_TEST(Conversion, EveryValueToFloat) {
  std::vector<TypeParam> from(1 << 16);
  for (std::size_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<std::uint16_t>(i);
  OnEveryTarget([&] {
    std::vector<float> to(from.size());
    simd::ConvertToFloat(from.data(), to.data(), from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (IsNan(from[i])) {
        ASSERT_TRUE(std::isnan(to[i])) << std::hex << i;
      } else {
        ASSERT_EQ(BitsOf(to[i]), BitsOf(FloatOf(from[i]))) << std::hex << i;
      }
    }
  });
}

TYPED_TEST(Conversion, ThereAndBack) {
  std::vector<float> from;
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    from.push_back(FloatOf(TypeParam{static_cast<std::uint16_t>(i)}));
  }
  OnEveryTarget([&] { CheckFromFloat<TypeParam>(from); });
}

// Halfway between two neighbours, and one float above and below.
TYPED_TEST(Conversion, RoundingBoundaries) {
  std::vector<float> from;
  for (std::uint32_t i = 0; i + 1 < 1 << 16; ++i) {
    const double low = FloatOf(TypeParam{static_cast<std::uint16_t>(i)});
    const double high = FloatOf(TypeParam{static_cast<std::uint16_t>(i + 1)});
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    from.push_back(middle);
    from.push_back(std::nextafter(middle, INFINITY));
    from.push_back(std::nextafter(middle, -INFINITY));
  }
  OnEveryTarget([&] { CheckFromFloat<TypeParam>(from); });
}

TYPED_TEST(Conversion, OverflowAndSpecialValues) {
  std::vector<float> from;
  for (const std::uint32_t bits :
       {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00800000u, 0x33000000u, 0x33000001u,
        0x32FFFFFFu, 0x477FE000u, 0x477FEFFFu, 0x477FF000u, 0x477FFFFFu, 0x47800000u,
        0x7F7F0000u, 0x7F7F7FFFu, 0x7F7F8000u, 0x7F7FFFFFu, 0x7F800000u, 0x7F800001u,
        0x7F80FFFFu, 0x7FBFFFFFu, 0x7FC00000u, 0x7FFFFFFFu}) {
    from.push_back(FloatOf(bits));
    from.push_back(FloatOf(bits | 0x80000000u));
  }
  OnEveryTarget([&] { CheckFromFloat<TypeParam>(from); });
}

// Every length up to more than the widest vectors, at every alignment: nothing is written past the
// end, nothing that is read past it changes the result.
TYPED_TEST(Conversion, Tails) {
  constexpr std::size_t kGuard = 80;
  constexpr std::uint16_t kHalfGuard = 0x7FDA;  // a NaN of both types
  constexpr std::uint32_t kFloatGuard = 0x7FC0DEAD;
  OnEveryTarget([&] {
    for (std::size_t n = 0; n <= 70; ++n) {
      for (std::size_t shift = 0; shift < 3; ++shift) {
        std::vector<float> floats(n + 2 * kGuard, FloatOf(kFloatGuard));
        std::vector<TypeParam> halves(n + 2 * kGuard, TypeParam{kHalfGuard});
        const std::size_t first = kGuard - shift;
        for (std::size_t i = 0; i < n; ++i) floats[first + i] = static_cast<float>(i) + 0.125f;

        simd::ConvertFromFloat(&floats[first], &halves[first], n);
        for (std::size_t i = 0; i < halves.size(); ++i) {
          const bool inside = i >= first && i < first + n;
          ASSERT_EQ(halves[i].bits, inside ? Expected<TypeParam>(floats[i]).bits : kHalfGuard)
              << "n " << n << " at " << i;
        }

        std::vector<float> back(n + 2 * kGuard, FloatOf(kFloatGuard));
        simd::ConvertToFloat(&halves[first], &back[first], n);
        for (std::size_t i = 0; i < back.size(); ++i) {
          const bool inside = i >= first && i < first + n;
          ASSERT_EQ(BitsOf(back[i]), inside ? BitsOf(FloatOf(halves[i])) : kFloatGuard)
              << "n " << n << " at " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace attnops::testing
