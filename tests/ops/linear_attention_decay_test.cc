// Decays that a product of them might trip over: none, tiny, strong, −Inf, and growth.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/linear_attention_case.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

// Decays that go round `cycle`, of 1 or 7 values, along the tokens of each feature.
void CheckWith(LinearAttentionSpec spec, const Values& cycle) {
  for (const DecayKind decay : {DecayKind::kConstant, DecayKind::kToken, DecayKind::kFeature}) {
    if (decay == DecayKind::kConstant && cycle.size() > 1) continue;
    for (const bool on_values : {false, true}) {
      spec.decay = decay;
      spec.on_values = on_values;
      LinearAttentionCase c(spec);
      for (GuardedTensor* tensor : {&c.log_decay, &c.log_decay_v}) {
        Values values(tensor->size());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = cycle[i * 5 % cycle.size()];
        tensor->Fill(values);
      }
      OnEveryTarget([&] { c.CheckBoth(); });
    }
  }
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16};

TEST(LinearAttentionDecay, OneValue) {
  for (const DType dtype : kTypes) {
    for (const double value : {0.0, -1e-6, -1.0, -50.0, -1e30, -kInf, 0.02}) {
      CheckWith({.dtype = dtype, .n = 130, .key_heads = 1, .heads = 2, .d = 6, .e = 5}, {value});
    }
  }
}

TEST(LinearAttentionDecay, Mixed) {
  for (const DType dtype : kTypes) {
    const LinearAttentionSpec spec{
        .dtype = dtype, .n = 140, .key_heads = 1, .heads = 1, .d = 6, .e = 5};
    CheckWith(spec, {0.0, -1e-6, -50.0, -0.3, -kInf, -1e-3, -2.0});
    // Growth that decay makes up for.
    CheckWith(spec, {3.0, -4.0, 0.5, -0.25, 2.0, -3.0, -0.1});
    CheckWith(spec, {-50.0, 30.0, -1e-6, -1e-6, 10.0, -5.0, -1.0});
  }
}

// Blocks are cut where a decay grows: a product of 64 of these is beyond float32, and the result
// is not, since the first keys are small.
TEST(LinearAttentionDecay, GrowthBeyondFloat32) {
  for (const DecayKind decay : {DecayKind::kConstant, DecayKind::kToken, DecayKind::kFeature}) {
    for (const std::int64_t n : {60, 61, 1100}) {
      LinearAttentionCase c({.dtype = n % 2 == 0 ? DType::kFloat32 : DType::kBFloat16,
                             .n = n,
                             .key_heads = 1,
                             .heads = 1,
                             .d = 3,
                             .e = 4,
                             .decay = decay,
                             .states = false});
      const double log = 120.0 / static_cast<double>(n);
      c.log_decay.Fill(Values(c.log_decay.size(), log));
      Values k = c.k.Values(), d_out = c.d_out.Values();
      for (std::size_t i = 0; i < k.size(); ++i) {
        k[i] *= std::exp(-60 + log * static_cast<double>(i / 3) / 2);
      }
      for (std::size_t i = 0; i < d_out.size(); ++i) {
        d_out[i] *= std::exp(-log * static_cast<double>(i / 4) / 2);
      }
      c.k.Fill(k);
      c.d_out.Fill(d_out);
      OnEveryTarget([&] { c.CheckBoth(); });
    }
  }
}

// A million tokens: the error at the end is that of the memory of the decay, not of the length.
TEST(LinearAttentionDecay, MillionTokens) {
  constexpr std::int64_t kTokens = 1000000;
  for (const double log : {-1e-6, -1e-3}) {
    LinearAttentionCase c({.n = kTokens,
                           .key_heads = 1,
                           .heads = 1,
                           .d = 1,
                           .e = 1,
                           .decay = DecayKind::kConstant,
                           .scale = 1});
    c.log_decay.Fill({log});
    c.k.Fill(Values(kTokens, 1));
    c.v.Fill(Values(kTokens, 1));
    c.q.Fill(Values(kTokens, 1));
    c.initial_state.Fill({1});
    c.Forward();
    const double exact = c.log_decay.Values()[0];
    const double decay = std::exp(exact * kTokens);
    const double want = decay + (1 - decay) / -std::expm1(exact);
    EXPECT_NEAR(c.state.Values()[0], want, want * SumError(kTokens / 64));
    EXPECT_NEAR(c.out.Values()[kTokens - 1], want, want * SumError(kTokens / 64));
  }
}

}  // namespace
}  // namespace attnops::testing
