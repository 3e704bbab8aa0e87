// The halves of flao and flao_fal. The halves of flao have the bits of flao, which the other tests
// hold against the reference; parts of a sequence, with stages, add up to the whole.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "attnops/flao.h"
#include "attnops/flao_fal.h"
#include "tests/ops/flao_case.h"
#include "tests/support/errors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

struct Sizes {
  std::int64_t batch, heads, n, m, d, e;
};

TEST(FlaoHalves, HaveTheBitsOfFlao) {
  static constexpr Sizes kSizes[] = {{1, 2, 5, 7, 8, 8},       {2, 1, 0, 5, 7, 5},
                                     {1, 1, 5, 0, 7, 5},       {1, 2, 129, 257, 33, 17},
                                     {1, 1, 1100, 2100, 8, 9}, {3, 4, 40, 31, 65, 31}};
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Sizes& s : kSizes) {
        FlaoCase c({dtype, s.batch, s.heads, s.n, s.m, s.d, s.e});
        SCOPED_TRACE(c.spec().Describe());
        c.Forward(Keep::kKv);
        c.Backward(Keep::kKv);
        const Dims kv_shape = {s.batch, s.heads, s.d, s.e};
        GuardedTensor kv(DType::kFloat32, kv_shape), d_kv(DType::kFloat32, kv_shape);
        GuardedTensor out(dtype, c.out.shape()), dq(dtype, c.q.shape()), dk(dtype, c.k.shape());
        GuardedTensor dv(dtype, c.v.shape()), dg(dtype, c.g.shape());
        FlaoKv(c.k.view(), c.v.view(), kv.view(), c.precision);
        FlaoOut(c.q.view(), kv.view(), c.g.view(), out.view(), c.precision);
        FlaoOutBackward(c.q.view(), kv.view(), c.g.view(), c.d_out.view(), dq.view(), d_kv.view(),
                        dg.view(), c.precision);
        FlaoKvBackward(c.k.view(), c.v.view(), d_kv.view(), dk.view(), dv.view(), c.precision);
        for (GuardedTensor* x : {&kv, &d_kv, &out, &dq, &dk, &dv, &dg}) {
          EXPECT_TRUE(x->AllWritten());
        }
        EXPECT_EQ(kv.Bits(), c.kv.Bits());
        EXPECT_EQ(out.Bits(), c.out.Bits());
        EXPECT_EQ(dq.Bits(), c.dq.Bits());
        EXPECT_EQ(dk.Bits(), c.dk.Bits());
        EXPECT_EQ(dv.Bits(), c.dv.Bits());
        EXPECT_EQ(dg.Bits(), c.dg.Bits());
      }
    }
  });
}

// Tokens [begin, end) of a contiguous (1,1,tokens,features) tensor of float32.
ConstTensorView Part(const GuardedTensor& x, std::int64_t begin, std::int64_t end) {
  const std::int64_t features = x.shape()[3];
  const auto* data = static_cast<const float*>(x.view().data()) + begin * features;
  return {data, DType::kFloat32, {1, 1, end - begin, features}};
}

TEST(FlaoHalves, PartsOfAGridAddUp) {
  constexpr std::int64_t kL = 3, kTokens = kL + 4 * 5, kD = 8, kE = 6;
  GuardedTensor theta(DType::kFloat32, {1, 4}), q(DType::kFloat32, {1, 1, kTokens, kD});
  GuardedTensor k(DType::kFloat32, q.shape()), v(DType::kFloat32, {1, 1, kTokens, kE});
  GuardedTensor g(DType::kFloat32, v.shape());
  int seed = 1;
  for (GuardedTensor* x : {&theta, &q, &k, &v, &g}) {
    std::vector<double> values(static_cast<std::size_t>(x->size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<double>(seed * 37 + i * 11));
    }
    x->Fill(values);
    ++seed;
  }
  const Lrpe lrpes[] = {Lrpe::kCosine, Lrpe::kRotate};
  for (const Lrpe lrpe : lrpes) {
    FlaoFalOptions options{.q_act = Activation::Silu(), .v_act = Activation::Sigmoid()};
    options.lrpe = lrpe;
    options.theta = std::as_const(theta).view();
    options.shape = {4, 5};
    options.l = kL;
    const std::int64_t inner = lrpe == Lrpe::kCosine ? 2 * kD : kD;
    GuardedTensor whole(DType::kFloat32, {1, 1, inner, kE}), out(DType::kFloat32, g.shape());
    FlaoFal(q.view(), k.view(), v.view(), g.view(), out.view(), options, {.kv = whole.view()});
    std::vector<double> sum(static_cast<std::size_t>(whole.size()));
    const std::int64_t cuts[] = {0, 2, 2, 9, 17, kTokens};
    std::vector<double> outs;
    for (int i = 0; i < 5; ++i) {
      GuardedTensor kv(DType::kFloat32, whole.shape());
      options.start = cuts[i];
      FlaoFalKv(Part(k, cuts[i], cuts[i + 1]), Part(v, cuts[i], cuts[i + 1]), kv.view(), options);
      const std::vector<double> values = kv.Values();
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += values[j];
      GuardedTensor part(DType::kFloat32, {1, 1, cuts[i + 1] - cuts[i], kE});
      FlaoFalOut(Part(q, cuts[i], cuts[i + 1]), whole.view(), Part(g, cuts[i], cuts[i + 1]),
                 part.view(), options);
      for (const double value : part.Values()) outs.push_back(value);
    }
    const std::vector<double> expected = whole.Values(), expected_out = out.Values();
    for (std::size_t j = 0; j < sum.size(); ++j) {
      EXPECT_NEAR(sum[j], expected[j], 64 * kUnitFloat32 * kTokens);
    }
    ASSERT_EQ(outs.size(), expected_out.size());
    for (std::size_t j = 0; j < outs.size(); ++j) {
      EXPECT_NEAR(outs[j], expected_out[j], 64 * kUnitFloat32 * kTokens);
    }
  }
}

TEST(FlaoHalves, BadInput) {
  const Dims k_shape = {1, 2, 5, 4}, v_shape = {1, 2, 5, 6}, kv_shape = {1, 2, 4, 6};
  GuardedTensor k(DType::kFloat32, k_shape), v(DType::kFloat32, v_shape);
  GuardedTensor short_v(DType::kFloat32, {1, 2, 4, 6}), kv(DType::kFloat32, kv_shape);
  GuardedTensor wrong(DType::kFloat32, {1, 2, 6, 4}), half(DType::kBFloat16, kv_shape);
  GuardedTensor theta(DType::kFloat32, {2, 4}), twice(DType::kFloat32, {1, 2, 8, 6});
  ExpectErrorNaming("flao_kv", "v", [&] { FlaoKv(k.view(), short_v.view(), kv.view()); });
  ExpectErrorNaming("flao_kv", "kv", [&] { FlaoKv(k.view(), v.view(), wrong.view()); });
  ExpectErrorNaming("flao_kv", "kv", [&] { FlaoKv(k.view(), v.view(), half.view()); });
  ExpectErrorNaming("flao_kv", "kv", [&] { FlaoKv(k.view(), v.view(), v.view()); });
  ExpectErrorNaming("flao_out", "kv",
                    [&] { FlaoOut(k.view(), wrong.view(), v.view(), short_v.view()); });
  ExpectErrorNaming("flao_out", "d_kv", [&] {
    FlaoOutBackward(k.view(), kv.view(), v.view(), v.view(), k.view(), wrong.view(), v.view());
  });
  FlaoFalOptions options;
  options.lrpe = Lrpe::kCosine;
  options.theta = std::as_const(theta).view();
  options.start = -1;
  ExpectErrorNaming("flao_fal_kv", "start",
                    [&] { FlaoFalKv(k.view(), v.view(), twice.view(), options); });
  options.start = 2;
  options.shape = {2, 3};  // has tokens 0 to 5; numbers 2 to 6 are asked for
  ExpectErrorNaming("flao_fal_kv", "shape",
                    [&] { FlaoFalKv(k.view(), v.view(), twice.view(), options); });
  EXPECT_TRUE(kv.Untouched());
  EXPECT_TRUE(twice.Untouched());
  GuardedTensor out(DType::kFloat32, v_shape);
  options.shape = {};
  ExpectErrorNaming("flao_fal", "start",
                    [&] { FlaoFal(k.view(), k.view(), v.view(), v.view(), out.view(), options); });
}

}  // namespace
}  // namespace attnops::testing
