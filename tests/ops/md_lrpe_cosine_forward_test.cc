// md_lrpe_cosine forward against the reference.
#include <gtest/gtest.h>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

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
