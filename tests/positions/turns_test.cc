// Angles as fractions of a turn, against long double arithmetic.
#include "src/positions/turns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <random>

namespace attnops {
namespace {

constexpr long double kTurn = 2 * std::numbers::pi_v<long double>;

// The distance of the angle position·theta from the one that the turns give, in radians.
long double AngleError(float theta, std::int64_t position) {
  const std::uint64_t turns = TurnsFromTheta(theta) * static_cast<std::uint64_t>(position);
  const long double found = static_cast<long double>(turns) * 0x1p-64L * kTurn;
  const long double exact = static_cast<long double>(theta) * static_cast<long double>(position);
  // sinl and cosl reduce their argument exactly.
  return std::hypot(std::sin(found) - std::sin(exact), std::cos(found) - std::cos(exact));
}

TEST(Turns, AreExactAtAnyPosition) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-16.0f, 16.0f);
  for (int i = 0; i < 2000; ++i) {
    const float theta =
        i % 2 == 0 ? uniform(generator) : std::pow(10.0f, -std::abs(uniform(generator)));
    for (const std::int64_t position :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{-7}, std::int64_t{1'000'000},
          std::int64_t{1'000'000'000}, std::int64_t{1} << 32, -(std::int64_t{1} << 31)}) {
      EXPECT_LE(AngleError(theta, position), 8e-10L) << theta << " at " << position;
    }
  }
}

TEST(Turns, AreExactForEveryMagnitude) {
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (const float mantissa : {1.0f, 1.75f, -1.1f}) {
      const float theta = std::ldexp(mantissa, exponent);
      // Beyond 2^63 the x87 instructions behind long double do not reduce.
      if (std::abs(theta) < 0x1p62f) {
        EXPECT_LE(AngleError(theta, 1), 1e-18L) << theta;
      }
    }
  }
}

TEST(Turns, OfLargeNumbersAreTheirRemainder) {
  // Differences of turns are turns of differences where these are exact.
  for (const float theta : {0x1p70f, 0x1.8p100f, 0x1p127f}) {
    EXPECT_EQ(TurnsFromTheta(2 * (theta / 2)), TurnsFromTheta(theta));
    const std::uint64_t twice = 2 * TurnsFromTheta(theta / 2);
    const auto difference = static_cast<std::int64_t>(twice - TurnsFromTheta(theta));
    EXPECT_LE(std::abs(difference), 2) << theta;
  }
}

TEST(Turns, OfNonFiniteNumbersAreZero) {
  EXPECT_EQ(TurnsFromTheta(std::numeric_limits<float>::infinity()), 0u);
  EXPECT_EQ(TurnsFromTheta(std::numeric_limits<float>::quiet_NaN()), 0u);
}

TEST(Turns, OfTheNegativeAreTheNegative) {
  EXPECT_EQ(TurnsFromTheta(-0.7f), std::uint64_t{0} - TurnsFromTheta(0.7f));
}

}  // namespace
}  // namespace attnops
