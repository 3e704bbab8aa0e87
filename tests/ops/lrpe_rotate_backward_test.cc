// lrpe_rotate backward against the reference and against finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/compare.h"
#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

TEST(LrpeRotateBackward, LargeAndSmallArgumentsOfTheActivations) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const double range : {1e-6, 1e-2, 20.0, 100.0, 1e4}) {
        RotateCase c({.dtype = dtype,
                      .length = 40,
                      .heads = 2,
                      .features = 64,
                      .theta_heads = 2,
                      .theta_features = 32,
                      .act = act});
        c.x.Fill(RandomUniform(c.x.size(), 7, -range, range));
        OnEveryTarget([&] { c.CheckBackward(); });
      }
    }
  }
}

TEST(LrpeRotateBackward, ReluGradientAtZeroIsZero) {
  for (const DType dtype : kAllTypes) {
    for (const double zero : {0.0, -0.0}) {
      RotateCase c({.dtype = dtype,
                    .length = 40,
                    .features = 48,
                    .theta_features = 24,
                    .offset = 1,
                    .act = Activation::Relu()});
      c.x.Fill(std::vector<double>(c.x.size(), zero));
      OnEveryTarget([&] {
        c.Backward();
        EXPECT_TRUE(c.out.AllWritten());
        for (const double dx : c.out.Values()) ASSERT_EQ(dx, 0);
      });
    }
  }
}

// The library's float32 gradient against differences of the reference's forward: a check that does
// not rely on the reference's backward.
TEST(LrpeRotateBackward, MatchesFiniteDifferences) {
  for (const Activation& act : kAllActivations) {
    RotateCase c({.batch = 2,
                  .length = 5,
                  .heads = 2,
                  .features = 10,
                  .theta_heads = 2,
                  .theta_features = 4,
                  .offset = 1'000'003,
                  .act = act});
    // Differences across the kink of relu are meaningless.
    std::vector<double> x = c.x.Values();
    for (double& value : x) value = std::copysign(std::max(std::abs(value), 0.01), value);
    c.x.Fill(x);
    const reference::LrpeRotate reference = c.Reference();
    const std::vector<double> theta = c.theta.Values();
    const std::vector<double> expected = DifferenceGradient(
        [&](const std::vector<double>& at) { return reference.Forward(at, theta); }, c.x.Values(),
        c.d_out.Values());
    std::vector<double> bound = c.BackwardExpected().bound;
    for (double& value : bound) value += kDifference;
    OnEveryTarget([&] {
      SCOPED_TRACE(c.spec().Describe());
      c.Backward();
      EXPECT_TRUE(AllNear(c.out.Values(), expected, bound));
    });
  }
}

}  // namespace
}  // namespace attnops::testing
