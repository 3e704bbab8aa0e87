// md_lrpe_cosine backward against the reference and against finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/compare.h"
#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

// Without an activation the first l tokens get the gradient of their first half, to the bit.
TEST(MdLrpeCosineBackward, TokensWithoutPositionAreExact) {
  for (const DType dtype : kAllTypes) {
    for (const Dims& shape : {Dims{7}, Dims{3, 4}, Dims{2, 0, 2}}) {
      CosineCase c(
          {.dtype = dtype, .batch = 2, .heads = 2, .shape = shape, .l = 18, .features = 65});
      const std::vector<std::uint32_t> d_out = c.d_out.Bits();
      for (const Angles angles : kBothAngles) {
        OnEveryTarget([&] {
          c.BuildTable();
          c.Backward(angles);
          const std::vector<std::uint32_t> dx = c.dx.Bits();
          for (std::int64_t row = 0; row < 4 * c.spec().Length(); ++row) {
            if (row % c.spec().Length() >= 18) continue;
            for (std::int64_t i = 0; i < 65; ++i) {
              ASSERT_EQ(dx[row * 65 + i], d_out[row * 130 + i])
                  << "row " << row << " feature " << i;
            }
          }
        });
      }
    }
  }
}

TEST(MdLrpeCosineBackward, LargeAndSmallArgumentsOfTheActivations) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const double range : {1e-6, 1e-2, 20.0, 100.0, 1e4}) {
        CosineCase c({.dtype = dtype, .shape = {5, 6}, .l = 10, .features = 64, .act = act});
        c.x.Fill(RandomUniform(c.x.size(), 7, -range, range));
        OnEveryTarget([&] { c.CheckBackward(); });
      }
    }
  }
}

TEST(MdLrpeCosineBackward, ReluGradientAtZeroIsZero) {
  for (const DType dtype : kAllTypes) {
    for (const double zero : {0.0, -0.0}) {
      CosineCase c(
          {.dtype = dtype, .shape = {5, 6}, .l = 10, .features = 48, .act = Activation::Relu()});
      c.x.Fill(std::vector<double>(c.x.size(), zero));
      OnEveryTarget([&] {
        c.Backward();
        EXPECT_TRUE(c.dx.AllWritten());
        for (const double dx : c.dx.Values()) ASSERT_EQ(dx, 0);
      });
    }
  }
}

// The library's float32 gradient against differences of the reference's forward: a check that does
// not rely on the reference's backward.
TEST(MdLrpeCosineBackward, MatchesFiniteDifferences) {
  for (const Activation& act : kAllCosineActivations) {
    for (const Dims& shape : {Dims{5}, Dims{2, 3}, Dims{2, 1, 2}}) {
      CosineCase c({.batch = 2,
                    .heads = 2,
                    .shape = shape,
                    .l = 2,
                    .features = 7,
                    .theta_heads = 2,
                    .extra = 1,
                    .offset = shape.rank() == 1 ? 1'000'003 : 0,
                    .act = act});
      // Differences across the kink of relu are meaningless.
      std::vector<double> x = c.x.Values();
      for (double& value : x) value = std::copysign(std::max(std::abs(value), 0.01), value);
      c.x.Fill(x);
      const reference::MdLrpeCosine reference = c.Reference();
      const std::vector<double> theta = c.theta.Values();
      const std::vector<double> expected = DifferenceGradient(
          [&](const std::vector<double>& at) { return reference.Forward(at, theta); }, c.x.Values(),
          c.d_out.Values());
      std::vector<double> bound = c.BackwardExpected().bound;
      for (double& value : bound) value += kDifference;
      for (const Angles angles : kBothAngles) {
        OnEveryTarget([&] {
          SCOPED_TRACE(c.spec().Describe());
          c.BuildTable();
          c.Backward(angles);
          EXPECT_TRUE(AllNear(c.dx.Values(), expected, bound));
        });
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
