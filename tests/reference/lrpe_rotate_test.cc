// The reference checks itself: its backward is the gradient of its forward.
#include "tests/reference/lrpe_rotate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Kind = Activation::Kind;
using reference::Axis;

TEST(ReferenceLrpeRotate, BackwardMatchesFiniteDifferences) {
  for (const Kind act : {Kind::kNone, Kind::kRelu, Kind::kSigmoid, Kind::kSilu, Kind::kSoftmax}) {
    for (const Axis axis : {Axis::kFeatures, Axis::kSequence}) {
      for (const std::int64_t theta_features : {3, 2, 1}) {
        for (const std::int64_t theta_heads : {2, 1}) {
          SCOPED_TRACE(::testing::Message() << "act " << static_cast<int>(act) << " theta "
                                            << theta_heads << "," << theta_features);
          const reference::LrpeRotate reference{
              2, 4, 2, 6, theta_heads, theta_features, 1'000'000'007, act, axis};
          std::vector<double> x = RandomNormal(reference.size(), 1);
          for (double& value : x) value = std::copysign(std::max(std::abs(value), 0.01), value);
          const std::vector<double> d_out = RandomNormal(reference.size(), 2);
          // Few bits, as in a float: the angle must be exact.
          std::vector<double> theta = RandomNormal(theta_heads * theta_features, 3);
          for (double& value : theta) value = static_cast<float>(value);
          const std::vector<double> differences = DifferenceGradient(
              [&](const std::vector<double>& at) { return reference.Forward(at, theta); }, x,
              d_out);
          EXPECT_TRUE(AllNear(reference.Backward(x, theta, d_out), differences,
                              std::vector<double>(x.size(), kDifference)));
        }
      }
    }
  }
}

TEST(ReferenceLrpeRotate, RotatesByHand) {
  // Position 3 and theta 0.5, 0 and none: the angles are 1.5, 0 and 0.
  const reference::LrpeRotate reference{1, 1, 1, 6, 1, 2, 3, Kind::kNone, Axis::kFeatures};
  const std::vector<double> out = reference.Forward({1, 2, 3, 4, 5, 6}, {0.5, 0.0});
  EXPECT_DOUBLE_EQ(out[0], std::cos(1.5) - 4 * std::sin(1.5));
  EXPECT_DOUBLE_EQ(out[3], std::sin(1.5) + 4 * std::cos(1.5));
  EXPECT_EQ(out[1], 2);
  EXPECT_EQ(out[4], 5);
  EXPECT_EQ(out[2], 3);
  EXPECT_EQ(out[5], 6);
}

// cos and sin of 10^9 · 0.75 radians, to 20 digits from an arbitrary-precision computation.
TEST(ReferenceLrpeRotate, TheAngleIsExactFarOut) {
  const reference::LrpeRotate reference{
      1, 1, 1, 2, 1, 1, 1'000'000'000, Kind::kNone, Axis::kFeatures};
  const std::vector<double> out = reference.Forward({1, 0}, {0.75});
  EXPECT_NEAR(out[0], -0.41963808916438807127, 1e-15);
  EXPECT_NEAR(out[1], 0.90769150823529305882, 1e-15);
}

}  // namespace
}  // namespace attnops::testing
