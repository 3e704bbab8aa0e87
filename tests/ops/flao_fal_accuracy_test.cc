// Both passes of flao_fal against the reference: activations, encodings, types, policies, awkward
// sizes, layouts, targets.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/ops/flao_fal_case.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

void CheckAll(const FlaoFalSpec& spec) { FlaoFalCase(spec).CheckAll(); }

// i+j and 5i+j run through all remainders of 6 with either of i and j, so that each pair of q, k, v
// and g but (v,g) has every pair of activations.
TEST(FlaoFalAccuracy, EveryPairOfActivations) {
  const std::vector<Activation>& acts = kFlaoFalActivations;
  const std::size_t count = acts.size();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      for (std::size_t w = 0; w < kEncodings.size(); ++w) {
        const FlaoFalSpec spec{.dtype = kAllTypes[(i + j + w) % 3],
                               .n = 9,
                               .m = 14,
                               .d = 10,
                               .e = 7,
                               .q_act = acts[i],
                               .k_act = acts[j],
                               .v_act = acts[(i + j) % count],
                               .g_act = acts[(5 * i + j) % count],
                               .theta_heads = 2};
        CheckAll(WithEncoding(spec, kEncodings[w]));
      }
    }
  }
}

// The same activation on all four, whose axis counts from either end.
TEST(FlaoFalAccuracy, EveryTypeAndActivation) {
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    for (const Activation& act : ActivationsWithSoftmax({-1, 3, 2, -2})) {
      for (const NamedEncoding& encoding : kEncodings) {
        CheckAll(WithEncoding({.dtype = dtype,
                               .d = 12,
                               .e = 5,
                               .q_act = act,
                               .k_act = act,
                               .v_act = act,
                               .g_act = act,
                               .theta_dtype = theta_dtype},
                              encoding));
      }
    }
  }
}

struct Sizes {
  std::int64_t n, m, d, e;
};

// Sequences around a block of 128 tokens, features around a chunk and a tile of every target.
TEST(FlaoFalAccuracy, AwkwardSizes) {
  static constexpr Sizes kSizes[] = {{1, 1, 2, 1},      {0, 5, 6, 5},       {5, 0, 6, 5},
                                     {1, 33, 8, 129},   {129, 128, 34, 33}, {127, 257, 8, 9},
                                     {17, 130, 66, 96}, {9, 6, 300, 200},   {40, 31, 64, 31},
                                     {20, 40, 0, 0},    {20, 40, 0, 5},     {20, 40, 6, 0}};
  const Activation over_sequence = Activation::Softmax(2);
  const Activation over_features = Activation::Softmax(-1);
  int turn = 0;
  for (const DType dtype : kAllTypes) {
    for (const Sizes& s : kSizes) {
      for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kCosine, Lrpe::kRotate}) {
        FlaoFalSpec spec{.dtype = dtype,
                         .heads = 1,
                         .n = s.n,
                         .m = s.m,
                         .d = s.d,
                         .e = s.e,
                         .q_act = Activation::Silu(),
                         .k_act = over_sequence,
                         .v_act = over_features,
                         .g_act = Activation::Sigmoid(),
                         .lrpe = lrpe,
                         .offset = lrpe == Lrpe::kNone ? 0 : 77};
        if (++turn % 2 == 0) {
          spec.q_act = over_features;
          spec.k_act = Activation::Relu();
          spec.v_act = Activation::Silu();
          spec.g_act = over_sequence;
        }
        CheckAll(spec);
      }
    }
  }
}

TEST(FlaoFalAccuracy, EverySmallNumberOfFeatures) {
  for (std::int64_t size = 1; size <= 70; ++size) {
    FlaoFalSpec spec{.dtype = kAllTypes[size % 3],
                     .heads = 1,
                     .n = 6,
                     .m = 5,
                     .d = size,
                     .e = 71 - size,
                     .q_act = Activation::Softmax(-1),
                     .k_act = Activation::Softmax(2),
                     .v_act = Activation::Softmax(2),
                     .g_act = Activation::Softmax(-1),
                     .lrpe = Lrpe::kCosine};
    CheckAll(spec);
    spec.lrpe = size % 2 == 0 ? Lrpe::kRotate : Lrpe::kNone;
    CheckAll(spec);
  }
}

TEST(FlaoFalAccuracy, CommonSizes) {
  for (const DType dtype : kAllTypes) {
    for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
      CheckAll({.dtype = dtype,
                .heads = 1,
                .n = 140,
                .m = 260,
                .d = 128,
                .e = 128,
                .q_act = dtype == DType::kFloat16 ? Activation::Softmax(-1) : Activation::Silu(),
                .k_act = Activation::Silu(),
                .g_act = Activation::Silu(),
                .lrpe = lrpe});
    }
  }
}

TEST(FlaoFalAccuracy, NothingAtAll) {
  for (const Activation& act : kFlaoFalActivations) {
    for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kCosine, Lrpe::kRotate}) {
      const FlaoFalSpec spec{
          .q_act = act, .k_act = act, .v_act = act, .g_act = act, .lrpe = lrpe, .angles = 4};
      const auto check = [&](std::int64_t FlaoFalSpec::*size) {
        FlaoFalSpec empty = spec;
        empty.*size = 0;
        if (lrpe == Lrpe::kCosine) empty.angles = 8;
        CheckAll(empty);
      };
      check(&FlaoFalSpec::batch);
      check(&FlaoFalSpec::heads);
      check(&FlaoFalSpec::n);
      check(&FlaoFalSpec::m);
      check(&FlaoFalSpec::d);
      check(&FlaoFalSpec::e);
    }
  }
  // Nothing but tokens without a position.
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    CheckAll({.lrpe = lrpe, .shape = {0}, .l = 5});
    CheckAll({.lrpe = lrpe, .shape = {3, 0}, .l = 5});
    CheckAll({.n = 4, .m = 4, .lrpe = lrpe, .offset = 9, .l = 4});
  }
}

// A third of the encodings in turn, with a type each.
TEST(FlaoFalAccuracy, Layouts) {
  std::size_t turn = 0;
  for (const Layout inputs : kAllLayouts) {
    for (const Layout outputs : kAllLayouts) {
      for (std::size_t w = turn++ % 3; w < kEncodings.size(); w += 3) {
        CheckAll(WithEncoding({.dtype = kAllTypes[(w / 3 + turn) % 3],
                               .batch = 2,
                               .heads = 3,
                               .n = 5,
                               .m = 9,
                               .d = 34,
                               .e = 40,
                               .q_act = Activation::Softmax(2),
                               .k_act = Activation::Silu(),
                               .v_act = Activation::Softmax(2),
                               .g_act = Activation::Softmax(-1),
                               .theta_heads = 3,
                               .inputs = inputs,
                               .outputs = outputs},
                              kEncodings[w]));
      }
    }
  }
}

// Enough heads that each is a task, and few whose sequences are cut into pieces.
TEST(FlaoFalAccuracy, ManyHeadsAndLongSequences) {
  for (const DType dtype : kAllTypes) {
    for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
      FlaoFalSpec spec{.dtype = dtype,
                       .batch = 11,
                       .heads = 7,
                       .n = 9,
                       .m = 4,
                       .d = 18,
                       .e = 6,
                       .q_act = Activation::Silu(),
                       .k_act = Activation::Softmax(2),
                       .v_act = Activation::Sigmoid(),
                       .g_act = Activation::Softmax(2),
                       .lrpe = lrpe,
                       .theta_heads = 7,
                       .offset = 3};
      CheckAll(spec);
      spec.batch = spec.heads = spec.theta_heads = 1;
      spec.n = 3900;
      spec.m = 2500;
      spec.d = 8;
      spec.e = 12;
      spec.q_act = Activation::Softmax(2);
      spec.l = 1;
      CheckAll(spec);
    }
  }
}

// More angles than D/k, fewer than D/2 in 1-d (the other pairs pass), one for all.
TEST(FlaoFalAccuracy, FormsOfTheta) {
  const auto check = [](Lrpe lrpe, const Dims& shape, std::int64_t angles) {
    for (const auto& [dtype, theta_dtype] : kTypePairs) {
      for (const std::int64_t theta_heads : {1, 3}) {
        CheckAll({.dtype = dtype,
                  .heads = 3,
                  .d = 20,
                  .q_act = Activation::Relu(),
                  .k_act = Activation::Softmax(-1),
                  .lrpe = lrpe,
                  .theta_dtype = theta_dtype,
                  .theta_heads = theta_heads,
                  .angles = angles,
                  .shape = shape});
      }
    }
  };
  for (const std::int64_t angles : {20, 23}) check(Lrpe::kCosine, {}, angles);
  for (const std::int64_t angles : {10, 13, 20}) check(Lrpe::kCosine, {3, 3}, angles);
  for (const std::int64_t angles : {10, 7, 2, 1}) {
    check(Lrpe::kRotate, {}, angles);
    check(Lrpe::kRotate, {7}, angles);
  }
  for (const std::int64_t angles : {5, 7, 10, 11}) check(Lrpe::kRotate, {3, 3}, angles);
  for (const std::int64_t angles : {4, 5}) check(Lrpe::kRotate, {2, 2, 2}, angles);
  check(Lrpe::kRotate, {2, 1, 1, 2, 1, 1, 2, 1}, 2);
}

// The angles are exact far out, for thetas of all magnitudes.
TEST(FlaoFalAccuracy, FarPositions) {
  const std::vector<double> thetas = AwkwardThetas();
  const auto count = static_cast<std::int64_t>(thetas.size());
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    for (const std::int64_t offset :
         {std::int64_t{1'000'000'000}, std::int64_t{1} << 31, -(std::int64_t{1} << 31)}) {
      FlaoFalCase c({.heads = 1,
                     .n = 140,
                     .m = 3,
                     .d = lrpe == Lrpe::kRotate ? 2 * count : count,
                     .e = 3,
                     .lrpe = lrpe,
                     .offset = offset,
                     .l = 1});
      c.theta.Fill(thetas);
      c.CheckAll();
    }
  }
}

TEST(FlaoFalAccuracy, LongAxes) {
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    for (const Dims& shape : {Dims{2, 300}, Dims{300, 2}, Dims{2, 150, 2}, Dims{600}}) {
      FlaoFalCase c({.heads = 1,
                     .d = 12,
                     .e = 3,
                     .k_act = Activation::Softmax(2),
                     .lrpe = lrpe,
                     .shape = shape,
                     .l = 3});
      c.theta.Fill(RandomUniform(c.theta.size(), 5, -16, 16));
      c.CheckAll();
    }
  }
}

// One tensor for all heads or tokens, and rows of theta apart.
TEST(FlaoFalAccuracy, BroadcastInputs) {
  constexpr DType kType = DType::kBFloat16;
  FlaoFalCase c({.dtype = kType,
                 .batch = 2,
                 .heads = 2,
                 .n = 4,
                 .m = 6,
                 .d = 8,
                 .e = 10,
                 .k_act = Activation::Softmax(2),
                 .g_act = Activation::Softmax(2),
                 .lrpe = Lrpe::kRotate,
                 .theta_heads = 2});
  GuardedTensor k(kType, c.k.shape(), {0, 0, 8, 1});
  GuardedTensor g(kType, c.g.shape(), {40, 40, 0, 1});
  GuardedTensor theta(DType::kFloat32, c.theta.shape(), {-9, 1}, 1);
  k.Fill(c.k.Values());
  g.Fill(c.g.Values());
  c.k.Fill(k.Values());
  c.g.Fill(g.Values());
  theta.Fill(c.theta.Values());
  FlaoFalOptions options = c.Options();
  options.theta = theta.view();
  OnEveryTarget([&] {
    c.Forward();
    c.Backward();
    GuardedTensor out(kType, c.out.shape());
    FlaoFal(c.q.view(), k.view(), c.v.view(), g.view(), out.view(), options,
            {.precision = c.precision});
    EXPECT_EQ(out.Bits(), c.out.Bits());
    GuardedTensor dq(kType, c.q.shape()), dk(kType, c.k.shape());
    GuardedTensor dv(kType, c.v.shape()), dg(kType, c.g.shape());
    FlaoFalBackward(c.q.view(), k.view(), c.v.view(), g.view(), c.d_out.view(), dq.view(),
                    dk.view(), dv.view(), dg.view(), options, {.precision = c.precision});
    EXPECT_EQ(dq.Bits(), c.dq.Bits());
    EXPECT_EQ(dk.Bits(), c.dk.Bits());
    EXPECT_EQ(dv.Bits(), c.dv.Bits());
    EXPECT_EQ(dg.Bits(), c.dg.Bits());
  });
}

}  // namespace
}  // namespace attnops::testing
