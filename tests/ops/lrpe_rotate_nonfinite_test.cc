// NaN, infinities and very large values: they spoil what depends on them and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

RotateSpec Spec(DType dtype, const Activation& act) {
  return {.dtype = dtype,
          .batch = 2,
          .length = 37,
          .heads = 2,
          .features = 70,
          .theta_heads = 2,
          .theta_features = 35,
          .offset = 1,
          .act = act};
}

// The reference has NaN exactly in the pair of the spoilt theta, at every position (0 · inf too).
TEST(LrpeRotateNonfinite, ThetaSpoilsItsPairOnly) {
  for (const DType dtype : kAllTypes) {
    for (const double bad : {kNan, kInf, -kInf}) {
      for (const std::size_t spoilt : {0, 17, 34, 35 + 20}) {
        RotateSpec spec = Spec(dtype, Activation::None());
        spec.offset = -3;
        RotateCase c(spec);
        c.theta.Fill(With(c.theta.Values(), spoilt, bad));
        OnEveryTarget([&] {
          c.CheckForward();
          c.CheckBackward();
        });
      }
    }
  }
}

TEST(LrpeRotateNonfinite, NanInXSpoilsWhatDependsOnIt) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const std::size_t spoilt : {0, 5 * 70 + 34, 9 * 70 + 35, 40 * 70 + 69}) {
        RotateCase c(Spec(dtype, act));
        c.x.Fill(With(c.x.Values(), spoilt, kNan));
        OnEveryTarget([&] {
          c.CheckForward();
          c.CheckBackward();
        });
      }
    }
  }
}

TEST(LrpeRotateNonfinite, NanInDOutSpoilsWhatDependsOnIt) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::None(), Activation::Sigmoid(), Activation::Silu(),
                                  Activation::Softmax(-1), Activation::Softmax(1)}) {
      RotateCase c(Spec(dtype, act));
      c.d_out.Fill(With(c.d_out.Values(), 40 * 70 + 69, kNan));
      OnEveryTarget([&] { c.CheckBackward(); });
    }
  }
}

// inf · cos and inf · sin; softmax gives NaN in the whole row or column, as inf − inf does.
TEST(LrpeRotateNonfinite, InfinityInX) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const double bad : {kInf, -kInf}) {
        if (act.kind == Activation::Kind::kSoftmax && bad < 0) continue;
        RotateCase c(Spec(dtype, act));
        c.x.Fill(With(c.x.Values(), 9 * 70 + 20, bad));
        OnEveryTarget([&] { c.CheckForward(); });
      }
    }
  }
}

// What a pair without theta gives in its other element (y or 0 · NaN) is left open.
TEST(LrpeRotateNonfinite, PairsThatPassThrough) {
  for (const DType dtype : kAllTypes) {
    for (const double bad : {kNan, kInf}) {
      RotateSpec spec = Spec(dtype, Activation::None());
      spec.theta_features = 20;
      RotateCase clean(spec);
      RotateCase c(spec);
      const std::size_t spoilt = 9 * 70 + 30;
      c.x.Fill(With(c.x.Values(), spoilt, bad));
      OnEveryTarget([&] {
        clean.Forward();
        c.Forward();
        const std::vector<double> expected = clean.out.Values();
        const std::vector<double> actual = c.out.Values();
        EXPECT_FALSE(std::isfinite(actual[spoilt]));
        for (std::size_t i = 0; i < actual.size(); ++i) {
          if (i == spoilt || i == spoilt + 35) continue;
          ASSERT_EQ(actual[i], expected[i]) << i;
        }
      });
    }
  }
}

// Masked entries of a softmax: 0 where the whole pair is masked, finite everywhere.
TEST(LrpeRotateNonfinite, SoftmaxOfMaskedEntries) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(1)}) {
      RotateCase c(Spec(dtype, act));
      std::vector<double> x = c.x.Values();
      const auto masked = [](std::size_t i) { return (i % 35 + i / 70) % 3 == 0; };
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (masked(i)) x[i] = -kInf;
      }
      c.x.Fill(x);
      OnEveryTarget([&] {
        c.CheckForward();
        const std::vector<double> out = c.out.Values();
        c.CheckBackward();
        const std::vector<double> dx = c.out.Values();
        for (std::size_t i = 0; i < out.size(); ++i) {
          ASSERT_TRUE(std::isfinite(out[i]) && std::isfinite(dx[i])) << i;
          ASSERT_TRUE(!masked(i) || (out[i] == 0 && dx[i] == 0)) << i;
        }
      });
    }
  }
}

// A running maximum that is still -inf after the first blocks must not make NaN.
TEST(LrpeRotateNonfinite, SequenceSoftmaxAfterAHundredMaskedRows) {
  for (const DType dtype : kAllTypes) {
    for (const std::size_t masked_columns : {1, 70}) {
      RotateSpec spec = Spec(dtype, Activation::Softmax(1));
      spec.length = 257;
      RotateCase c(spec);
      std::vector<double> x = c.x.Values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t row = i / 140 % 257;
        if (row < 100 && i % 70 < masked_columns) x[i] = -kInf;
      }
      c.x.Fill(x);
      OnEveryTarget([&] {
        c.CheckForward();
        for (const double value : c.out.Values()) ASSERT_TRUE(std::isfinite(value));
        c.CheckBackward();
        for (const double value : c.out.Values()) ASSERT_TRUE(std::isfinite(value));
      });
    }
  }
}

// As in PyTorch: the softmax of nothing but -inf is NaN, in that row or column only.
TEST(LrpeRotateNonfinite, SoftmaxOfAFullyMaskedGroup) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(1)}) {
      RotateCase c(Spec(dtype, act));
      std::vector<double> x = c.x.Values();
      const auto groups = c.Reference().Act().SoftmaxGroups();
      for (const std::int64_t i : groups.at(20)) x[i] = -kInf;
      c.x.Fill(x);
      OnEveryTarget([&] { c.CheckForward(); });
    }
  }
}

TEST(LrpeRotateNonfinite, SoftmaxOfLargeValuesIsStable) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(1)}) {
      for (const double shift : {1e4, -1e4, 0.0}) {
        for (const double spread : {1.0, 1e4}) {
          RotateCase c(Spec(dtype, act));
          std::vector<double> x = RandomNormal(c.x.size(), 5, spread);
          for (double& value : x) value = std::clamp(value + shift, -6e4, 6e4);
          c.x.Fill(x);
          OnEveryTarget([&] {
            c.CheckForward();
            c.CheckBackward();
          });
        }
      }
    }
  }
}

// exp(x) is still a float32, but not the sum of a few of them, or it has lost digits: the maximum
// has to be subtracted all the same.
TEST(LrpeRotateNonfinite, SoftmaxOfValuesWithAnExtremeExponential) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(1)}) {
      for (const double shift : {62.0, 70.0, 80.0, 88.0}) {
        for (const double spread : {0.0, 0.5, 20.0}) {
          RotateCase c(Spec(dtype, act));
          std::vector<double> x = RandomNormal(c.x.size(), 5, spread);
          // Rows of either sign; every fourth has one value far above the others, so that the sum
          // is a float32 and its product with the gradient is not.
          for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t row = i / 70;
            x[i] = (row % 2 == 0 ? 1 : -1) * std::clamp(shift + x[i], -88.0, 88.0);
            if (row % 4 == 0) x[i] = i % 70 == 5 ? 87.5 : std::min(x[i], 80.0);
          }
          c.x.Fill(x);
          c.d_out.Fill(RandomNormal(c.d_out.size(), 3, 8));
          OnEveryTarget([&] {
            c.CheckForward();
            c.CheckBackward();
          });
        }
      }
    }
  }
}

// x − max overflows to -inf, whose exp is 0.
TEST(LrpeRotateNonfinite, SoftmaxOfTheLargestFloats) {
  for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(1)}) {
    RotateCase c(Spec(DType::kFloat32, act));
    std::vector<double> x = c.x.Values();
    for (double& value : x) value = value > 0 ? 3.4e38 : -3.4e38;
    c.x.Fill(x);
    OnEveryTarget([&] {
      c.CheckForward();
      c.CheckBackward();
    });
  }
}

}  // namespace
}  // namespace attnops::testing
