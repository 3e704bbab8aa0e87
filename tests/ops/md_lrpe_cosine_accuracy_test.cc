// The angle is exact: float32 results within 1e-6 of |y| at any position.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr std::int64_t kOffsets[] = {0,          1'000'000,    1'000'000'000,    1LL << 31,
                                     -1'000'000, -(1LL << 31), (1LL << 24) - 16, (1LL << 31) - 20};

// The bound that the interface promises, spelt out rather than taken from the table.
TEST(MdLrpeCosineAccuracy, FarOutWithinAMillionthOfY) {
  for (const std::int64_t offset : {1'000'000LL, 1'000'000'000LL}) {
    CosineCase c({.heads = 2, .shape = {200}, .l = 3, .features = 65, .offset = offset});
    const std::vector<double> x = c.x.Values();
    const std::vector<double> expected = c.Reference().Forward(x, c.theta.Values());
    for (const Angles angles : kBothAngles) {
      OnEveryTarget([&] {
        c.BuildTable();
        c.Forward(angles);
        const std::vector<double> out = c.out.Values();
        for (std::size_t i = 0; i < out.size(); ++i) {
          const double y = std::abs(x[i / 130 * 65 + i % 65]);
          ASSERT_LE(std::abs(out[i] - expected[i]), 1e-6 * y) << i;
        }
      });
    }
  }
}

TEST(MdLrpeCosineAccuracy, RandomThetaUpTo16) {
  for (const std::int64_t offset : kOffsets) {
    for (const std::int64_t features : {1, 6, 65}) {
      CosineCase c({.batch = 2,
                    .heads = 3,
                    .shape = {100},
                    .l = 1,
                    .features = features,
                    .theta_heads = 3,
                    .offset = offset});
      c.theta.Fill(RandomUniform(c.theta.size(), 11, -16, 16));
      OnEveryTarget([&] { c.CheckAll(); });
    }
  }
}

TEST(MdLrpeCosineAccuracy, AwkwardTheta) {
  const std::vector<double> thetas = AwkwardThetas();
  const auto count = static_cast<std::int64_t>(thetas.size());
  for (const std::int64_t offset : kOffsets) {
    CosineCase c({.shape = {100}, .features = count, .offset = offset});
    c.theta.Fill(thetas);
    OnEveryTarget([&] { c.CheckAll(); });
  }
  for (const Dims& shape : {Dims{40, 3}, Dims{3, 40}, Dims{2, 40, 2}}) {
    CosineCase c({.shape = shape, .features = shape.rank() * count});
    c.theta.Fill(thetas);
    OnEveryTarget([&] { c.CheckAll(); });
  }
}

// The frequencies of rotary encodings, 10000^(-2j/D), in x's type and in float32.
TEST(MdLrpeCosineAccuracy, RotaryFrequencies) {
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    for (const std::int64_t offset : kOffsets) {
      CosineCase c({.dtype = dtype,
                    .theta_dtype = theta_dtype,
                    .shape = {40},
                    .features = 64,
                    .offset = offset});
      std::vector<double> thetas;
      for (int j = 0; j < 64; ++j) thetas.push_back(std::pow(10000.0, -j / 64.0));
      c.theta.Fill(thetas);
      OnEveryTarget([&] { c.CheckForward(); });
    }
  }
}

// A long axis: an error that grows along it would show. The short axes of a grid see it too.
TEST(MdLrpeCosineAccuracy, LongAxes) {
  const std::vector<double> thetas = {16, -15.999999, 3.14159274, 1, 0.3333333, 1e-3, 1e-6, 0};
  for (const Dims& shape : {Dims{10'000}, Dims{5'000, 2}, Dims{2, 5'000}}) {
    CosineCase c({.shape = shape,
                  .features = 8 * shape.rank(),
                  .offset = shape.rank() == 1 ? 1'000'000'000 : 0});
    c.theta.Fill(thetas);
    OnEveryTarget([&] { c.CheckAll(); });
  }
}

// Every element keeps the scale of its own: a small one next to a large one is as accurate.
TEST(MdLrpeCosineAccuracy, ElementsOfAllMagnitudes) {
  CosineCase c({.shape = {50}, .features = 64, .offset = 1'000'000'000});
  std::vector<double> x = c.x.Values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] *= std::pow(10.0, static_cast<double>(i % 64) - 32);
  }
  c.x.Fill(x);
  OnEveryTarget([&] { c.CheckForward(); });
}

// Beyond |theta| = 16 accuracy is not promised, but the result is finite and no longer than x.
TEST(MdLrpeCosineAccuracy, HugeThetaStaysBounded) {
  const std::vector<double> thetas = {17,    1e3,          -1e5,          1e7,    1e10,
                                      -1e15, 1e20,         -1e25,         1e30,   -1e35,
                                      1e38,  3.4028234e38, -3.4028234e38, 0x1p127};
  const std::size_t count = thetas.size();
  for (const std::int64_t offset : {0LL, -7LL, 1'000'000'000LL, 1LL << 31, -(1LL << 31)}) {
    CosineCase c({.shape = {64}, .features = static_cast<std::int64_t>(count), .offset = offset});
    c.theta.Fill(thetas);
    const std::vector<double> x = c.x.Values();
    for (const Angles angles : kBothAngles) {
      OnEveryTarget([&] {
        c.BuildTable();
        c.Forward(angles);
        EXPECT_TRUE(c.out.AllWritten());
        const std::vector<double> out = c.out.Values();
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::size_t j = i / count * 2 * count + i % count;
          const double length = std::hypot(out[j], out[j + count]);
          ASSERT_TRUE(length <= std::abs(x[i]) * (1 + kRotation))
              << "theta " << thetas[i % count] << " offset " << offset << " row " << i / count
              << ": " << length << " from " << x[i];
        }
      });
    }
  }
}

}  // namespace
}  // namespace attnops::testing
