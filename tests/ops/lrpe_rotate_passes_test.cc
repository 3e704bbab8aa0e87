// lrpe_rotate, both passes against the reference.
#include <gtest/gtest.h>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

TEST(LrpeRotatePasses, EveryActivationTypeThetaAndSize) {
  ForEachSpec([](const RotateSpec& spec) {
    RotateCase c(spec);
    OnEveryTarget([&] { c.CheckBoth(); });
  });
}

// `dim` counts from either end.
TEST(LrpeRotatePasses, EveryNameOfTheSoftmaxAxis) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kAllActivations) {
      RotateCase c({.dtype = dtype, .batch = 2, .heads = 3, .features = 48, .act = act});
      OnEveryTarget([&] { c.CheckBoth(); });
    }
  }
}

TEST(LrpeRotatePasses, ThreeAxes) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act :
         {Activation::None(), Activation::Relu(), Activation::Sigmoid(), Activation::Silu(),
          Activation::Softmax(-1), Activation::Softmax(2), Activation::Softmax(1),
          Activation::Softmax(-2)}) {
      for (const std::int64_t theta_features : {24, 7, 1}) {
        RotateCase c({.dtype = dtype,
                      .batch = 3,
                      .length = 33,
                      .features = 48,
                      .theta_features = theta_features,
                      .offset = 5,
                      .act = act,
                      .three_axes = true});
        OnEveryTarget([&] { c.CheckBoth(); });
      }
    }
  }
}

TEST(LrpeRotatePasses, EveryOffset) {
  for (const std::int64_t offset :
       {0LL, 5LL, -7LL, 1'000'000LL, 1'000'000'000LL, -(1LL << 31), 1LL << 31}) {
    for (const DType dtype : kAllTypes) {
      for (const Activation& act : kDistinctActivations) {
        RotateCase c({.dtype = dtype,
                      .batch = 2,
                      .length = 33,
                      .heads = 2,
                      .features = 48,
                      .theta_heads = 2,
                      .theta_features = 24,
                      .offset = offset,
                      .act = act});
        OnEveryTarget([&] { c.CheckBoth(); });
      }
    }
  }
}

// Whatever the block of positions that a kernel works on.
TEST(LrpeRotatePasses, EveryShortLength) {
  for (std::int64_t length = 1; length <= 70; ++length) {
    for (const Activation& act : kDistinctActivations) {
      RotateCase c({.batch = 2,
                    .length = length,
                    .heads = 2,
                    .features = 10,
                    .theta_heads = 2,
                    .theta_features = 5,
                    .offset = -3,
                    .act = act});
      OnEveryTarget([&] { c.CheckBoth(); });
    }
  }
}

// Whatever the number of lanes.
TEST(LrpeRotatePasses, EveryFeatureSize) {
  for (std::int64_t features = 2; features <= 140; features += 2) {
    for (const DType dtype : kAllTypes) {
      for (const Activation& act : kDistinctActivations) {
        RotateCase c({.dtype = dtype,
                      .length = 5,
                      .heads = 2,
                      .features = features,
                      .theta_heads = 2,
                      .theta_features = features / 2,
                      .act = act});
        OnEveryTarget([&] { c.CheckBoth(); });
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
