// The reference checks itself: its encodings are those of the operators of their own, and its
// backward is the gradient of its forward.
#include "tests/reference/flao_fal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/reference/lrpe_rotate.h"
#include "tests/reference/md_lrpe_cosine.h"
#include "tests/support/compare.h"
#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Kind = Activation::Kind;
using reference::Axis;
using reference::Encoding;
using reference::FlaoFal;
using Values = std::vector<double>;

// Few bits, as in a float: the angle must be exact.
Values Theta(std::int64_t count) {
  Values theta = RandomNormal(count, 11);
  for (double& value : theta) value = static_cast<float>(value);
  return theta;
}

TEST(ReferenceFlaoFal, CosineIsMdLrpeCosine) {
  for (const Dims& shape : {Dims{5}, Dims{2, 3}, Dims{2, 1, 3}}) {
    const std::int64_t offset = shape.rank() == 1 ? 1'000'003 : 0;
    const std::int64_t angles = (5 + shape.rank() - 1) / shape.rank();
    const reference::MdLrpeCosine own{2, 3, 5, shape, 2, 3, angles, offset};
    const std::int64_t tokens = own.Length();
    const Values y = RandomNormal(own.size(), 1);
    const Values d = RandomNormal(2 * own.size(), 2);
    const Values theta = Theta(3 * angles);
    Encoding encoding{2, 3, tokens, 5, Lrpe::kCosine, 3, angles, shape, offset, 2};
    EXPECT_EQ(encoding.Forward(y, theta), own.Encode(y, theta));
    EXPECT_EQ(encoding.Backward(d, theta), own.EncodeBackward(d, theta));
    if (shape.rank() > 1) continue;
    encoding.shape = {};
    EXPECT_EQ(encoding.Forward(y, theta), own.Encode(y, theta));
    EXPECT_EQ(encoding.Backward(d, theta), own.EncodeBackward(d, theta));
  }
}

TEST(ReferenceFlaoFal, RotateIsLrpeRotate) {
  for (const std::int64_t angles : {4, 3, 1}) {
    for (const std::int64_t theta_heads : {1, 3}) {
      // (B,N,H,D) with one batch and (B,H,N,D) with one head are the same memory.
      const reference::LrpeRotate own{2, 6, 1, 8, 1, angles, 1'000'003};
      const Values y = RandomNormal(own.size(), 1);
      const Values theta = Theta(angles);
      for (const Dims& shape : {Dims{}, Dims{6}}) {
        const Encoding encoding{2, 1, 6, 8, Lrpe::kRotate, 1, angles, shape, 1'000'003, 0};
        EXPECT_EQ(encoding.Forward(y, theta), own.Rotate(y, theta, 1));
        EXPECT_TRUE(AllNear(encoding.Backward(y, theta), own.Rotate(y, theta, -1),
                            Values(y.size(), 1e-15)));
      }
      // The heads, one token each.
      const reference::LrpeRotate heads{2, 1, 3, 8, theta_heads, angles, 7};
      const Values x = RandomNormal(heads.size(), 2);
      const Values thetas = Theta(theta_heads * angles);
      const Encoding encoding{2, 3, 1, 8, Lrpe::kRotate, theta_heads, angles, {}, 7, 0};
      EXPECT_EQ(encoding.Forward(x, thetas), heads.Rotate(x, thetas, 1));
    }
  }
}

// Two rows of two behind one token: pair 0 uses the row, pair 1 the column.
TEST(ReferenceFlaoFal, RotationInAGridByHand) {
  const Encoding encoding{1, 1, 5, 4, Lrpe::kRotate, 1, 1, {2, 2}, 0, 1};
  Values y, expected;
  for (int t = 0; t < 5; ++t) {
    const double a = t < 1 ? 0 : 0.5 * ((t - 1) / 2);
    const double b = t < 1 ? 0 : 0.5 * ((t - 1) % 2);
    const Values row = {1.0 + t, 2, 3, 4.0 - t};
    y.insert(y.end(), row.begin(), row.end());
    for (const double value :
         {row[0] * std::cos(a) - row[2] * std::sin(a), row[1] * std::cos(b) - row[3] * std::sin(b),
          row[0] * std::sin(a) + row[2] * std::cos(a),
          row[1] * std::sin(b) + row[3] * std::cos(b)}) {
      expected.push_back(value);
    }
  }
  EXPECT_TRUE(AllNear(encoding.Forward(y, {0.5}), expected, Values(20, 1e-15)));
  const Values d = RandomNormal(20, 3);
  const Values turned = encoding.Forward(encoding.Backward(d, {0.5}), {0.5});
  EXPECT_TRUE(AllNear(turned, d, Values(20, 1e-15)));
}

TEST(ReferenceFlaoFal, ByHand) {
  // One token each; q is relu, k as it is, v sigmoid(0) = ½, g silu(0) = 0 and silu(2).
  const FlaoFal reference{1, 1, 1, 1, 2, 2, {Kind::kRelu}, {}, {Kind::kSigmoid}, {Kind::kSilu}};
  const auto result = reference.Run({{-1, 3}, {4, 5}, {0, 0}, {0, 2}}, {});
  const double silu = 2 / (1 + std::exp(-2.0));
  EXPECT_EQ(result.kv, (Values{2, 2, 2.5, 2.5}));
  EXPECT_EQ(result.qkv, (Values{7.5, 7.5}));
  EXPECT_TRUE(AllNear(result.out, {0, 7.5 * silu}, {0, 1e-15}));
}

// With the same theta, Q̄·K̄ᵀ depends on the distance of the tokens alone.
TEST(ReferenceFlaoFal, PositionsAreRelative) {
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    FlaoFal reference{1, 1, 1, 4, 2, 1, {}, {}, {}, {}, lrpe, 1, 2};
    if (lrpe == Lrpe::kRotate) reference.theta_features = 1;
    const Values theta = Theta(2);
    reference.offset = 3;
    const FlaoFal::Inputs far{{1, 2}, {0, 0, 0, 0, 3, 4, 0, 0}, {1, 1, 1, 1}, {1}};
    const double expected = reference.Run(far, theta).out[0];
    reference.offset = 1;
    const FlaoFal::Inputs near{{1, 2}, {3, 4, 0, 0, 0, 0, 0, 0}, {1, 1, 1, 1}, {1}};
    EXPECT_NEAR(reference.Run(near, theta).out[0], expected, 1e-14);
  }
}

TEST(ReferenceFlaoFal, BackwardMatchesFiniteDifferences) {
  struct Where {
    Lrpe lrpe;
    Dims shape;
    std::int64_t n, m, theta_features, offset, l;
  };
  const std::vector<Where> all = {{Lrpe::kNone, {}, 3, 4, 1, 0, 0},
                                  {Lrpe::kCosine, {}, 3, 4, 4, 1'000'000'007, 1},
                                  {Lrpe::kCosine, {2, 2}, 5, 5, 2, 0, 1},
                                  {Lrpe::kRotate, {}, 4, 3, 2, 1'000'000'007, 1},
                                  {Lrpe::kRotate, {2, 2}, 4, 4, 1, 0, 0}};
  const FlaoFal::Act acts[] = {{Kind::kNone},
                               {Kind::kRelu},
                               {Kind::kSigmoid},
                               {Kind::kSilu},
                               {Kind::kSoftmax, Axis::kFeatures},
                               {Kind::kSoftmax, Axis::kSequence}};
  for (const Where& w : all) {
    for (int i = 0; i < 6; ++i) {
      SCOPED_TRACE(::testing::Message() << "lrpe " << static_cast<int>(w.lrpe) << " axes "
                                        << w.shape.rank() << " " << i);
      const FlaoFal reference{2,
                              2,
                              w.n,
                              w.m,
                              4,
                              3,
                              acts[i],
                              acts[(i + 1) % 6],
                              acts[(i + 2) % 6],
                              acts[(i + 3) % 6],
                              w.lrpe,
                              2,
                              w.theta_features,
                              w.shape,
                              w.offset,
                              w.l};
      const Values theta = Theta(2 * w.theta_features);
      FlaoFal::Inputs x{RandomNormal(4 * w.n * 4, 1), RandomNormal(4 * w.m * 4, 2),
                        RandomNormal(4 * w.m * 3, 3), RandomNormal(4 * w.n * 3, 4)};
      // Differences across the kink of relu are meaningless.
      for (Values* values : {&x.q, &x.k, &x.v, &x.g}) {
        for (double& value : *values) value = std::copysign(std::max(std::abs(value), 0.01), value);
      }
      const Values d_out = RandomNormal(4 * w.n * 3, 5);
      const FlaoFal::Inputs gradients = reference.RunBackward(x, theta, d_out);
      for (Values FlaoFal::Inputs::*input :
           {&FlaoFal::Inputs::q, &FlaoFal::Inputs::k, &FlaoFal::Inputs::v, &FlaoFal::Inputs::g}) {
        const auto forward = [&](const Values& at) {
          FlaoFal::Inputs moved = x;
          moved.*input = at;
          return reference.Run(moved, theta).out;
        };
        const Values differences = DifferenceGradient(forward, x.*input, d_out);
        // The sums are of order 10, and with them the cancellation.
        EXPECT_TRUE(
            AllNear(gradients.*input, differences, Values(differences.size(), 10 * kDifference)));
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
