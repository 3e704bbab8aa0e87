// lrpe_rotate and rope with positions and pairs of every kind, against the formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/ops/rotary_case.h"
#include "tests/support/gradient_check.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 31;

// Every combination of pairs × rotary_dim × positions × layout × type, on every target.
TEST(Rotary, EveryFormOfEveryType) {
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    ForEachRotaryForm([&, type = dtype, theta_type = theta_dtype](RotarySpec spec) {
      spec.dtype = type;
      spec.theta_dtype = theta_type;
      RotaryCase c(spec);
      OnEveryTarget([&] { c.CheckAll(); });
    });
  }
}

// The same with activations: rows are gathered where pairs are not halves.
TEST(Rotary, EveryFormWithActivations) {
  const std::vector<Activation> activations = ActivationsWithSoftmax({-1, 1});
  std::size_t number = 0;
  ForEachRotaryForm([&](RotarySpec spec) {
    spec.dtype = kAllTypes[number % 3];
    for (std::size_t i = 0; i < 2; ++i) {
      spec.act = activations[1 + number++ % (activations.size() - 1)];
      RotaryCase c(spec);
      OnEveryTarget([&] { c.CheckAll(); });
    }
  });
}

// Sizes around those of chunks, where a row's last pairs share one with what passes through.
TEST(Rotary, AwkwardSizes) {
  for (const DType dtype : kAllTypes) {
    for (const bool interleaved : {false, true}) {
      for (const std::int64_t features : {2, 6, 32, 64, 128, 130}) {
        for (std::int64_t rotated = 0; rotated <= features; rotated += features / 4 * 2 + 2) {
          RotarySpec spec;
          spec.dtype = dtype;
          spec.features = features;
          spec.rotated = rotated;
          spec.interleaved = interleaved;
          spec.theta_features = rotated == 0 ? 1 : 0;
          spec.form = PositionForm::kOfBatches;
          RotaryCase c(spec);
          OnEveryTarget([&] {
            c.CheckForward();
            c.CheckBackward();
          });
        }
      }
    }
  }
}

// What is not rotated passes bit by bit, NaN and infinities too.
TEST(Rotary, FeaturesBehindTheRotatedPassAsTheyAre) {
  for (const DType dtype : kAllTypes) {
    for (const bool interleaved : {false, true}) {
      RotarySpec spec;
      spec.dtype = dtype;
      spec.features = 44;
      spec.rotated = 18;
      spec.interleaved = interleaved;
      RotaryCase c(spec);
      std::vector<double> values = c.x.Values();
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % 44 == 18) values[i] = INFINITY;
        if (i % 44 == 19) values[i] = -0.0;
      }
      c.x.Fill(values);
      OnEveryTarget([&] {
        c.CheckForward();
        const auto x = c.x.Bits(), out = c.out.Bits();
        for (std::size_t i = 0; i < x.size(); ++i) {
          if (i % 44 >= 18) ASSERT_EQ(out[i], x[i]) << spec.Describe() << " at " << i;
        }
      });
    }
  }
}

TEST(Rotary, PositionsOfAnySizeAreExact) {
  for (const std::int64_t first : {-kLimit + 4, kLimit - 60, std::int64_t{1'000'000'007}}) {
    for (const PositionForm form : {PositionForm::kOffset, PositionForm::kOffsets,
                                    PositionForm::kOfTokens, PositionForm::kOfBatches}) {
      RotarySpec spec;
      spec.first = first;
      spec.form = form;
      RotaryCase c(spec);
      OnEveryTarget([&] { c.CheckAll(); });
    }
  }
}

// rope gives the bits of lrpe_rotate for queries and for keys.
TEST(Rope, IsLrpeRotateOfQueriesAndKeys) {
  ForEachRotaryForm([](RotarySpec spec) {
    if (spec.theta_heads != 1) return;
    spec.dtype = DType::kBFloat16;
    RopeCase c(spec, 2);
    OnEveryTarget([&] {
      SCOPED_TRACE(spec.Describe());
      for (const bool backward : {false, true}) {
        backward ? c.Backward() : c.Forward();
        EXPECT_TRUE(c.q.out.AllWritten() && c.k.out.AllWritten());
        const auto q = c.q.out.Bits(), k = c.k.out.Bits();
        backward ? c.q.Backward() : c.q.Forward();
        backward ? c.k.Backward() : c.k.Forward();
        EXPECT_EQ(q, c.q.out.Bits());
        EXPECT_EQ(k, c.k.out.Bits());
      }
      // The gradient of theta is the sum of both.
      RopeThetaGradient(c.q.x.view(), c.k.x.view(), c.q.theta.view(), c.q.d_out.view(),
                        c.k.d_out.view(), c.q.d_theta.view(), c.Options());
      const auto of = [](const RotaryCase& one) {
        return one.Reference().GradientOfTheta(one.InOrder(one.x.Values(), false),
                                               one.theta.Values(),
                                               one.InOrder(one.d_out.Values(), false));
      };
      auto expected = of(c.q);
      const auto of_keys = of(c.k);
      for (std::size_t i = 0; i < expected.value.size(); ++i) {
        expected.value[i] += of_keys.value[i];
        expected.magnitude[i] = kThetaGradient * (expected.magnitude[i] + of_keys.magnitude[i]);
      }
      CheckResult(c.q.d_theta, {expected.value, expected.magnitude});
    });
  });
}

TEST(Rope, InPlace) {
  for (const bool interleaved : {false, true}) {
    RotarySpec spec;
    spec.dtype = DType::kBFloat16;
    spec.features = 128;
    spec.rotated = interleaved ? 128 : 64;
    spec.interleaved = interleaved;
    spec.form = PositionForm::kPacked;
    RopeCase c(spec, 1);
    c.Forward();
    const auto q = c.q.out.Bits(), k = c.k.out.Bits();
    Rope(c.q.x.view(), c.k.x.view(), c.q.theta.view(), c.q.x.view(), c.k.x.view(), c.Options());
    EXPECT_EQ(q, c.q.x.Bits());
    EXPECT_EQ(k, c.k.x.Bits());
  }
}

// A caller's table with the cosines and sines of every position, in float32 and in the type.
TEST(Rope, CosSinInPlaceOfTheta) {
  constexpr std::int64_t kRows = 80;
  for (const DType dtype : kAllTypes) {
    for (const DType table_type : {DType::kFloat32, dtype}) {
      ForEachRotaryForm([&](RotarySpec spec) {
        spec.dtype = dtype;
        spec.first = spec.form == PositionForm::kSections ? 18 : 4;
        spec.theta_heads = 1;
        spec.theta_features = 0;
        RopeCase c(spec, 2);
        const std::int64_t pairs = spec.rotated / 2;
        GuardedTensor cos_sin(table_type, {kRows, 2 * pairs});
        std::vector<double> values;
        const std::vector<double> theta = c.q.theta.Values();
        for (std::int64_t p = 0; p < kRows; ++p) {
          for (const double part : {0.0, M_PI / 2}) {
            for (std::int64_t j = 0; j < pairs; ++j) {
              values.push_back(std::cos(static_cast<double>(p) * theta[j] - part));
            }
          }
        }
        cos_sin.Fill(values);
        // The table's rounding, of cos and of sin.
        const double rounding = table_type == DType::kFloat32   ? kUnitFloat32
                                : table_type == DType::kFloat16 ? kUnitFloat16
                                                                : kUnitBFloat16;
        const auto check = [&](RotaryCase& one, bool backward) {
          Expected expected = backward ? one.ExpectedBackward() : one.ExpectedForward();
          const auto lengths =
              one.InOrder(one.Reference().PairLengths(
                              one.InOrder(backward ? one.d_out.Values() : one.x.Values(), false)),
                          true);
          for (std::size_t i = 0; i < lengths.size(); ++i) {
            expected.bound[i] += 2 * (1 + rounding) * rounding * spec.scale * lengths[i];
          }
          CheckResult(one.out, expected);
        };
        OnEveryTarget([&] {
          SCOPED_TRACE(spec.Describe());
          c.q.out.Poison();
          c.k.out.Poison();
          RopeWithCosSin(c.q.x.view(), c.k.x.view(), cos_sin.view(), c.q.out.view(), c.k.out.view(),
                         c.Options());
          check(c.q, false);
          check(c.k, false);
          RopeBackwardWithCosSin(c.q.d_out.view(), c.k.d_out.view(), cos_sin.view(), c.q.out.view(),
                                 c.k.out.view(), c.Options());
          check(c.q, true);
          check(c.k, true);
        });
      });
    }
  }
}

// A NaN in the table is one in the result, whatever its payload.
TEST(Rope, NanOfCosSinStays) {
  RotarySpec spec;
  spec.dtype = DType::kBFloat16;
  spec.first = 0;
  RopeCase c(spec, 1);
  std::vector<float> table(40 * 16, 1.0f);
  const std::uint32_t bits = 0x7f800001;
  std::memcpy(&table[3 * 16 + 2], &bits, sizeof(bits));
  RopeWithCosSin(c.q.x.view(), c.k.x.view(), {table.data(), {40, 16}}, c.q.out.view(),
                 c.k.out.view(), c.Options());
  const std::vector<double> out = c.k.out.Values();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t token = i / 16 % 37, feature = i % 16;
    ASSERT_EQ(std::isnan(out[i]), token == 3 && feature % 8 == 2) << i;
  }
}

// Sequences cut anywhere, as prefill and decode do: a token's bits depend on its values and its
// position alone, whether it is given as an offset, for the batch or for the token.
TEST(Rotary, BitsOfATokenDependOnItsPositionAlone) {
  constexpr std::int64_t kLength = 100, kHeads = 3, kFeatures = 32, kFirst = 1'000'005;
  constexpr std::int64_t kToken = kHeads * kFeatures;
  for (const bool interleaved : {false, true}) {
    for (const std::int64_t theta_heads : {std::int64_t{1}, kHeads}) {
      OnEveryTarget([&] {
        const std::vector<double> values = RandomNormal(kLength * kToken, 1);
        std::vector<float> x(values.begin(), values.end());
        const std::vector<double> thetas = RandomUniform(theta_heads * kFeatures / 2, 2, -2, 2);
        const std::vector<float> theta(thetas.begin(), thetas.end());
        const auto run = [&](std::int64_t begin, std::int64_t batches, std::int64_t tokens,
                             const LrpeRotateOptions& options) {
          std::vector<float> out(static_cast<std::size_t>(batches * tokens * kToken));
          LrpeRotate({x.data() + begin * kToken, {batches, tokens, kHeads, kFeatures}},
                     {theta.data(), {theta_heads, kFeatures / 2}},
                     {out.data(), {batches, tokens, kHeads, kFeatures}}, options);
          return out;
        };
        LrpeRotateOptions options;
        options.rotary.interleaved = interleaved;
        options.offset = kFirst;
        const std::vector<float> whole = run(0, 1, kLength, options);
        const auto expect = [&](std::int64_t begin, const std::vector<float>& part,
                                const char* what) {
          EXPECT_EQ(0, std::memcmp(part.data(), whole.data() + begin * kToken,
                                   part.size() * sizeof(float)))
              << what << " from " << begin << ", " << part.size() / kToken << " tokens";
        };
        for (const std::int64_t begin : {0, 1, 7, 11, 16, 27, 50}) {
          for (const std::int64_t tokens : {1, 2, 15, 16, 17, 50}) {
            options.offset = kFirst + begin;
            expect(begin, run(begin, 1, tokens, options), "an offset");
            options.offset = 0;
            std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
            for (std::int64_t t = 0; t < tokens; ++t) {
              ids[t] = static_cast<std::int32_t>(kFirst + begin + t);
            }
            options.rotary.positions = IntegerView(ids.data(), {tokens});
            expect(begin, run(begin, 1, tokens, options), "positions of tokens");
            // Each token a batch of its own.
            options.rotary.positions = IntegerView(ids.data(), {tokens, 1});
            expect(begin, run(begin, tokens, 1, options), "positions of batches");
            options.rotary.positions = {};
            options.rotary.offsets = IntegerView(ids.data(), {tokens});
            expect(begin, run(begin, tokens, 1, options), "offsets of batches");
            options.rotary.offsets = {};
          }
        }
      });
    }
  }
}

// Sums of theta's gradient are merged in a fixed order.
TEST(Rotary, SameBitsForAnyNumberOfThreads) {
  for (const Activation& act : {Activation::None(), Activation::Softmax(1)}) {
    for (const PositionForm form :
         {PositionForm::kOffset, PositionForm::kOfBatches, PositionForm::kSections}) {
      RotarySpec spec;
      spec.dtype = DType::kBFloat16;
      spec.batch = 3;
      spec.length = 400;
      spec.heads = 5;
      spec.features = 96;
      spec.rotated = 64;
      spec.form = form;
      spec.act = act;
      RotaryCase c(spec);
      ExpectSameInEverySetting(kThreadCounts, [&] {
        c.Forward();
        auto bits = c.out.Bits();
        c.Backward();
        const auto backward = c.out.Bits();
        c.ThetaGradient();
        const auto of_theta = c.d_theta.Bits();
        bits.insert(bits.end(), backward.begin(), backward.end());
        bits.insert(bits.end(), of_theta.begin(), of_theta.end());
        return bits;
      });
    }
  }
}

// The float32 gradient of theta against differences of the reference's forward.
TEST(Rotary, GradientOfThetaMatchesFiniteDifferences) {
  for (const Activation& act : ActivationsWithSoftmax({-1, 1})) {
    RotarySpec spec;
    spec.length = 5;
    spec.features = 10;
    spec.rotated = 8;
    spec.theta_heads = 3;
    spec.first = 3;
    spec.act = act;
    RotaryCase c(spec);
    const reference::Rotary rotary = c.Reference();
    const std::vector<double> x = c.x.Values();
    const std::vector<double> expected =
        DifferenceGradient([&](const std::vector<double>& at) { return rotary.Forward(x, at); },
                           c.theta.Values(), c.d_out.Values());
    auto bound = rotary.GradientOfTheta(x, c.theta.Values(), c.d_out.Values()).magnitude;
    // The third derivative grows with the cube of the position.
    for (double& value : bound) value = kThetaGradient * value + 100 * kDifference;
    OnEveryTarget([&] {
      c.ThetaGradient();
      EXPECT_TRUE(AllNear(c.d_theta.Values(), expected, bound)) << spec.Describe();
    });
  }
}

// Many tokens at large positions.
TEST(Rotary, GradientOfThetaAtLargePositions) {
  for (const DType dtype : kAllTypes) {
    RotarySpec spec;
    spec.dtype = dtype;
    spec.length = 3000;
    spec.features = 32;
    spec.rotated = 32;
    spec.first = 1'000'000;
    spec.form = PositionForm::kOfBatches;
    RotaryCase c(spec);
    OnEveryTarget([&] { c.CheckThetaGradient(); });
  }
}

}  // namespace
}  // namespace attnops::testing
