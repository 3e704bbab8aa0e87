// lrpe_rotate forward against the reference.
#include <gtest/gtest.h>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// 1 < E < D/2 for every E: pairs j >= E pass through, which without an activation is exact.
TEST(LrpeRotateForward, PairsWithoutThetaPassThrough) {
  constexpr std::int64_t kFeatures = 80;
  constexpr std::int64_t kPairs = kFeatures / 2;
  for (const DType dtype : kAllTypes) {
    for (std::int64_t theta_features = 2; theta_features < kPairs; ++theta_features) {
      RotateCase c({.dtype = dtype,
                    .length = 3,
                    .heads = 2,
                    .features = kFeatures,
                    .theta_heads = 2,
                    .theta_features = theta_features,
                    .offset = 1'000'000});
      const std::vector<std::uint32_t> x = c.x.Bits();
      OnEveryTarget([&] {
        c.CheckForward();
        const std::vector<std::uint32_t> out = c.out.Bits();
        for (std::size_t i = 0; i < out.size(); ++i) {
          if (static_cast<std::int64_t>(i) % kPairs >= theta_features) {
            ASSERT_EQ(out[i], x[i]) << c.spec().Describe() << " at " << i;
          }
        }
      });
    }
  }
}

TEST(LrpeRotateForward, EmptyTensorsAreFine) {
  for (const Activation& act : kAllActivations) {
    for (const Dims& shape : {Dims{0, 3, 2, 6}, Dims{3, 0, 2, 6}, Dims{3, 3, 0, 6}}) {
      const float theta = 1;
      EXPECT_NO_THROW(LrpeRotate({static_cast<const float*>(nullptr), shape}, {&theta, {1, 1}},
                                 {static_cast<float*>(nullptr), shape}, {0, act}));
      EXPECT_NO_THROW(LrpeRotateBackward({static_cast<const float*>(nullptr), shape},
                                         {&theta, {1, 1}},
                                         {static_cast<const float*>(nullptr), shape},
                                         {static_cast<float*>(nullptr), shape}, {0, act}));
    }
  }
}

// With theta = 0 the rotation is the identity and the activation is seen alone.
TEST(LrpeRotateForward, LargeAndSmallArgumentsOfTheActivations) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const double range : {1e-6, 1e-2, 20.0, 100.0, 1e4}) {
        for (const double theta : {0.0, 0.75}) {
          RotateCase c({.dtype = dtype,
                        .length = 40,
                        .heads = 2,
                        .features = 64,
                        .theta_features = 1,
                        .act = act});
          c.x.Fill(RandomUniform(c.x.size(), 7, -range, range));
          c.theta.Fill({theta});
          OnEveryTarget([&] { c.CheckForward(); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
