// The reference checks itself: small cases by hand, and its backward is the gradient of its
// forward.
#include "tests/reference/md_lrpe_cosine.h"

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

void ExpectDoublesEqual(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_DOUBLE_EQ(actual[i], expected[i]) << i;
}

TEST(ReferenceMdLrpeCosine, BackwardMatchesFiniteDifferences) {
  struct Grid {
    Dims shape;
    std::int64_t theta_features, offset;
  };
  const std::vector<Grid> grids = {
      {{4}, 5, 1'000'000'007}, {{2, 2}, 3, 0}, {{2, 2}, 7, 0}, {{1, 2, 2}, 2, 0}};
  for (const Kind act : {Kind::kNone, Kind::kRelu, Kind::kSigmoid, Kind::kSilu, Kind::kSoftmax}) {
    for (const Axis axis : {Axis::kFeatures, Axis::kSequence}) {
      for (const Grid& grid : grids) {
        for (const std::int64_t theta_heads : {2, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << "act " << static_cast<int>(act) << " theta " << theta_heads << ","
                       << grid.theta_features << " axes " << grid.shape.rank());
          const reference::MdLrpeCosine reference{
              2, 2, 5, grid.shape, 2, theta_heads, grid.theta_features, grid.offset, act, axis};
          std::vector<double> x = RandomNormal(reference.size(), 1);
          for (double& value : x) value = std::copysign(std::max(std::abs(value), 0.01), value);
          const std::vector<double> d_out = RandomNormal(2 * reference.size(), 2);
          // Few bits, as in a float: the angle must be exact.
          std::vector<double> theta = RandomNormal(theta_heads * grid.theta_features, 3);
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

// A grid of 2×3 behind one token: feature 0 and 1 use the row, feature 2 the column.
TEST(ReferenceMdLrpeCosine, EncodesByHand) {
  const reference::MdLrpeCosine reference{1, 1, 3, {2, 3},      1,
                                          1, 2, 0, Kind::kNone, Axis::kFeatures};
  ASSERT_EQ(reference.Length(), 7);
  std::vector<double> x(21);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i + 1);
  const double p = 0.5;
  const double q = -0.25;
  std::vector<double> expected = {1, 2, 3, 0, 0, 0};
  const auto row = [&](double a, double b, double c, double angle_a, double angle_b,
                       double angle_c) {
    for (const double value :
         {a * std::cos(angle_a), b * std::cos(angle_b), c * std::cos(angle_c),
          a * std::sin(angle_a), b * std::sin(angle_b), c * std::sin(angle_c)}) {
      expected.push_back(value);
    }
  };
  row(4, 5, 6, 0, 0, 0);
  row(7, 8, 9, 0, 0, p);
  row(10, 11, 12, 0, 0, 2 * p);
  row(13, 14, 15, p, q, 0);
  row(16, 17, 18, p, q, p);
  row(19, 20, 21, p, q, 2 * p);
  ExpectDoublesEqual(reference.Forward(x, {p, q}), expected);
}

TEST(ReferenceMdLrpeCosine, GridIndexInRowMajorOrder) {
  const reference::MdLrpeCosine reference{1, 1, 1, {2, 3, 4},   5,
                                          1, 1, 0, Kind::kNone, Axis::kFeatures};
  EXPECT_EQ(reference.Length(), 29);
  std::int64_t i = 0;
  for (std::int64_t a = 0; a < 2; ++a) {
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t c = 0; c < 4; ++c, ++i) {
        EXPECT_EQ(reference.GridIndex(i, 0), a);
        EXPECT_EQ(reference.GridIndex(i, 1), b);
        EXPECT_EQ(reference.GridIndex(i, 2), c);
      }
    }
  }
}

TEST(ReferenceMdLrpeCosine, GradientByHand) {
  // One token without a position, one at position 3 with the angle 1.5.
  const reference::MdLrpeCosine reference{1, 1, 1, {1}, 1, 1, 1, 3, Kind::kRelu, Axis::kFeatures};
  const double slope = 4 * std::cos(1.5) + 7 * std::sin(1.5);
  ExpectDoublesEqual(reference.Backward({1, 2}, {0.5}, {5, 6, 4, 7}), {5, slope});
  ExpectDoublesEqual(reference.Backward({1, -2}, {0.5}, {5, 6, 4, 7}), {5, 0});
}

TEST(ReferenceMdLrpeCosine, SoftmaxOverTheSequenceCountsTheFirstTokens) {
  const reference::MdLrpeCosine reference{
      1, 1, 1, {2}, 1, 1, 1, 0, Kind::kSoftmax, Axis::kSequence};
  const double sum = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  ExpectDoublesEqual(reference.Forward({1, 2, 3}, {0.5}),
                     {std::exp(1.0) / sum, 0, std::exp(2.0) / sum, 0,
                      std::exp(3.0) / sum * std::cos(0.5), std::exp(3.0) / sum * std::sin(0.5)});
}

TEST(ReferenceMdLrpeCosine, TableByHand) {
  const reference::MdLrpeCosine reference{1, 2, 3, {2, 3},      0,
                                          2, 2, 0, Kind::kNone, Axis::kFeatures};
  const std::vector<double> theta = {0.5, -0.25, 1, 2};
  std::vector<double> expected;
  for (const int head : {0, 1}) {
    for (const int index : {0, 1, 0, 1, 2}) {
      for (const int e : {0, 1}) {
        expected.push_back(std::cos(index * theta[2 * head + e]));
        expected.push_back(std::sin(index * theta[2 * head + e]));
      }
    }
  }
  ExpectDoublesEqual(reference.Table(theta), expected);
}

// cos and sin of 10^9 · 0.75 radians, to 20 digits from an arbitrary-precision computation.
TEST(ReferenceMdLrpeCosine, TheAngleIsExactFarOut) {
  const reference::MdLrpeCosine reference{
      1, 1, 1, {1}, 0, 1, 1, 1'000'000'000, Kind::kNone, Axis::kFeatures};
  const std::vector<double> expected = {-0.41963808916438807127, 0.90769150823529305882};
  EXPECT_TRUE(AllNear(reference.Forward({1}, {0.75}), expected, {1e-15, 1e-15}));
  EXPECT_TRUE(AllNear(reference.Table({0.75}), expected, {1e-15, 1e-15}));
}

}  // namespace
}  // namespace attnops::testing
