// NaN, infinities and very large values: they spoil what depends on them and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

constexpr std::int64_t kFeatures = 35;
constexpr std::int64_t kPrefix = 5;
constexpr std::int64_t kLength = kPrefix + 6 * 6;

// x is (2,2,41,35) and theta (2,18): features from 18 on use the second axis.
CosineSpec Spec(DType dtype, const Activation& act) {
  return {.dtype = dtype,
          .batch = 2,
          .heads = 2,
          .shape = {6, 6},
          .l = kPrefix,
          .features = kFeatures,
          .theta_heads = 2,
          .act = act};
}

// Elements of x: in the prefix, at the origin of the grid, within it, and the last of all.
constexpr std::size_t kElements[] = {0, 4 * kFeatures + 20, 5 * kFeatures + 3,
                                     (kLength + 20) * kFeatures + 17, 4 * kLength* kFeatures - 1};

// The reference has NaN exactly in the features of the spoilt theta, at every index (0 · inf too),
// and none in the prefix.
TEST(MdLrpeCosineNonfinite, ThetaSpoilsItsFeaturesOnly) {
  for (const DType dtype : kAllTypes) {
    for (const double bad : {kNan, kInf, -kInf}) {
      for (const std::size_t spoilt : {0, 16, 17, 18 + 9}) {
        CosineCase c(Spec(dtype, Activation::None()));
        c.theta.Fill(With(c.theta.Values(), spoilt, bad));
        OnEveryTarget([&] { c.CheckAll(); });
        std::int64_t nans = 0;
        for (const double value : c.out.Values()) nans += std::isnan(value);
        // In one head: both halves of one feature, or of two where both axes use it.
        EXPECT_EQ(nans, 2 * 36 * 2 * (spoilt == 17 ? 1 : 2));
      }
    }
  }
}

// A theta that no feature uses spoils nothing.
TEST(MdLrpeCosineNonfinite, AnUnusedThetaSpoilsNothing) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      CosineSpec spec = Spec(dtype, act);
      spec.shape = {36};
      spec.extra = 3;
      CosineCase c(spec);
      c.theta.Fill(With(c.theta.Values(), kFeatures + 1, kNan));
      OnEveryTarget([&] {
        c.CheckAll();
        for (const double value : c.out.Values()) ASSERT_TRUE(std::isfinite(value));
      });
    }
  }
}

// Softmax over the sequence in the backward: the prefix shares the sum with the spoilt tokens.
TEST(MdLrpeCosineNonfinite, ThetaWithEveryActivation) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      CosineCase c(Spec(dtype, act));
      c.theta.Fill(With(c.theta.Values(), 3, kNan));
      OnEveryTarget([&] { c.CheckAll(); });
    }
  }
}

// The first l tokens are [y, 0], whatever y: an infinity times 0 would be NaN.
TEST(MdLrpeCosineNonfinite, TokensWithoutPositionHaveZerosBesideThem) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const double bad : {kNan, kInf, -kInf}) {
        CosineCase c(Spec(dtype, act));
        std::vector<double> x = c.x.Values();
        for (std::size_t i = 0; i < x.size(); ++i) {
          if (static_cast<std::int64_t>(i / kFeatures) % kLength < kPrefix) x[i] = bad;
        }
        c.x.Fill(x);
        OnEveryTarget([&] {
          c.BuildTable();
          for (const Angles angles : kBothAngles) {
            c.CheckForward(angles);
            const std::vector<std::uint32_t> bits = c.out.Bits();
            const std::vector<double> out = c.out.Values();
            for (std::size_t i = 0; i < bits.size(); ++i) {
              const auto row = static_cast<std::int64_t>(i) / (2 * kFeatures);
              const auto column = static_cast<std::int64_t>(i) % (2 * kFeatures);
              if (row % kLength >= kPrefix) continue;
              if (column >= kFeatures) ASSERT_EQ(bits[i], 0u) << i;
              if (column < kFeatures && act.kind == Activation::Kind::kNone) {
                ASSERT_TRUE(std::isnan(bad) ? std::isnan(out[i]) : out[i] == bad) << i;
              }
            }
          }
        });
      }
    }
  }
}

TEST(MdLrpeCosineNonfinite, NanInXSpoilsWhatDependsOnIt) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const std::size_t spoilt : kElements) {
        CosineCase c(Spec(dtype, act));
        c.x.Fill(With(c.x.Values(), spoilt, kNan));
        OnEveryTarget([&] { c.CheckAll(); });
      }
    }
  }
}

// inf · cos and inf · sin, which is NaN at index 0; softmax gives NaN in the whole row or column,
// as inf − inf does.
TEST(MdLrpeCosineNonfinite, InfinityInX) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const double bad : {kInf, -kInf}) {
        if (act.kind == Activation::Kind::kSoftmax && bad < 0) continue;
        for (const std::size_t spoilt : kElements) {
          CosineCase c(Spec(dtype, act));
          c.x.Fill(With(c.x.Values(), spoilt, bad));
          OnEveryTarget([&] {
            c.BuildTable();
            for (const Angles angles : kBothAngles) c.CheckForward(angles);
          });
        }
      }
    }
  }
}

// The second half of the gradient of the first l tokens is not used.
TEST(MdLrpeCosineNonfinite, NanInDOutSpoilsWhatDependsOnIt) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::None(), Activation::Sigmoid(), Activation::Silu(),
                                  Activation::Softmax(-1), Activation::Softmax(2)}) {
      for (const double bad : {kNan, kInf}) {
        for (const std::int64_t row : {std::int64_t{3}, kLength - 1, 2 * kLength + 30}) {
          for (const std::int64_t column : {std::int64_t{3}, kFeatures + 30}) {
            const bool unused = row % kLength < kPrefix && column >= kFeatures;
            if (std::isinf(bad) && !unused) continue;
            CosineCase c(Spec(dtype, act));
            c.d_out.Fill(With(c.d_out.Values(), row * 2 * kFeatures + column, bad));
            OnEveryTarget([&] {
              c.BuildTable();
              for (const Angles angles : kBothAngles) c.CheckBackward(angles);
            });
            const std::vector<double> dx = c.dx.Values();
            const bool finite =
                std::all_of(dx.begin(), dx.end(), [](double v) { return std::isfinite(v); });
            EXPECT_EQ(finite, unused);
          }
        }
      }
    }
  }
}

// Masked entries of a softmax are 0, in the prefix and in the grid.
TEST(MdLrpeCosineNonfinite, SoftmaxOfMaskedEntries) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(2)}) {
      CosineCase c(Spec(dtype, act));
      std::vector<double> x = c.x.Values();
      const auto masked = [](std::size_t i) { return (i % kFeatures + i / kFeatures) % 3 == 0; };
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (masked(i)) x[i] = -kInf;
      }
      c.x.Fill(x);
      OnEveryTarget([&] {
        c.CheckAll();
        const std::vector<double> out = c.out.Values();
        const std::vector<double> dx = c.dx.Values();
        for (std::size_t i = 0; i < dx.size(); ++i) {
          const std::size_t j = i / kFeatures * 2 * kFeatures + i % kFeatures;
          ASSERT_TRUE(std::isfinite(out[j]) && std::isfinite(dx[i])) << i;
          ASSERT_TRUE(!masked(i) || (out[j] == 0 && out[j + kFeatures] == 0 && dx[i] == 0)) << i;
        }
      });
    }
  }
}

// A running maximum that is still -inf after the first blocks, the prefix or more, must not make
// NaN.
TEST(MdLrpeCosineNonfinite, SequenceSoftmaxAfterAHundredMaskedRows) {
  for (const DType dtype : kAllTypes) {
    for (const std::int64_t masked_columns : {std::int64_t{1}, kFeatures}) {
      for (const std::int64_t l : {20, 100, 130}) {
        CosineSpec spec = Spec(dtype, Activation::Softmax(2));
        spec.shape = {10, 10};
        spec.l = l;
        CosineCase c(spec);
        std::vector<double> x = c.x.Values();
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::int64_t row = static_cast<std::int64_t>(i) / kFeatures % spec.Length();
          if (row < 100 && static_cast<std::int64_t>(i) % kFeatures < masked_columns) x[i] = -kInf;
        }
        c.x.Fill(x);
        OnEveryTarget([&] {
          c.CheckAll();
          for (const double value : c.out.Values()) ASSERT_TRUE(std::isfinite(value));
          for (const double value : c.dx.Values()) ASSERT_TRUE(std::isfinite(value));
        });
      }
    }
  }
}

// As in PyTorch: the softmax of nothing but -inf is NaN, in that row or column only.
TEST(MdLrpeCosineNonfinite, SoftmaxOfAFullyMaskedGroup) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(2)}) {
      for (const std::size_t group : {3, 20}) {
        CosineCase c(Spec(dtype, act));
        std::vector<double> x = c.x.Values();
        const auto groups = c.Reference().Act().SoftmaxGroups();
        for (const std::int64_t i : groups.at(group)) x[i] = -kInf;
        c.x.Fill(x);
        OnEveryTarget([&] { c.CheckForward(); });
      }
    }
  }
}

TEST(MdLrpeCosineNonfinite, SoftmaxOfLargeValuesIsStable) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(2)}) {
      for (const double shift : {1e4, -1e4, 0.0}) {
        for (const double spread : {1.0, 1e4}) {
          CosineCase c(Spec(dtype, act));
          std::vector<double> x = RandomNormal(c.x.size(), 5, spread);
          for (double& value : x) value = std::clamp(value + shift, -6e4, 6e4);
          c.x.Fill(x);
          OnEveryTarget([&] { c.CheckAll(); });
        }
      }
    }
  }
}

// exp(x) is still a float32, but not the sum of a few of them, or it has lost digits: the maximum
// has to be subtracted all the same.
TEST(MdLrpeCosineNonfinite, SoftmaxOfValuesWithAnExtremeExponential) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(2)}) {
      for (const double shift : {62.0, 70.0, 80.0, 88.0}) {
        for (const double spread : {0.0, 0.5, 20.0}) {
          CosineCase c(Spec(dtype, act));
          std::vector<double> x = RandomNormal(c.x.size(), 5, spread);
          // Rows of either sign; every fourth has one value far above the others, so that the sum
          // is a float32 and its product with the gradient is not.
          for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t row = i / kFeatures;
            x[i] = (row % 2 == 0 ? 1 : -1) * std::clamp(shift + x[i], -88.0, 88.0);
            if (row % 4 == 0) x[i] = i % kFeatures == 5 ? 87.5 : std::min(x[i], 80.0);
          }
          c.x.Fill(x);
          c.d_out.Fill(RandomNormal(c.d_out.size(), 3, 8));
          OnEveryTarget([&] { c.CheckAll(); });
        }
      }
    }
  }
}

// x − max overflows to -inf, whose exp is 0.
TEST(MdLrpeCosineNonfinite, SoftmaxOfTheLargestFloats) {
  for (const Activation& act : {Activation::Softmax(-1), Activation::Softmax(2)}) {
    CosineCase c(Spec(DType::kFloat32, act));
    std::vector<double> x = c.x.Values();
    for (double& value : x) value = value > 0 ? 3.4e38 : -3.4e38;
    c.x.Fill(x);
    OnEveryTarget([&] { c.CheckAll(); });
  }
}

}  // namespace
}  // namespace attnops::testing
