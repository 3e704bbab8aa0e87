// Values that are not finite reach their own token and later ones, gradients their own and earlier
// ones: nothing above the diagonal is multiplied.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/ops/case.h"
#include "tests/ops/linear_attention_case.h"
#include "tests/support/precisions.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Spoils all features of one token of a (1,N,1,features) tensor.
void Spoil(GuardedTensor& tensor, std::int64_t token, std::int64_t n, double value) {
  std::vector<double> values = tensor.Values();
  const std::size_t features = values.size() / static_cast<std::size_t>(n);
  for (std::size_t i = 0; i < features; ++i) {
    values[static_cast<std::size_t>(token) * features + i] = value;
  }
  tensor.Fill(values);
}

// The tokens [begin, end) have the bits of `clean`.
void ExpectClean(const GuardedTensor& tensor, const std::vector<double>& clean, std::int64_t begin,
                 std::int64_t end, std::int64_t n, const char* name) {
  const std::vector<double> values = tensor.Values();
  const std::size_t features = values.size() / static_cast<std::size_t>(n);
  for (std::size_t i = static_cast<std::size_t>(begin) * features;
       i < static_cast<std::size_t>(end) * features; ++i) {
    ASSERT_EQ(values[i], clean[i]) << name << " of token " << i / features;
  }
}

constexpr std::int64_t kTokens = 75;

void CheckCausality(LinearAttentionCase& c) {
  InEveryPrecision(c.spec().dtype, [&](Precision precision) {
    c.precision = precision;
    OnEveryTarget([&] {
      c.Forward();
      c.Backward();
      const auto out = c.out.Values(), dq = c.dq.Values(), dk = c.dk.Values(), dv = c.dv.Values();
      for (const std::int64_t token : {0, 1, 6, 31, 62, 63, 64, 70}) {
        for (const double value : {kInf, kNaN}) {
          for (GuardedTensor* tensor : {&c.k, &c.v}) {
            const std::vector<double> before = tensor->Values();
            Spoil(*tensor, token, kTokens, value);
            c.Forward();
            c.Backward();
            ExpectClean(c.out, out, 0, token, kTokens, "out");
            ExpectClean(c.dq, dq, 0, token, kTokens, "dq");
            EXPECT_FALSE(
                std::isfinite(c.out.Values()[static_cast<std::size_t>(token * c.spec().e)]));
            // dk and dv depend on later q and d_out alone.
            if (tensor == &c.k) ExpectClean(c.dk, dk, 0, kTokens, kTokens, "dk");
            if (tensor == &c.v) ExpectClean(c.dv, dv, 0, kTokens, kTokens, "dv");
            tensor->Fill(before);
          }
          for (GuardedTensor* tensor : {&c.q, &c.d_out}) {
            const std::vector<double> before = tensor->Values();
            Spoil(*tensor, token, kTokens, value);
            c.Backward();
            ExpectClean(c.dk, dk, token + 1, kTokens, kTokens, "dk");
            ExpectClean(c.dv, dv, token + 1, kTokens, kTokens, "dv");
            EXPECT_FALSE(
                std::isfinite(c.dk.Values()[static_cast<std::size_t>(token * c.spec().d)]));
            tensor->Fill(before);
          }
        }
      }
    });
  });
}

TEST(LinearAttentionCausality, NotFiniteValuesReachNoTokenBefore) {
  int type = 0;
  for (const DecayKind decay : kAllDecays) {
    for (const bool on_values : {false, true}) {
      LinearAttentionCase c({.dtype = kAllTypes[type++ % 3],
                             .n = kTokens,
                             .key_heads = 1,
                             .heads = 1,
                             .d = 20,
                             .e = 37,
                             .decay = decay,
                             .on_values = on_values});
      CheckCausality(c);
    }
  }
}

// With bfloat16 products, and an odd number of features of keys.
TEST(LinearAttentionCausality, InEveryPrecision) {
  for (const DecayKind decay : {DecayKind::kNone, DecayKind::kConstant, DecayKind::kToken}) {
    LinearAttentionCase c({.dtype = DType::kBFloat16,
                           .n = kTokens,
                           .key_heads = 1,
                           .heads = 1,
                           .d = 21,
                           .e = 37,
                           .decay = decay});
    CheckCausality(c);
  }
}

}  // namespace
}  // namespace attnops::testing
