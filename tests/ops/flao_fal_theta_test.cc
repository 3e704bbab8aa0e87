// The gradient of theta that flao_fal's backward gives beside the others.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/ops/flao_fal_case.h"
#include "tests/support/errors.h"
#include "tests/support/gradient_check.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/precisions.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;

Values Magnitudes(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

struct ThetaGradient {
  Values value, magnitude;
};

// Its magnitude is that of all terms of the products it comes from.
ThetaGradient ExpectedTheta(const FlaoFalCase& c) {
  const reference::FlaoFal reference = c.Reference();
  const auto ready = reference.Prepare(c.InputValues(), c.theta.Values());
  const auto run = [&](const auto& of) {
    return reference.Attention().RunBackward(of(ready.q), of(ready.k), of(ready.v), of(ready.g),
                                             of(c.d_out.Values()));
  };
  const auto gradients = run([](const Values& values) { return values; });
  const auto largest = run(Magnitudes);
  ThetaGradient theta{Values(c.theta.size()), Values(c.theta.size())};
  reference.QEncoding().AddThetaGradient(ready.q, gradients.dq, Magnitudes(ready.q), largest.dq,
                                         theta.value, theta.magnitude);
  reference.KEncoding().AddThetaGradient(ready.k, gradients.dk, Magnitudes(ready.k), largest.dk,
                                         theta.value, theta.magnitude);
  return theta;
}

void RunTheta(FlaoFalCase& c, GuardedTensor& d_theta) {
  d_theta.Poison();
  FlaoKept kept;
  kept.precision = c.precision;
  FlaoFalBackward(c.q.view(), c.k.view(), c.v.view(), c.g.view(), c.d_out.view(), c.dq.view(),
                  c.dk.view(), c.dv.view(), c.dg.view(), c.Options(), kept, d_theta.view());
}

FlaoFalSpec Spec(const NamedEncoding& encoding, DType dtype, const Activation& act) {
  FlaoFalSpec spec;
  spec.dtype = dtype;
  spec.batch = 2;
  spec.n = 150;
  spec.m = 140;
  spec.d = 18;
  spec.theta_heads = 2;
  spec.q_act = act;
  spec.k_act = act;
  return WithEncoding(spec, encoding);
}

// Every encoding with an activation and a type that vary, and the other gradients as without it.
TEST(FlaoFalTheta, EveryEncodingAndActivation) {
  std::size_t number = 0;
  for (const NamedEncoding& encoding : kEncodings) {
    if (encoding.lrpe == Lrpe::kNone) continue;
    for (const Activation& act : kFlaoFalActivations) {
      FlaoFalCase c(Spec(encoding, kAllTypes[number++ % 3], act));
      GuardedTensor d_theta(DType::kFloat32, c.theta.shape());
      const ThetaGradient expected = ExpectedTheta(c);
      OnEveryTarget([&] {
        InEveryPrecision(c.spec().dtype, [&](Precision precision) {
          SCOPED_TRACE(c.spec().Describe());
          c.precision = precision;
          c.Backward();
          const auto dq = c.dq.Bits(), dk = c.dk.Bits();
          RunTheta(c, d_theta);
          EXPECT_TRUE(dq == c.dq.Bits() && dk == c.dk.Bits());
          // Operands of three products are rounded to bfloat16 in the lowest precision.
          Values bound = expected.magnitude;
          for (double& value : bound) value *= kThetaGradient + OperandError(precision, 4);
          CheckResult(d_theta, {expected.value, bound});
        });
      });
    }
  }
}

TEST(FlaoFalTheta, MatchesFiniteDifferences) {
  for (const NamedEncoding& encoding : kEncodings) {
    if (encoding.lrpe == Lrpe::kNone) continue;
    FlaoFalSpec spec;
    spec.d = 6;
    spec.q_act = Activation::Silu();
    spec.k_act = Activation::Softmax(-1);
    spec = WithEncoding(spec, encoding);
    if (spec.offset > 0) spec.offset = 2;  // differences at large positions are meaningless
    FlaoFalCase c(spec);
    GuardedTensor d_theta(DType::kFloat32, c.theta.shape());
    const Values expected = DifferenceGradient(
        [&](const Values& theta) { return c.Reference().Run(c.InputValues(), theta).out; },
        c.theta.Values(), c.d_out.Values());
    Values bound = ExpectedTheta(c).magnitude;
    for (double& value : bound) value = (kThetaGradient + kDifference) * value + 100 * kDifference;
    RunTheta(c, d_theta);
    EXPECT_TRUE(AllNear(d_theta.Values(), expected, bound)) << c.spec().Describe();
  }
}

// Heads as tasks and pieces as tasks.
TEST(FlaoFalTheta, SameBitsForAnyNumberOfThreads) {
  for (const std::int64_t batch : {1, 8}) {
    FlaoFalSpec spec;
    spec.dtype = DType::kBFloat16;
    spec.batch = batch;
    spec.n = 2500;
    spec.m = 1300;
    spec.d = 16;
    spec.lrpe = Lrpe::kRotate;
    spec.k_act = Activation::Softmax(2);
    FlaoFalCase c(spec);
    GuardedTensor d_theta(DType::kFloat32, c.theta.shape());
    ExpectSameInEverySetting(kThreadCounts, [&] {
      RunTheta(c, d_theta);
      return d_theta.Bits();
    });
  }
}

TEST(FlaoFalTheta, Errors) {
  FlaoFalSpec spec;
  FlaoFalCase without(spec);
  GuardedTensor d_theta(DType::kFloat32, {1, 8});
  ExpectErrorNaming("flao_fal", "d_theta", [&] { RunTheta(without, d_theta); });
  spec.lrpe = Lrpe::kCosine;
  FlaoFalCase with(spec);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    GuardedTensor bad(dtype, {1, dtype == DType::kFloat32 ? 7 : 8});
    ExpectErrorNaming("flao_fal", "d_theta", [&] { RunTheta(with, bad); });
    EXPECT_TRUE(bad.Untouched());
  }
}

}  // namespace
}  // namespace attnops::testing
