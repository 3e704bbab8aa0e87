// The angle is exact: float32 results within 1e-6 of the pair's length at any position.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr std::int64_t kOffsets[] = {0,          1'000'000,    1'000'000'000,    1LL << 31,
                                     -1'000'000, -(1LL << 31), (1LL << 24) - 16, (1LL << 31) - 20};

// Replaces the thetas by `thetas`, repeated.
void FillTheta(RotateCase& c, const std::vector<double>& thetas) {
  std::vector<double> values(c.theta.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = thetas[i % thetas.size()];
  c.theta.Fill(values);
}

TEST(LrpeRotateAccuracy, RandomThetaUpTo16) {
  for (const std::int64_t offset : kOffsets) {
    for (const std::int64_t features : {2, 6, 128, 130}) {
      RotateCase c({.batch = 2,
                    .length = 200,
                    .heads = 7,
                    .features = features,
                    .theta_heads = 7,
                    .theta_features = features / 2,
                    .offset = offset});
      c.theta.Fill(RandomUniform(c.theta.size(), 11, -16, 16));
      OnEveryTarget([&] {
        c.CheckForward();
        c.CheckBackward();
      });
    }
  }
}

TEST(LrpeRotateAccuracy, AwkwardTheta) {
  const std::vector<double> thetas = AwkwardThetas();
  const auto pairs = static_cast<std::int64_t>(thetas.size());
  for (const std::int64_t offset : kOffsets) {
    RotateCase c({.length = 100, .features = 2 * pairs, .theta_features = pairs, .offset = offset});
    FillTheta(c, thetas);
    OnEveryTarget([&] {
      c.CheckForward();
      c.CheckBackward();
    });
  }
}

// One theta for all pairs, which a kernel may treat apart.
TEST(LrpeRotateAccuracy, SharedTheta) {
  for (const double theta : AwkwardThetas()) {
    for (const std::int64_t offset : kOffsets) {
      RotateCase c({.length = 40, .features = 6, .theta_features = 1, .offset = offset});
      c.theta.Fill({theta});
      OnEveryTarget([&] { c.CheckForward(); });
    }
  }
}

// The frequencies of rotary encodings, 10000^(-2j/D), in x's type and in float32.
TEST(LrpeRotateAccuracy, RotaryFrequencies) {
  for (const DType dtype : kAllTypes) {
    for (const DType theta_dtype : {DType::kFloat32, dtype}) {
      for (const std::int64_t offset : kOffsets) {
        RotateCase c({.dtype = dtype,
                      .theta_dtype = theta_dtype,
                      .length = 64,
                      .features = 128,
                      .theta_features = 64,
                      .offset = offset});
        std::vector<double> thetas;
        for (int j = 0; j < 64; ++j) thetas.push_back(std::pow(10000.0, -j / 64.0));
        c.theta.Fill(thetas);
        OnEveryTarget([&] { c.CheckForward(); });
      }
    }
  }
}

// A long sequence: an error that grows along the sequence would show.
TEST(LrpeRotateAccuracy, LongSequence) {
  for (const std::int64_t offset : {0LL, 1'000'000'000LL}) {
    RotateCase c({.length = 20'000, .features = 16, .theta_features = 8, .offset = offset});
    c.theta.Fill({16, -15.999999, 3.14159274, 1, 0.3333333, 1e-3, 1e-6, 0});
    OnEveryTarget([&] {
      c.CheckForward();
      c.CheckBackward();
    });
  }
}

// Every pair keeps the scale of its own: a small pair next to a large one is as accurate.
TEST(LrpeRotateAccuracy, PairsOfAllMagnitudes) {
  RotateCase c({.length = 50, .features = 128, .theta_features = 64, .offset = 1'000'000'000});
  std::vector<double> x = c.x.Values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] *= std::pow(10.0, static_cast<double>(i % 64) - 32);
  }
  c.x.Fill(x);
  OnEveryTarget([&] { c.CheckForward(); });
}

// Beyond |theta| = 16 accuracy is not promised, but the result is finite and no longer than x.
TEST(LrpeRotateAccuracy, HugeThetaStaysBounded) {
  const std::vector<double> thetas = {17,    1e3,          -1e5,          1e7,    1e10,
                                      -1e15, 1e20,         -1e25,         1e30,   -1e35,
                                      1e38,  3.4028234e38, -3.4028234e38, 0x1p127};
  const auto pairs = static_cast<std::int64_t>(thetas.size());
  for (const std::int64_t offset : {0LL, 1LL, -7LL, 1'000'000'000LL, 1LL << 31, -(1LL << 31)}) {
    RotateCase c({.length = 64, .features = 2 * pairs, .theta_features = pairs, .offset = offset});
    c.theta.Fill(thetas);
    const std::vector<double> x = c.x.Values();
    OnEveryTarget([&] {
      c.Forward();
      EXPECT_TRUE(c.out.AllWritten());
      const std::vector<double> out = c.out.Values();
      for (std::size_t row = 0; row < out.size(); row += c.spec().features) {
        for (std::size_t j = row; j < row + pairs; ++j) {
          const double before = std::hypot(x[j], x[j + pairs]);
          const double after = std::hypot(out[j], out[j + pairs]);
          ASSERT_TRUE(after <= before * (1 + kRotation))
              << "theta " << thetas[j - row] << " offset " << offset << " row "
              << row / c.spec().features << ": " << after << " from " << before;
        }
      }
    });
  }
}

}  // namespace
}  // namespace attnops::testing
