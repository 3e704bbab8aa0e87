// Checks of flao_fal's gradients that do not rely on the reference's backward, and of flao_fal
// against the operators it is made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attnops/flao.h"
#include "attnops/lrpe_rotate.h"
#include "attnops/md_lrpe_cosine.h"
#include "tests/ops/flao_fal_case.h"
#include "tests/support/gradient_check.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

using Inputs = reference::FlaoFal::Inputs;
using Values = std::vector<double>;

// Differences of the reference's forward.
TEST(FlaoFalBackward, MatchesFiniteDifferences) {
  const std::vector<Activation>& acts = kFlaoFalActivations;
  for (std::size_t i = 0; i < acts.size(); ++i) {
    for (const NamedEncoding& encoding : kEncodings) {
      FlaoFalCase c(WithEncoding({.heads = 2,
                                  .n = 4,
                                  .m = 5,
                                  .d = 6,
                                  .e = 3,
                                  .q_act = acts[i],
                                  .k_act = acts[(i + 1) % acts.size()],
                                  .v_act = acts[(i + 2) % acts.size()],
                                  .g_act = acts[(i + 3) % acts.size()],
                                  .theta_heads = 2},
                                 encoding));
      // Differences across the kink of relu are meaningless.
      for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g}) {
        Values values = tensor->Values();
        for (double& value : values) value = std::copysign(std::max(std::abs(value), 0.01), value);
        tensor->Fill(values);
      }
      const reference::FlaoFal reference = c.Reference();
      const Values theta = c.theta.Values();
      const Inputs x = c.InputValues();
      const auto differences = [&](Values Inputs::*input) {
        const auto forward = [&](const Values& at) {
          Inputs moved = x;
          moved.*input = at;
          return reference.Run(moved, theta).out;
        };
        return DifferenceGradient(forward, x.*input, c.d_out.Values());
      };
      const auto check = [](const char* name, const GuardedTensor& actual, const Values& expected,
                            Values bound) {
        SCOPED_TRACE(name);
        // The sums are of order 10, and with them the cancellation.
        for (double& value : bound) value += 10 * kDifference;
        EXPECT_TRUE(AllNear(actual.Values(), expected, bound));
      };
      const Values dq = differences(&Inputs::q), dk = differences(&Inputs::k);
      const Values dv = differences(&Inputs::v), dg = differences(&Inputs::g);
      OnEveryTarget([&] {
        SCOPED_TRACE(c.spec().Describe());
        c.Backward();
        check("dq", c.dq, dq, c.Expected().dq.bound);
        check("dk", c.dk, dk, c.Expected().dk.bound);
        check("dv", c.dv, dv, c.Expected().dv.bound);
        check("dg", c.dg, dg, c.Expected().dg.bound);
      });
    }
  }
}

// Without activations and encoding it is flao, to the last bit but for the order of sums.
TEST(FlaoFalBackward, PlainIsFlao) {
  for (const DType dtype : kAllTypes) {
    FlaoFalCase c({.dtype = dtype, .heads = 3, .n = 150, .m = 140, .d = 33, .e = 20});
    OnEveryTarget([&] {
      c.Forward(Keep::kKvQkv);
      GuardedTensor out(dtype, c.out.shape());
      Flao(c.q.view(), c.k.view(), c.v.view(), c.g.view(), out.view(), {.precision = c.precision});
      const FlaoFalExpected& expected = c.Expected();
      Values bound = expected.out.bound;
      const Values flao = out.Values();
      for (std::size_t i = 0; i < bound.size(); ++i) {
        bound[i] = 2 * (bound[i] + StorageError(dtype, flao[i]));
      }
      EXPECT_TRUE(AllNear(c.out.Values(), flao, bound));
    });
  }
}

// f(x) by the rotation with angle 0, which is exact. x (B,H,N,D) is seen as (B,N,H,D).
Values Activated(const GuardedTensor& x, const Activation& act) {
  const GuardedTensor theta = [] {
    GuardedTensor zero(DType::kFloat32, {1, 1});
    zero.Fill({0});
    return zero;
  }();
  const auto swapped = [](const auto& view) {
    const Dims shape = {view.shape(0), view.shape(2), view.shape(1), view.shape(3)};
    const Dims strides = {view.stride(0), view.stride(2), view.stride(1), view.stride(3)};
    return std::decay_t<decltype(view)>(view.data(), view.dtype(), shape, strides);
  };
  Activation own = act;
  if (act.kind == Activation::Kind::kSoftmax) own.dim = act.dim == 2 ? 1 : 3;
  GuardedTensor out(x.dtype(), x.shape());
  LrpeRotate(swapped(x.view()), theta.view(), swapped(out.view()), {.offset = 0, .act = own});
  return out.Values();
}

// The composition of the other operators in float32 has the same bounds, so that the two are
// within twice those of each other.
TEST(FlaoFalBackward, IsTheCompositionOfTheOtherOperators) {
  const std::vector<Activation>& acts = kFlaoFalActivations;
  for (std::size_t i = 0; i < acts.size(); ++i) {
    for (const Dims& shape : {Dims{130}, Dims{9, 14}}) {
      FlaoFalCase c({.heads = 2,
                     .d = 24,
                     .e = 10,
                     .q_act = acts[i],
                     .k_act = acts[(i + 1) % acts.size()],
                     .v_act = acts[(i + 2) % acts.size()],
                     .g_act = acts[(i + 3) % acts.size()],
                     .lrpe = Lrpe::kCosine,
                     .theta_heads = 2,
                     .shape = shape,
                     .offset = shape.rank() == 1 ? 1'000'003 : 0,
                     .l = 4});
      const Dims encoded = {1, 2, c.spec().n, 48};
      GuardedTensor q(DType::kFloat32, encoded), k(DType::kFloat32, encoded);
      GuardedTensor v(DType::kFloat32, c.v.shape()), g(DType::kFloat32, c.g.shape());
      GuardedTensor out(DType::kFloat32, c.out.shape());
      OnEveryTarget([&] {
        SCOPED_TRACE(c.spec().Describe());
        const std::int64_t l = c.spec().l;
        MdLrpeCosine(c.q.view(), c.theta.view(), q.view(),
                     {shape, l, c.spec().offset, c.spec().q_act});
        MdLrpeCosine(c.k.view(), c.theta.view(), k.view(), {shape, l, 0, c.spec().k_act});
        v.Fill(Activated(c.v, c.spec().v_act));
        g.Fill(Activated(c.g, c.spec().g_act));
        Flao(q.view(), k.view(), v.view(), g.view(), out.view());
        c.Forward();
        Values bound = c.Expected().out.bound;
        for (double& value : bound) value *= 2;
        EXPECT_TRUE(AllNear(c.out.Values(), out.Values(), bound));
      });
    }
  }
}

}  // namespace
}  // namespace attnops::testing
