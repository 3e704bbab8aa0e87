// flao_fal with NaN, infinities, masks, and values whose products leave float16's range.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/flao_fal_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

void Set(GuardedTensor& tensor, std::int64_t index, double value) {
  tensor.Fill(With(tensor.Values(), static_cast<std::size_t>(index), value));
}

// With ones and one infinity in v its column alone is infinite, whatever the padding of D and E.
TEST(FlaoFalNonfinite, InfinityOfVStaysInItsColumn) {
  for (const DType dtype : kAllTypes) {
    for (const std::int64_t size : {2, 6, 18, 34}) {
      for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kCosine, Lrpe::kRotate}) {
        for (const Activation& act : {Activation::None(), Activation::Relu()}) {
          FlaoFalCase c({.dtype = dtype,
                         .heads = 1,
                         .n = 3,
                         .m = 4,
                         .d = size,
                         .e = size,
                         .q_act = act,
                         .k_act = act,
                         .v_act = act,
                         .g_act = act,
                         .lrpe = lrpe});
          for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g, &c.d_out}) {
            tensor->Fill(Values(tensor->size(), 1));
          }
          c.theta.Fill(Values(c.theta.size(), 0));
          Set(c.v, size + size / 2, kInf);
          OnEveryTarget([&] {
            for (const Keep keep : kAllKeeps) {
              SCOPED_TRACE(c.spec().Describe());
              c.Forward(keep);
              c.Backward(keep);
              // The sines are 0 and meet the infinity in QKV; only without them is it no NaN.
              const bool cosine = lrpe == Lrpe::kCosine;
              const Values out = c.out.Values();
              for (std::int64_t i = 0; i < c.out.size(); ++i) {
                if (i % size != size / 2) {
                  EXPECT_EQ(out[i], 4.0 * static_cast<double>(size)) << i;
                } else if (!cosine) {
                  EXPECT_EQ(out[i], kInf) << i;
                } else {
                  EXPECT_TRUE(std::isnan(out[i])) << i;
                }
              }
              for (const double value : c.dv.Values()) {
                EXPECT_EQ(value, 3.0 * static_cast<double>(size));
              }
              const Values dk = c.dk.Values();
              for (std::int64_t i = 0; i < c.dk.size(); ++i) {
                if (i / size != 1) EXPECT_EQ(dk[i], 3.0 * static_cast<double>(size)) << i;
              }
            }
          });
        }
      }
    }
  }
}

// What has no angle is not multiplied by the sine of one: tokens in front, and pairs behind the
// last angle. With ones and angles of 0, an infinity there makes its own row infinite and nothing
// NaN.
TEST(FlaoFalNonfinite, InfinityWithoutAnAngle) {
  const auto check = [](const FlaoFalSpec& spec, std::int64_t token, std::int64_t feature) {
    FlaoFalCase c(spec);
    for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g}) {
      tensor->Fill(Values(tensor->size(), 1));
    }
    c.theta.Fill(Values(c.theta.size(), 0));
    Set(c.q, token * spec.d + feature, kInf);
    OnEveryTarget([&] {
      SCOPED_TRACE(c.spec().Describe());
      c.Forward();
      const Values out = c.out.Values();
      for (std::int64_t i = 0; i < c.out.size(); ++i) {
        EXPECT_EQ(out[i], i / spec.e == token ? kInf : 4.0 * static_cast<double>(spec.d)) << i;
      }
    });
  };
  for (const DType dtype : kAllTypes) {
    for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
      check({.dtype = dtype, .heads = 1, .n = 3, .m = 4, .d = 8, .e = 5, .lrpe = lrpe, .l = 2}, 1,
            7);
    }
    check({.dtype = dtype,
           .heads = 1,
           .n = 3,
           .m = 4,
           .d = 8,
           .e = 5,
           .lrpe = Lrpe::kRotate,
           .angles = 2},
          2, 6);
  }
}

// The reference says where NaN goes: a token of q, an element of g.
TEST(FlaoFalNonfinite, NanStaysWhereItBelongs) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kFlaoFalActivations) {
      if (act.kind == Activation::Kind::kSoftmax && act.dim == 2) continue;
      for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kCosine, Lrpe::kRotate}) {
        const FlaoFalSpec spec{.dtype = dtype,
                               .heads = 2,
                               .n = 5,
                               .m = 6,
                               .d = 8,
                               .e = 9,
                               .q_act = act,
                               .g_act = act,
                               .lrpe = lrpe,
                               .offset = lrpe == Lrpe::kNone ? 0 : 1};
        FlaoFalCase with_q(spec), with_g(spec);
        Set(with_q.q, 2 * 8 + 3, std::nan(""));
        Set(with_g.g, 2 * 9 + 3, std::nan(""));
        OnEveryTarget([&] {
          for (const Keep keep : kAllKeeps) {
            SCOPED_TRACE(spec.Describe());
            with_q.CheckForward(keep);
            with_g.CheckForward(keep);
          }
        });
      }
    }
  }
}

// −Inf is a mask for the softmaxes, and relu's, sigmoid's and silu's limits are those of PyTorch.
TEST(FlaoFalNonfinite, Masks) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : ActivationsWithSoftmax({-1, 2})) {
      if (act.kind == Activation::Kind::kNone || act.kind == Activation::Kind::kSilu) continue;
      for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kCosine, Lrpe::kRotate}) {
        FlaoFalCase c({.dtype = dtype,
                       .heads = 2,
                       .n = 140,
                       .m = 150,
                       .d = 10,
                       .e = 12,
                       .q_act = act,
                       .k_act = act,
                       .v_act = act,
                       .g_act = act,
                       .lrpe = lrpe});
        for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g}) {
          Values values = tensor->Values();
          for (std::size_t i = 0; i < values.size(); i += 7) values[i] = -kInf;
          tensor->Fill(values);
        }
        OnEveryTarget([&] {
          c.CheckForward(Keep::kKvQkv);
          c.CheckBackward(Keep::kNone);
        });
      }
    }
  }
}

// A softmax over nothing but masks is NaN, as in PyTorch.
TEST(FlaoFalNonfinite, NothingButMasks) {
  for (const DType dtype : kAllTypes) {
    for (const int dim : {-1, 2}) {
      FlaoFalCase c({.dtype = dtype,
                     .heads = 1,
                     .n = 5,
                     .m = 6,
                     .d = 8,
                     .e = 9,
                     .g_act = Activation::Softmax(dim)});
      Values values = c.g.Values();
      for (std::int64_t i = 0; i < 45; ++i) {
        if (dim == -1 ? i / 9 == 2 : i % 9 == 2) values[i] = -kInf;
      }
      c.g.Fill(values);
      OnEveryTarget([&] {
        c.Forward();
        const Values out = c.out.Values();
        for (std::int64_t i = 0; i < 45; ++i) {
          EXPECT_EQ(std::isnan(out[i]), dim == -1 ? i / 9 == 2 : i % 9 == 2) << i;
        }
      });
    }
  }
}

// Values so far apart that exp overflows and underflows without its shift.
TEST(FlaoFalNonfinite, LargeValues) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kFlaoFalActivations) {
      if (act.kind == Activation::Kind::kNone || act.kind == Activation::Kind::kRelu) continue;
      FlaoFalCase c({.dtype = dtype,
                     .heads = 2,
                     .n = 150,
                     .m = 140,
                     .d = 10,
                     .e = 12,
                     .q_act = act,
                     .k_act = act,
                     .v_act = act,
                     .g_act = act,
                     .lrpe = Lrpe::kCosine});
      const bool is_silu = act.kind == Activation::Kind::kSilu;
      for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g}) {
        Values values = tensor->Values();
        for (double& value : values) value *= is_silu ? 5 : 60;
        tensor->Fill(values);
      }
      OnEveryTarget([&] {
        c.CheckForward(Keep::kKv);
        c.CheckBackward(Keep::kKv);
      });
    }
  }
}

// KV is 256·64·64, far beyond 65504, but the gate brings the result back; without it, it is Inf.
TEST(FlaoFalNonfinite, Float16SumsDoNotOverflow) {
  FlaoFalCase c({.dtype = DType::kFloat16,
                 .heads = 1,
                 .n = 2,
                 .m = 256,
                 .d = 2,
                 .e = 3,
                 .k_act = Activation::Relu(),
                 .lrpe = Lrpe::kCosine});
  c.q.Fill(Values(c.q.size(), 1));
  c.k.Fill(Values(c.k.size(), 64));
  c.v.Fill(Values(c.v.size(), 64));
  c.theta.Fill(Values(c.theta.size(), 0));
  c.g.Fill({0x1p-14, 0x1p-14, 1, 0x1p-14, 1, 0x1p-14});
  c.d_out.Fill(Values(c.d_out.size(), 0x1p-10));
  OnEveryTarget([&] {
    for (const Keep keep : kAllKeeps) {
      c.Forward(keep);
      EXPECT_EQ(c.out.Values(), (Values{128, 128, kInf, 128, kInf, 128}));
      c.Backward(keep);
      EXPECT_EQ(c.dg.Values(), Values(6, 2048));
      if (keep == Keep::kKvQkv) EXPECT_EQ(c.qkv.Values(), Values(6, 0x1p21));
    }
  });
}

}  // namespace
}  // namespace attnops::testing
