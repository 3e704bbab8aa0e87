// md_lrpe_cosine forward against the reference.
#include <gtest/gtest.h>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// `dim` counts from either end.
TEST(MdLrpeCosineForward, EveryNameOfTheSoftmaxAxis) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kAllCosineActivations) {
      CosineCase c({.dtype = dtype,
                    .batch = 2,
                    .heads = 3,
                    .shape = {4, 5},
                    .l = 3,
                    .features = 48,
                    .theta_heads = 3,
                    .act = act});
      OnEveryTarget([&] { c.CheckForward(); });
    }
  }
}

TEST(MdLrpeCosineForward, EveryPrefixAndFormOfTheta) {
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    for (const Activation& act : kCosineActivations) {
      for (const Dims& shape : {Dims{20}, Dims{3, 7}, Dims{2, 3, 4}, Dims{2, 2, 3, 2}}) {
        for (const std::int64_t l : {0, 1, 10}) {
          for (const std::int64_t theta_heads : {2, 1}) {
            CosineCase c({.dtype = dtype,
                          .theta_dtype = theta_dtype,
                          .heads = 2,
                          .shape = shape,
                          .l = l,
                          .features = 19,
                          .theta_heads = theta_heads,
                          .act = act});
            OnEveryTarget([&] { c.CheckForward(); });
          }
        }
      }
    }
  }
}

// Whatever the block of positions that a kernel works on, and where the prefix ends in it.
TEST(MdLrpeCosineForward, EveryShortLengthAndPrefix) {
  for (std::int64_t n = 1; n <= 70; n += n < 36 ? 1 : 3) {
    for (const Activation& act : kCosinePaths) {
      const std::int64_t l = n * 7 % 40;
      CosineCase line({.batch = 2, .shape = {n}, .l = l, .features = 10, .offset = -3, .act = act});
      CosineCase grid({.heads = 2, .shape = {3, n}, .l = l, .features = 9, .act = act});
      OnEveryTarget([&] {
        line.CheckForward();
        grid.CheckForward();
      });
    }
  }
}

// Whatever the number of lanes, and where an axis ends in a vector: D is not a multiple of k.
TEST(MdLrpeCosineForward, EveryFeatureSize) {
  for (std::int64_t features = 1; features <= 140; features += features < 70 ? 1 : 7) {
    for (const DType dtype : kAllTypes) {
      for (const Activation& act : kCosinePaths) {
        for (const Dims& shape : {Dims{5}, Dims{2, 3}, Dims{2, 2, 2}}) {
          if (features > 36 && shape.rank() != features % 3 + 1) continue;
          CosineCase c({.dtype = dtype, .shape = shape, .l = 1, .features = features, .act = act});
          OnEveryTarget([&] { c.CheckForward(); });
        }
      }
    }
  }
}

// E from the least that serves to more than D: then the last axes have no features.
TEST(MdLrpeCosineForward, EveryNumberOfThetas) {
  for (const DType dtype : kAllTypes) {
    for (const Dims& shape : {Dims{7}, Dims{3, 4}, Dims{2, 3, 2}}) {
      for (std::int64_t extra = 0; extra < 40; extra += extra < 20 ? 1 : 4) {
        CosineCase c({.dtype = dtype,
                      .heads = 2,
                      .shape = shape,
                      .l = 1,
                      .features = 33,
                      .theta_heads = 2,
                      .extra = extra});
        OnEveryTarget([&] { c.CheckForward(); });
      }
    }
  }
}

// Without an activation the first l tokens are x and zeros, to the bit.
TEST(MdLrpeCosineForward, TokensWithoutPositionAreExact) {
  for (const DType dtype : kAllTypes) {
    for (const Dims& shape : {Dims{7}, Dims{3, 4}, Dims{2, 0, 2}}) {
      CosineCase c(
          {.dtype = dtype, .batch = 2, .heads = 2, .shape = shape, .l = 18, .features = 65});
      const std::vector<std::uint32_t> x = c.x.Bits();
      for (const Angles angles : kBothAngles) {
        OnEveryTarget([&] {
          c.BuildTable();
          c.Forward(angles);
          const std::vector<std::uint32_t> out = c.out.Bits();
          for (std::int64_t row = 0; row < 4 * c.spec().Length(); ++row) {
            if (row % c.spec().Length() >= 18) continue;
            for (std::int64_t i = 0; i < 65; ++i) {
              ASSERT_EQ(out[row * 130 + i], x[row * 65 + i]) << "row " << row << " feature " << i;
              ASSERT_EQ(out[row * 130 + 65 + i], 0u) << "row " << row << " feature " << i;
            }
          }
        });
      }
    }
  }
}

TEST(MdLrpeCosineForward, EmptyTensorsAreFine) {
  struct Sizes {
    std::int64_t batch, heads, l;
    Dims shape;
    std::int64_t features;
  };
  const std::vector<Sizes> empty = {{0, 2, 1, {3}, 6},    {2, 0, 1, {3}, 6}, {2, 2, 0, {0}, 6},
                                    {2, 2, 0, {3, 0}, 6}, {2, 2, 1, {3}, 0}, {0, 0, 0, {0, 0}, 0}};
  const float theta[6] = {1, 1, 1, 1, 1, 1};
  for (const Activation& act : kAllCosineActivations) {
    for (const Sizes& s : empty) {
      const CosineSpec spec = {.batch = s.batch,
                               .heads = s.heads,
                               .shape = s.shape,
                               .l = s.l,
                               .features = s.features,
                               .act = act};
      SCOPED_TRACE(spec.Describe());
      const ConstTensorView x(static_cast<const float*>(nullptr), spec.XShape());
      const ConstTensorView d_out(static_cast<const float*>(nullptr), spec.OutShape());
      const TensorView out(static_cast<float*>(nullptr), spec.OutShape());
      const TensorView dx(static_cast<float*>(nullptr), spec.XShape());
      const ConstTensorView thetas(theta, {1, 6});
      Dims table_shape = spec.TableShape();
      table_shape[2] = 6;
      GuardedTensor table(DType::kFloat32, table_shape);
      EXPECT_NO_THROW(MdLrpeCosine(x, thetas, out, spec.Options()));
      EXPECT_NO_THROW(MdLrpeCosineBackward(x, thetas, d_out, dx, spec.Options()));
      EXPECT_NO_THROW(LrpeTable(thetas, spec.shape, spec.features, table.view()));
      EXPECT_NO_THROW(MdLrpeCosineWithTable(x, table.view(), out, spec.Options()));
      EXPECT_NO_THROW(MdLrpeCosineBackwardWithTable(x, table.view(), d_out, dx, spec.Options()));
    }
  }
}

// With theta = 0 the cosine is 1 and the activation is seen alone.
TEST(MdLrpeCosineForward, LargeAndSmallArgumentsOfTheActivations) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const double range : {1e-6, 1e-2, 20.0, 100.0, 1e4}) {
        for (const double theta : {0.0, 0.75}) {
          CosineCase c({.dtype = dtype, .shape = {5, 6}, .l = 10, .features = 64, .act = act});
          c.x.Fill(RandomUniform(c.x.size(), 7, -range, range));
          c.theta.Fill(std::vector<double>(c.theta.size(), theta));
          OnEveryTarget([&] { c.CheckForward(); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
