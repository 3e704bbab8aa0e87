// The precision of products: which one a call has, and what it does not change.
#include "attnops/precision.h"

#include <gtest/gtest.h>

#include <vector>

#include "attnops/error.h"
#include "tests/ops/flao_case.h"
#include "tests/ops/flao_fal_case.h"
#include "tests/ops/tpa_decode_case.h"
#include "tests/support/precisions.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr Precision kAll[] = {Precision::kAuto, Precision::kHighest, Precision::kHigh,
                              Precision::kMedium};

class PrecisionRestorer {
 public:
  PrecisionRestorer() = default;
  PrecisionRestorer(const PrecisionRestorer&) = delete;
  PrecisionRestorer& operator=(const PrecisionRestorer&) = delete;
  ~PrecisionRestorer() { SetPrecision(before_); }

 private:
  Precision before_ = GetPrecision();
};

TEST(Precision, IsTheProcessesUnlessGiven) {
  const PrecisionRestorer restorer;
  const DotTileEmulation emulation;
  TpaCase c({.dtype = DType::kBFloat16, .m = 100, .heads = 4, .rank = 7, .d = 32, .e = 32});
  const auto bits = [&](std::optional<Precision> precision) {
    TpaDecode(c.aq.view(), c.ak.view(), c.av.view(), c.bq.view(), c.bk.view(), c.bv.view(),
              c.out.view(), {.precision = precision});
    return c.out.Bits();
  };
  for (const Precision precision : kAll) {
    const auto expected = bits(precision);
    SetPrecision(precision);
    EXPECT_EQ(GetPrecision(), precision);
    EXPECT_EQ(bits({}), expected) << Name(precision);
    EXPECT_EQ(EffectivePrecision(DType::kBFloat16),
              EffectivePrecision(DType::kBFloat16, precision));
  }
}

TEST(Precision, UnknownIsAnErrorAndChangesNothing) {
  const Precision before = GetPrecision();
  for (const int value : {-1, 4, 1000}) {
    EXPECT_THROW(SetPrecision(static_cast<Precision>(value)), Error);
    EXPECT_THROW(EffectivePrecision(DType::kBFloat16, static_cast<Precision>(value)), Error);
    EXPECT_EQ(GetPrecision(), before);
  }
}

TEST(Precision, EffectiveOne) {
  const DotTileEmulation emulation;
  OnEveryTarget([] {
    for (const Precision precision : kAll) {
      EXPECT_EQ(EffectivePrecision(DType::kFloat32, precision), Precision::kHighest);
      EXPECT_EQ(EffectivePrecision(DType::kFloat16, precision), Precision::kHighest);
    }
    const bool has_tile = FindDotTile(ChosenTarget()) != nullptr;
    for (const Precision precision : {Precision::kHigh, Precision::kMedium}) {
      EXPECT_EQ(EffectivePrecision(DType::kBFloat16, precision),
                has_tile ? precision : Precision::kHighest);
    }
    EXPECT_EQ(EffectivePrecision(DType::kBFloat16, Precision::kAuto),
              has_tile ? Precision::kMedium : Precision::kHighest);
    EXPECT_EQ(EffectivePrecision(DType::kBFloat16, Precision::kHighest), Precision::kHighest);
  });
}

// Without instructions every precision is highest, bit for bit; with them, or with vector code in
// their place, medium is not.
TEST(Precision, WithoutInstructionsNothingChanges) {
  FlaoCase c({.dtype = DType::kBFloat16, .n = 70, .m = 60, .d = 33, .e = 20});
  OnEveryTarget([&] {
    const auto bits = [&](Precision precision) {
      c.precision = precision;
      c.Forward(Keep::kKvQkv);
      c.Backward(Keep::kKvQkv);
      return std::vector{c.out.Bits(), c.dq.Bits(), c.dk.Bits(), c.dv.Bits(), c.dg.Bits()};
    };
    const auto highest = bits(Precision::kHighest);
    const bool has_tile = FindDotTile(ChosenTarget()) != nullptr;
    for (const Precision precision : kAll) {
      const bool same = precision == Precision::kHighest || !has_tile;
      if (precision == Precision::kHigh && has_tile) continue;  // another order of sums
      EXPECT_EQ(bits(precision) == highest, same) << Name(precision);
    }
  });
}

// Denormal operands count as themselves or as 0.
TEST(Precision, DenormalOperands) {
  const DotTileEmulation emulation;
  for (const Precision precision : {Precision::kHigh, Precision::kMedium}) {
    OnEveryTarget([&] {
      FlaoCase c({.dtype = DType::kBFloat16, .heads = 1, .n = 4, .m = 40, .d = 6, .e = 6});
      for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g}) {
        tensor->Fill(std::vector<double>(tensor->size(), 1));
      }
      std::vector<double> k(c.k.size(), 1);
      k[7] = 0x1p-128;
      k[20] = -0x1p-130;
      c.k.Fill(k);
      c.precision = precision;
      c.Forward();
      for (const double value : c.out.Values()) EXPECT_EQ(value, 238);
      // Nothing but denormals.
      c.k.Fill(std::vector<double>(c.k.size(), 0x1p-128));
      c.Forward();
      for (const double value : c.out.Values()) {
        EXPECT_TRUE(value == 0 || std::abs(value - 240 * 0x1p-128) < 0x1p-126) << value;
      }
    });
  }
}

}  // namespace
}  // namespace attnops::testing
