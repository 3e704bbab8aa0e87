// Tensor product attention of any rank against the reference: both passes and decoding.
#include <gtest/gtest.h>

#include <vector>

#include "src/ops/tensor_product_attention/ranks.h"
#include "tests/ops/tpa_case.h"
#include "tests/ops/tpa_decode_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/precisions.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr TpaOptions kCausal{};
constexpr TpaOptions kAll{false, {}, {}, {}, {}, {}};

TEST(TpaDecodeRanks, EveryRank) {
  for (const DType dtype : kTpaTypes) {
    for (std::int64_t rank = 1; rank <= 8; ++rank) {
      TpaRanksCase c({.dtype = dtype,
                      .batch = 2,
                      .m = 71 + rank,
                      .heads = 2 * rank + 3,
                      .q_rank = 9 - rank,
                      .k_rank = rank,
                      .v_rank = 1 + rank * 3 % 8,
                      .d = 5 + 4 * rank,
                      .e = 31 - 3 * rank,
                      .options = kAll});
      OnEveryTarget([&] { c.CheckDecode(TpaSplit::kAuto); });
    }
  }
}

// The published shape goes through the ranks, few heads and full queries do not.
std::vector<TpaRanksSpec> DecodeSpecs(DType dtype) {
  return {{.dtype = dtype, .m = 900, .heads = 34, .q_rank = 6, .d = 64, .e = 64, .options = kAll},
          {.dtype = dtype,
           .batch = 3,
           .m = 600,
           .heads = 22,
           .q_rank = 0,
           .d = 64,
           .e = 48,
           .options = kAll},
          {.dtype = dtype,
           .batch = 2,
           .m = 300,
           .heads = 5,
           .q_rank = 20,
           .k_rank = 3,
           .v_rank = 1,
           .d = 17,
           .e = 33,
           .options = kAll,
           .gaps = true}};
}

TEST(TpaDecodeRanks, MatchesTheReference) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaRanksSpec& spec : DecodeSpecs(dtype)) {
      TpaRanksCase c(spec);
      OnEveryTarget([&] { c.CheckDecode(TpaSplit::kAuto); });
    }
  }
}

TEST(TpaDecodeRanks, SameBitsFromAllSplitsWithAnyNumberOfThreads) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const TpaRanksSpec& spec : DecodeSpecs(dtype)) {
      SCOPED_TRACE(spec.Describe());
      TpaRanksCase c(spec);
      const auto expected = c.DecodeBits(TpaSplit::kB);
      ExpectSameInEverySetting(kThreadCounts, [&] {
        for (const TpaSplit split : kTpaSplits) {
          EXPECT_TRUE(c.DecodeBits(split) == expected) << static_cast<int>(split);
        }
        return expected;
      });
    }
  }
}

// Each sequence of a batch with lengths and pages has the bits that it has alone.
void CheckLengthsAndPages(DType dtype, Precision precision) {
  constexpr std::int64_t kPage = 16, kPages = 40, kHeads = 19;
  TpaOptions options = kAll;
  options.precision = precision;
  TpaRanksCase c({.dtype = dtype,
                  .batch = 5,
                  .m = 100,
                  .heads = kHeads,
                  .q_rank = 3,
                  .d = 24,
                  .e = 20,
                  .options = kAll});
  const std::vector<std::int64_t> lengths = {100, 0, 1, 64, 37};
  const auto run = [&](const TpaKeys& keys, const TpaSequences& sequences) {
    c.out.Poison();
    c.lse.Poison();
    TpaDecode(c.Query(), keys, c.out.view(), sequences, c.lse.view(), options);
    EXPECT_TRUE(c.out.AllWritten());
    EXPECT_TRUE(c.lse.AllWritten());
    return std::make_pair(c.out.Bits(), c.lse.Bits());
  };
  const auto expected = run(c.Keys(), {lengths.data(), nullptr, 0, 0});
  // Alone, from a cache of just its length.
  const auto cut = [&](const GuardedTensor& all, std::int64_t b) {
    return ConstTensorView(
        static_cast<const char*>(all.view().data()) + b * all.strides()[0] * SizeOf(dtype), dtype,
        {1, lengths[b], all.shape()[2], all.shape()[3]}, all.strides());
  };
  for (std::int64_t b = 0; b < 5; ++b) {
    GuardedTensor out(dtype, {1, 1, kHeads, 20});
    const auto first = [&](const GuardedTensor& all) {
      return ConstTensorView(
          static_cast<const char*>(all.view().data()) + b * all.strides()[0] * SizeOf(dtype), dtype,
          {1, 1, all.shape()[2], all.shape()[3]}, all.strides());
    };
    TpaDecode(TpaQuery::Factors(first(c.aq), first(c.bq)),
              {cut(c.ak, b), cut(c.av, b), cut(c.bk, b), cut(c.bv, b)}, out.view(), {}, {},
              options);
    const auto bits = out.Bits();
    EXPECT_TRUE(std::equal(bits.begin(), bits.end(),
                           expected.first.begin() + b * static_cast<std::int64_t>(bits.size())))
        << b;
  }
  // In pages that are scattered over a pool; what is in no page is NaN.
  std::vector<std::int64_t> table(5 * 7, 17);
  std::vector<GuardedTensor> pools;
  std::int64_t next = 0;
  for (std::int64_t b = 0; b < 5; ++b) {
    for (std::int64_t i = 0; i * kPage < lengths[b]; ++i) table[b * 7 + i] = next++ * 13 % kPages;
  }
  for (const GuardedTensor* all : {&c.ak, &c.av, &c.bk, &c.bv}) {
    const std::int64_t token = all->shape()[2] * all->shape()[3];
    std::vector<double> values(kPages * kPage * token, NAN);
    const auto from = all->Values();
    for (std::int64_t b = 0; b < 5; ++b) {
      for (std::int64_t t = 0; t < lengths[b]; ++t) {
        const std::int64_t slot = table[b * 7 + t / kPage] * kPage + t % kPage;
        std::copy_n(from.begin() + (b * 100 + t) * token, token, values.begin() + slot * token);
      }
    }
    pools.emplace_back(dtype, Dims{kPages, kPage, all->shape()[2], all->shape()[3]});
    pools.back().Fill(values);
  }
  const auto paged = run({pools[0].view(), pools[1].view(), pools[2].view(), pools[3].view()},
                         {lengths.data(), table.data(), 7, 7});
  EXPECT_TRUE(paged == expected);
}

TEST(TpaDecodeRanks, LengthsAndPagesInAnyOrder) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    InEveryPrecision(dtype, [&](Precision each) { CheckLengthsAndPages(dtype, each); });
  }
}

// In bfloat16 products the two ranks of a token are a pair, and vectors of heads are worked on
// three, two or one at a time.
TEST(TpaDecodeRanks, PairsOfRanks) {
  const DotTileEmulation emulation;
  for (const std::int64_t heads : {1, 2, 15, 16, 17, 33, 34, 47, 61, 64, 78, 97}) {
    for (const std::int64_t q_rank : {0, 1, 6, 9}) {
      TpaRanksCase c({.dtype = DType::kBFloat16,
                      .m = 1 + heads * 3,
                      .heads = heads,
                      .q_rank = q_rank,
                      .d = heads % 2 == 0 ? 64 : 33,
                      .e = heads % 3 == 0 ? 64 : 29,
                      .options = kAll,
                      .gaps = heads > 60});
      OnEveryTarget([&] { c.CheckDecode(TpaSplit::kAuto); });
    }
  }
}

TEST(TpaDecodeRanks, SameBitsWithGaps) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TpaRanksSpec spec = DecodeSpecs(dtype)[0];
    TpaRanksCase dense(spec);
    spec.gaps = true;
    TpaRanksCase apart(spec);
    EXPECT_TRUE(apart.DecodeBits(TpaSplit::kAuto) == dense.DecodeBits(TpaSplit::kAuto));
  }
}

TEST(TpaDecodeRanks, InfiniteKeysAsInTheOtherOrder) {
  const DotTileEmulation emulation;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TpaRanksCase c(
        {.dtype = dtype, .m = 70, .heads = 34, .q_rank = 6, .d = 64, .e = 16, .options = kAll});
    if (dtype == DType::kBFloat16) c.precision = Precision::kMedium;
    auto values = c.bk.Values();
    values[40 * 2 * 64 + 3] = INFINITY;
    c.bk.Fill(values);
    OnEveryTarget([&] {
      c.Decode(TpaSplit::kAuto);
      // q·bk is +Inf or −Inf; the weight of the token is NaN or 0, never a NaN where it is 0.
      const auto out = c.out.Values();
      int finite = 0;
      for (std::int64_t h = 0; h < 34; ++h) finite += std::isfinite(out[h * 16]);
      EXPECT_GT(finite, 5);
      EXPECT_LT(finite, 29);
    });
  }
}

std::vector<TpaRanksSpec> PrefillSpecs(DType dtype) {
  return {{.dtype = dtype, .batch = 2, .n = 37, .m = 37, .heads = 3, .q_rank = 6, .d = 24, .e = 20},
          {.dtype = dtype,
           .n = 150,
           .m = 219,
           .heads = 2,
           .q_rank = 3,
           .k_rank = 1,
           .v_rank = 3,
           .d = 17,
           .e = 9},
          {.dtype = dtype,
           .n = 21,
           .m = 5,
           .heads = 2,
           .q_rank = 1,
           .k_rank = 4,
           .v_rank = 5,
           .d = 3,
           .e = 70,
           .options = kAll,
           .gaps = true},
          {.dtype = dtype,
           .batch = 2,
           .n = 130,
           .m = 131,
           .heads = 2,
           .q_rank = 0,
           .k_rank = 2,
           .d = 32,
           .e = 16},
          {.dtype = dtype, .batch = 2, .n = 1, .m = 90, .heads = 5, .q_rank = 2, .d = 16, .e = 16}};
}

// Enough heads for scores through the ranks: several blocks of queries and of keys, and more heads
// than are worked on together.
std::vector<TpaRanksSpec> ThroughRanksSpecs(DType dtype) {
  return {
      {.dtype = dtype, .batch = 2, .n = 37, .m = 37, .heads = 12, .q_rank = 2, .d = 24, .e = 20},
      {.dtype = dtype,
       .n = 150,
       .m = 219,
       .heads = 9,
       .q_rank = 3,
       .k_rank = 1,
       .v_rank = 3,
       .d = 17,
       .e = 9},
      {.dtype = dtype,
       .n = 21,
       .m = 5,
       .heads = 20,
       .q_rank = 1,
       .k_rank = 4,
       .v_rank = 5,
       .d = 16,
       .e = 70,
       .options = kAll,
       .gaps = true},
      {.dtype = dtype, .batch = 2, .n = 1, .m = 90, .heads = 8, .q_rank = 1, .d = 16, .e = 16},
      {.dtype = dtype, .n = 130, .m = 131, .heads = 34, .q_rank = 6, .d = 64, .e = 24}};
}

bool ThroughRanks(const TpaRanksSpec& spec) {
  tensor_product_attention::PrefillProblem problem{};
  if (spec.q_rank > 0) problem.aq.data = &spec;
  problem.H = spec.heads;
  problem.Rq = spec.q_rank;
  problem.Rk = spec.k_rank;
  problem.D = spec.d;
  return tensor_product_attention::ThroughRanks(problem);
}

TEST(Tpa, ScoresThroughTheRanksWhereThatIsCheaper) {
  for (const TpaRanksSpec& spec : ThroughRanksSpecs(DType::kFloat32)) {
    EXPECT_TRUE(ThroughRanks(spec)) << spec.Describe();
  }
  for (const TpaRanksSpec& spec : PrefillSpecs(DType::kFloat32)) {
    EXPECT_FALSE(ThroughRanks(spec)) << spec.Describe();
  }
  // The published shapes, with factors of q and with a full one.
  EXPECT_TRUE(ThroughRanks({.heads = 34, .q_rank = 6, .d = 64}));
  EXPECT_FALSE(ThroughRanks({.heads = 22, .q_rank = 0, .d = 64}));
}

TEST(Tpa, MatchesTheReferenceThroughTheRanks) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaRanksSpec& spec : ThroughRanksSpecs(dtype)) {
      TpaRanksCase c(spec);
      OnEveryTarget([&] {
        c.CheckForward();
        c.CheckBackward();
      });
    }
  }
}

TEST(Tpa, EveryRankThroughTheRanks) {
  for (std::int64_t q_rank = 1; q_rank <= 8; ++q_rank) {
    for (std::int64_t k_rank = 1; q_rank * k_rank <= 16; k_rank += q_rank == 1 ? 3 : 1) {
      const TpaRanksSpec spec{.dtype = kTpaTypes[(q_rank + k_rank) % 3],
                              .n = 19 + k_rank,
                              .m = 67 + q_rank,
                              .heads = 32,
                              .q_rank = q_rank,
                              .k_rank = k_rank,
                              .v_rank = 1,
                              .d = 64,
                              .e = 5};
      EXPECT_TRUE(ThroughRanks(spec)) << spec.Describe();
      TpaRanksCase c(spec);
      OnEveryTarget([&] { c.CheckForward(); });
    }
  }
}

TEST(Tpa, InfiniteKeysThroughTheRanks) {
  constexpr std::int64_t kTokens = 70, kKey = 37, kHeads = 34;
  TpaRanksCase c({.n = kTokens, .m = kTokens, .heads = kHeads, .q_rank = 6, .d = 64, .e = 16});
  OnEveryTarget([&] {
    const auto keys = c.bk.Values();
    const auto clean = c.ForwardBits();
    auto values = keys;
    values[kKey * 2 * 64 + 3] = INFINITY;
    c.bk.Fill(values);
    // The scores of the key are +Inf or −Inf, its weights NaN or 0, never NaN where they are 0.
    const auto bits = c.ForwardBits();
    const auto out = c.out.Values();
    int finite = 0;
    for (std::int64_t n = kKey; n < kTokens; ++n) {
      for (std::int64_t h = 0; h < kHeads; ++h) finite += std::isfinite(out[(n * kHeads + h) * 16]);
    }
    const int all = (kTokens - kKey) * kHeads;
    EXPECT_GT(finite, all / 4);
    EXPECT_LT(finite, all * 3 / 4);
    // Queries before it have the bits that they have without it.
    EXPECT_TRUE(std::equal(clean.begin(), clean.begin() + kKey * kHeads * 16, bits.begin()));
    c.bk.Fill(keys);
  });
}

TEST(Tpa, MatchesTheReference) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaRanksSpec& spec : PrefillSpecs(dtype)) {
      TpaRanksCase c(spec);
      OnEveryTarget([&] {
        c.CheckForward();
        c.CheckBackward();
      });
    }
  }
}

TEST(Tpa, EveryRank) {
  for (std::int64_t rank = 1; rank <= 8; ++rank) {
    TpaRanksCase c({.dtype = kTpaTypes[rank % 3],
                    .n = 5 + rank,
                    .m = 11 + rank,
                    .heads = 3,
                    .q_rank = 9 - rank,
                    .k_rank = rank,
                    .v_rank = 1 + rank * 3 % 8,
                    .d = 3 + rank,
                    .e = 12 - rank});
    OnEveryTarget([&] {
      c.CheckForward();
      c.CheckBackward();
    });
  }
}

TEST(Tpa, EverySmallCausalCut) {
  for (std::int64_t m = 1; m <= 18; m += 1) {
    for (std::int64_t n = 1; n <= m; n += 3) {
      TpaRanksCase c({.n = n, .m = m, .heads = 2, .d = 4, .e = 4, .options = kCausal});
      c.CheckForward();
      c.CheckBackward();
    }
  }
}

TEST(Tpa, SameBitsWithAnyNumberOfThreads) {
  for (const auto& specs : {PrefillSpecs(DType::kBFloat16), ThroughRanksSpecs(DType::kBFloat16)}) {
    for (const TpaRanksSpec& spec : specs) {
      SCOPED_TRACE(spec.Describe());
      TpaRanksCase c(spec);
      OnEveryTarget([&] {
        ExpectSameInEverySetting(kThreadCounts, [&] { return c.ForwardBits(); });
        ExpectSameInEverySetting(kThreadCounts, [&] { return c.BackwardBits(); });
      });
    }
  }
}

// Sums that do not fit into the scratch memory are made for one segment of tokens after the other.
TEST(Tpa, BackwardInSegments) {
  TpaRanksCase c(
      {.n = 130, .m = 150, .heads = 2, .q_rank = 40, .k_rank = 9, .v_rank = 9, .d = 800, .e = 8});
  c.CheckBackward();
}

TEST(Tpa, WithoutKeysOrQueries) {
  TpaRanksCase none({.n = 3, .m = 0, .options = kAll});
  none.Backward();
  for (const double value : none.out.Values()) EXPECT_EQ(value, 0);
  for (const double value : none.lse.Values()) EXPECT_EQ(value, -INFINITY);
  for (const double value : none.d_bq.Values()) EXPECT_EQ(value, 0);
  TpaRanksCase no_queries({.n = 0, .m = 3});
  no_queries.Backward();
  for (const double value : no_queries.d_bk.Values()) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace attnops::testing
