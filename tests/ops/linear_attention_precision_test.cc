// linear_attention with bfloat16 products: awkward sizes, groups, packed sequences and pieces
// against the recurrence, and what a precision does not change. The cases check every precision.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/ops/linear_attention_case.h"
#include "tests/support/precisions.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr DecayKind kTokenDecays[] = {DecayKind::kNone, DecayKind::kConstant, DecayKind::kToken};

void CheckDecays(LinearAttentionSpec spec) {
  spec.dtype = DType::kBFloat16;
  for (const DecayKind decay : kTokenDecays) {
    spec.decay = decay;
    LinearAttentionCase c(spec);
    OnEveryTarget([&] { c.CheckBoth(); });
  }
}

struct Sizes {
  std::int64_t n, d, e;
};

// Tokens around tiles, pairs, chunks and blocks; an odd number of features is a copy of rows.
TEST(LinearAttentionPrecision, AwkwardSizes) {
  static constexpr Sizes kSizes[] = {{2, 1, 1},    {3, 2, 3},     {7, 7, 5},     {9, 16, 31},
                                     {21, 33, 15}, {63, 33, 5},   {64, 8, 16},   {65, 17, 18},
                                     {66, 32, 1},  {131, 65, 33}, {128, 1, 130}, {200, 128, 96}};
  for (const Sizes& s : kSizes) {
    CheckDecays({.n = s.n, .key_heads = 1, .heads = 1, .d = s.d, .e = s.e});
  }
}

TEST(LinearAttentionPrecision, EveryCountOfABlocksTokens) {
  for (std::int64_t n = 1; n <= 66; ++n) {
    CheckDecays({.n = n, .key_heads = 1, .heads = 1, .d = 3, .e = 4, .scale = 1.5});
  }
}

TEST(LinearAttentionPrecision, NothingAtAll) {
  CheckDecays({.n = 0});
  CheckDecays({.n = 70, .d = 0});
  CheckDecays({.n = 70, .e = 0});
}

TEST(LinearAttentionPrecision, LayoutsGroupsAndTypesOfDecays) {
  for (const bool float_decay : {false, true}) {
    CheckDecays({.batch = 2,
                 .n = 70,
                 .key_heads = 2,
                 .heads = 6,
                 .d = 9,
                 .e = 6,
                 .scale = 0.7,
                 .heads_first = true,
                 .float_decay = float_decay});
    CheckDecays({.n = 20, .key_heads = 1, .heads = 3, .states = false, .float_decay = float_decay});
  }
}

TEST(LinearAttentionPrecision, PackedSequencesAndPieces) {
  for (const bool states : {false, true}) {
    CheckDecays({.n = 150,
                 .key_heads = 1,
                 .heads = 2,
                 .d = 4,
                 .e = 7,
                 .states = states,
                 .cu_seqlens = {0, 0, 1, 3, 3, 70, 150, 150}});
  }
  CheckDecays({.n = 2100, .key_heads = 1, .heads = 2, .d = 3, .e = 4, .decay_size = -0.01});
}

// Without instructions every precision is highest, bit for bit. With vector code in their place
// medium is not; high is, since intermediates in two parts are no faster than float32.
TEST(LinearAttentionPrecision, WhatChangesBits) {
  for (const DecayKind decay : kAllDecays) {
    LinearAttentionCase c({.dtype = DType::kBFloat16, .n = 70, .d = 33, .e = 20, .decay = decay});
    const auto bits = [&](Precision precision) {
      c.precision = precision;
      c.Forward();
      c.Backward();
      return std::vector{c.out.Bits(), c.dq.Bits(), c.dk.Bits(), c.dv.Bits()};
    };
    OnEveryTarget([&] {
      const auto check = [&] {
        const auto highest = bits(Precision::kHighest);
        const bool has_tile = FindDotTile(ChosenTarget()) != nullptr;
        EXPECT_EQ(bits(Precision::kHigh), highest);
        const bool same = !has_tile || decay == DecayKind::kFeature;
        EXPECT_EQ(bits(Precision::kMedium) == highest, same);
        EXPECT_EQ(bits(Precision::kAuto) == highest, same);
      };
      check();
      const DotTileEmulation emulation;
      check();
    });
  }
}

// Denormal operands count as themselves or as 0.
TEST(LinearAttentionPrecision, DenormalOperands) {
  OnEveryTarget([] {
    LinearAttentionCase c({.dtype = DType::kBFloat16,
                           .n = 40,
                           .key_heads = 1,
                           .heads = 1,
                           .d = 2,
                           .e = 2,
                           .states = false,
                           .scale = 1});
    for (GuardedTensor* tensor : {&c.q, &c.v}) {
      tensor->Fill(std::vector<double>(tensor->size(), 1));
    }
    std::vector<double> k(c.k.size(), 1);
    k[0] = 0x1p-128;
    k[1] = -0x1p-130;
    c.k.Fill(k);
    InEveryPrecision(DType::kBFloat16, [&](Precision precision) {
      c.precision = precision;
      c.Forward();
      const std::vector<double> out = c.out.Values();
      EXPECT_LT(out[0], 0x1p-126);
      for (std::size_t i = 2; i < out.size(); ++i) {
        EXPECT_EQ(out[i], 2 * static_cast<double>(i / 2));
      }
    });
  });
}

}  // namespace
}  // namespace attnops::testing
