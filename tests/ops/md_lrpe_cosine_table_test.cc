// The table of cosines and sines, and md_lrpe_cosine with it: as accurate as on the fly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// A table from the reference: the passes do not rely on LrpeTable, nor on how it is laid out beyond
// what the interface says.
TEST(MdLrpeCosineTable, ATableFromElsewhere) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const Dims& shape :
           {Dims{70}, Dims{5, 16}, Dims{2, 3, 17}, Dims{3, 2, 1, 4}, Dims{0, 3}}) {
        for (const std::int64_t theta_heads : {2, 1}) {
          CosineCase c({.dtype = dtype,
                        .batch = 2,
                        .heads = 2,
                        .shape = shape,
                        .l = 1,
                        .features = 35,
                        .theta_heads = theta_heads,
                        .extra = 2,
                        .act = act});
          c.table.Fill(c.Reference().Table(c.theta.Values()));
          OnEveryTarget([&] {
            c.CheckForward(Angles::kTable);
            c.CheckBackward(Angles::kTable);
          });
        }
      }
    }
  }
}

// Theta of every type, every number of thetas, a long axis.
TEST(MdLrpeCosineTable, AgainstTheReference) {
  for (const DType theta_dtype : kAllTypes) {
    for (const std::int64_t features : {1, 3, 16, 33, 64, 100}) {
      for (const Dims& shape : {Dims{100}, Dims{3, 70}, Dims{17, 1, 33}, Dims{1, 1}}) {
        CosineCase c({.dtype = theta_dtype,
                      .theta_dtype = theta_dtype,
                      .heads = 3,
                      .shape = shape,
                      .features = features,
                      .theta_heads = 3,
                      .extra = 1,
                      .offset = shape.rank() == 1 ? -40 : 0});
        OnEveryTarget([&] { c.CheckTable(); });
      }
    }
  }
}

// A NaN of the caller's table stays one in every type, whichever bits say so.
TEST(MdLrpeCosineTable, NanOfAnyPayload) {
  const std::uint32_t nans[] = {0x7fffffff, 0x7fc0ffff, 0x7f800001, 0x7fbfffff, 0xffffffff};
  for (const DType dtype : kAllTypes) {
    CosineCase c({.dtype = dtype, .shape = {5}, .features = 40});
    c.table.Fill(c.Reference().Table(c.theta.Values()));
    auto* table = static_cast<std::uint32_t*>(c.table.view().data());
    std::copy(std::begin(nans), std::end(nans), table + 2 * 37);  // cos and sin of token 0
    OnEveryTarget([&] {
      c.Forward(Angles::kTable);
      const std::vector<double> out = c.out.Values();
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(std::isnan(out[i % 2 * 40 + 37 + i / 2])) << i;
      }
      c.Backward(Angles::kTable);
      const std::vector<double> dx = c.dx.Values();
      for (int j = 37; j < 40; ++j) EXPECT_TRUE(std::isnan(dx[j])) << j;
    });
  }
}

// One table serves every x with the same grid: fewer features, other heads, any prefix.
TEST(MdLrpeCosineTable, ServesSeveralTensors) {
  CosineCase builder({.shape = {4, 9}, .features = 40});
  OnEveryTarget([&] {
    builder.BuildTable();
    for (const std::int64_t features : {40, 39, 21, 7}) {
      CosineCase c({.batch = 2,
                    .heads = 3,
                    .shape = {4, 9},
                    .l = features % 3,
                    .features = features,
                    .extra = 20 - (features + 1) / 2});
      c.theta.Fill(builder.theta.Values());
      c.table.Fill(builder.table.Values());
      c.CheckForward(Angles::kTable);
      c.CheckBackward(Angles::kTable);
    }
  });
}

// The table of an empty grid has no memory: only the prefix is there, and it needs none.
TEST(MdLrpeCosineTable, OfAnEmptyGridHasNoData) {
  const std::vector<float> x = {1, 2, 3, 4};
  OnEveryTarget([&] {
    std::vector<float> out(8, -1.0f), dx(4, -1.0f);
    const MdLrpeCosineOptions options{.shape = {0}, .l = 2};
    const ConstTensorView table(nullptr, DType::kFloat32, {1, 0, 2, 2});
    MdLrpeCosineWithTable({x.data(), {1, 1, 2, 2}}, table, {out.data(), {1, 1, 2, 4}}, options);
    EXPECT_EQ(out, (std::vector<float>{1, 2, 0, 0, 3, 4, 0, 0}));
    MdLrpeCosineBackwardWithTable({x.data(), {1, 1, 2, 2}}, table, {out.data(), {1, 1, 2, 4}},
                                  {dx.data(), {1, 1, 2, 2}}, options);
    EXPECT_EQ(dx, x);
  });
}

// What a table holds does not depend on the d that it is checked against.
TEST(MdLrpeCosineTable, TheNumberOfFeaturesOnlyBoundsIt) {
  OnEveryTarget([&] {
    CosineCase c({.shape = {4, 9}, .features = 40});
    c.BuildTable();
    const std::vector<std::uint32_t> expected = c.table.Bits();
    for (const std::int64_t d : {0, 1, 20, 21, 39}) {
      c.table.Poison();
      LrpeTable(c.theta.view(), c.spec().shape, d, c.table.view());
      EXPECT_EQ(c.table.Bits(), expected) << "d = " << d;
    }
  });
}

}  // namespace
}  // namespace attnops::testing
