// exp, sigmoid and sincos of the SIMD layer against double and long double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/simd/functions.h"
#include "tests/support/rounding.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kLargest = std::numeric_limits<float>::max();

// Every float of the range whose bits are a multiple of a prime step, of both signs; the ends of
// what exp can do, float by float; the special values.
std::vector<float> Arguments() {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 0x7F800000; bits += 4093) {
    x.push_back(FloatOf(bits));
    x.push_back(-FloatOf(bits));
  }
  for (float value = -110; value < 95; value += 1.0f / 4096) x.push_back(value);
  for (const float end : {88.722839f, -87.336545f, -88.722839f, -103.97208f, 0.0f, 1.0f, -1.0f}) {
    float value = end;
    for (int i = 0; i < 300; ++i) value = std::nextafter(value, -kInf);
    for (int i = 0; i < 600; ++i) x.push_back(value = std::nextafter(value, kInf));
  }
  for (const float value : {0.0f, -0.0f, kInf, -kInf, std::nanf("")}) x.push_back(value);
  return x;
}

// y is the float32 value of a function that is `exact` there, within a relative error. Too large is
// infinity, too small for a normal float may be 0.
bool IsClose(float y, double exact, double tolerance) {
  if (std::isnan(exact)) return std::isnan(y);
  if (y == kInf) return exact * (1 + tolerance) >= kLargest;
  if (exact < kTiny && y == 0) return true;
  // Below the normal floats the spacing is 2^-149.
  return std::abs(y - exact) <= tolerance * exact + (exact < kTiny ? 0x1p-149 : 0);
}

// `function` on every target against `exact`, for arguments up to `most` and NaN.
template <typename Function, typename Exact, typename Tolerance>
void CheckFunction(const Function& function, const Exact& exact, const Tolerance& tolerance,
                   float most = kInf) {
  std::vector<float> x = Arguments();
  x.erase(std::remove_if(x.begin(), x.end(), [&](float value) { return value > most; }), x.end());
  std::vector<double> expected;
  for (const float value : x) expected.push_back(exact(static_cast<double>(value)));
  OnEveryTarget([&] {
    std::vector<float> y(x.size());
    function(x.data(), y.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (IsClose(y[i], expected[i], tolerance(static_cast<double>(x[i])))) continue;
      FAIL() << "at " << x[i] << " it is " << y[i] << ", expected " << expected[i]
             << ", an error of " << (y[i] - expected[i]) / expected[i] / kUnitFloat32 << " units";
    }
  });
}

double ExactExp(double x) { return std::exp(x); }
double ExactSigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Math, Exp) {
  CheckFunction(simd::Exp, ExactExp, [](double) { return kExp; });
}

TEST(Math, ExpFor16Bit) { CheckFunction(simd::ExpFor16Bit, ExactExp, ExpFor16Bit, 88); }

// What softmax relies on.
TEST(Math, ExpOfSpecialValues) {
  const std::vector<float> x = {0, -0.0f, -kInf, kInf, std::nanf(""), -1e30f, 1e30f};
  OnEveryTarget([&] {
    std::vector<float> y(x.size());
    simd::Exp(x.data(), y.data(), x.size());
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], kInf);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_EQ(y[5], 0);
    EXPECT_EQ(y[6], kInf);
  });
}

// Softmax of equal values is their exact mean, and a value of −Inf has no part in it.
TEST(Math, ExpFor16BitOfSpecialValues) {
  const std::vector<float> x = {0, -0.0f, -kInf, std::nanf(""), -1e30f, -3.4e38f};
  OnEveryTarget([&] {
    std::vector<float> y(x.size());
    simd::ExpFor16Bit(x.data(), y.data(), x.size());
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_LE(y[2], kTiny);
    EXPECT_TRUE(std::isnan(y[3]));
    EXPECT_LE(y[4], kTiny);
    EXPECT_LE(y[5], kTiny);
  });
}

TEST(Math, Sigmoid) {
  CheckFunction(simd::Sigmoid, ExactSigmoid, [](double) { return kSigmoid; });
}

TEST(Math, SigmoidFor16Bit) { CheckFunction(simd::SigmoidFor16Bit, ExactSigmoid, SigmoidFor16Bit); }

TEST(Math, SigmoidOfSpecialValues) {
  const std::vector<float> x = {0, -kInf, kInf, std::nanf(""), -1e30f, 1e30f};
  OnEveryTarget([&] {
    for (const auto function : {simd::Sigmoid, simd::SigmoidFor16Bit}) {
      std::vector<float> y(x.size());
      function(x.data(), y.data(), x.size());
      EXPECT_EQ(y[0], 0.5);
      EXPECT_EQ(y[1], 0);
      EXPECT_EQ(y[2], 1);
      EXPECT_TRUE(std::isnan(y[3]));
      EXPECT_EQ(y[4], 0);
      EXPECT_EQ(y[5], 1);
    }
  });
}

// A dense sample, and 64 phases either side of every eighth of a turn.
std::vector<std::uint32_t> Phases() {
  std::vector<std::uint32_t> phases;
  for (std::uint64_t phase = 0; phase < std::uint64_t{1} << 32; phase += 2039) {
    phases.push_back(static_cast<std::uint32_t>(phase));
  }
  for (std::uint32_t eighth = 0; eighth < 8; ++eighth) {
    for (std::uint32_t i = 0; i <= 128; ++i) phases.push_back((eighth << 29) + i - 64);
  }
  return phases;
}

TEST(Math, SinCosTurns) {
  const std::vector<std::uint32_t> phases = Phases();
  std::vector<double> sin_exact(phases.size());
  std::vector<double> cos_exact(phases.size());
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const long double angle = phases[i] * (3.14159265358979323846264338327950288L * 0x1p-31L);
    sin_exact[i] = static_cast<double>(std::sin(angle));
    cos_exact[i] = static_cast<double>(std::cos(angle));
  }
  OnEveryTarget([&] {
    std::vector<float> sin(phases.size());
    std::vector<float> cos(phases.size());
    simd::SinCosTurns(phases.data(), sin.data(), cos.data(), phases.size());
    for (std::size_t i = 0; i < phases.size(); ++i) {
      ASSERT_NEAR(sin[i], sin_exact[i], kSinCos) << "phase " << phases[i];
      ASSERT_NEAR(cos[i], cos_exact[i], kSinCos) << "phase " << phases[i];
    }
  });
}

// No turn at all is no rotation at all.
TEST(Math, SinCosOfNothingIsExact) {
  const std::vector<std::uint32_t> phases(70, 0);
  OnEveryTarget([&] {
    std::vector<float> sin(phases.size(), 7);
    std::vector<float> cos(phases.size(), 7);
    simd::SinCosTurns(phases.data(), sin.data(), cos.data(), phases.size());
    for (std::size_t i = 0; i < phases.size(); ++i) {
      EXPECT_EQ(sin[i], 0);
      EXPECT_EQ(cos[i], 1);
    }
  });
}

TEST(Math, Tails) {
  constexpr std::size_t kGuard = 80;
  const float guard = FloatOf(0x7FC0DEADu);
  OnEveryTarget([&] {
    for (std::size_t n = 0; n <= 70; ++n) {
      std::vector<float> x(n + 2 * kGuard, guard);
      std::vector<std::uint32_t> phases(n + 2 * kGuard, 0x12345678);
      for (std::size_t i = 0; i < n; ++i) x[kGuard + i] = static_cast<float>(i) / 8 - 4;
      std::vector<std::vector<float>> results(4, std::vector<float>(n + 2 * kGuard, guard));
      simd::Exp(&x[kGuard], &results[0][kGuard], n);
      simd::Sigmoid(&x[kGuard], &results[1][kGuard], n);
      simd::SinCosTurns(&phases[kGuard], &results[2][kGuard], &results[3][kGuard], n);
      for (const std::vector<float>& result : results) {
        for (std::size_t i = 0; i < result.size(); ++i) {
          if (i >= kGuard && i < kGuard + n) {
            ASSERT_FALSE(std::isnan(result[i])) << "n " << n << " at " << i;
          } else {
            ASSERT_EQ(BitsOf(result[i]), BitsOf(guard)) << "n " << n << " at " << i;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace attnops::testing
