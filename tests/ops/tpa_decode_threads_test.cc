// tpa_decode: the same bits from every split, whatever runs the parallel-for, and several callers
// at once.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "tests/ops/tpa_decode_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Shapes that are cut in different ways: many batches, one long sequence, pieces that need several
// waves, few tokens.
std::vector<TpaSpec> Specs(DType dtype) {
  return {{.dtype = dtype, .batch = 9, .m = 300, .heads = 13, .rank = 3, .d = 33, .e = 20},
          {.dtype = dtype, .m = 7000, .heads = 31, .rank = 17, .d = 8, .e = 20},
          {.dtype = dtype, .batch = 3, .m = 2100, .heads = 64, .rank = 2, .d = 8, .e = 600},
          {.dtype = dtype, .batch = 2, .m = 40, .heads = 32, .rank = 16, .d = 128, .e = 128}};
}

// The bits of every split, which are the same.
std::vector<std::uint32_t> BitsOfAllSplits(TpaCase& c) {
  const auto expected = c.Bits(TpaSplit::kB);
  for (const TpaSplit split : {TpaSplit::kAuto, TpaSplit::kBH, TpaSplit::kBN}) {
    EXPECT_TRUE(c.Bits(split) == expected) << "split " << static_cast<int>(split);
  }
  return expected;
}

TEST(TpaDecodeThreads, SameBitsFromAllSplitsWithAnyNumberOfThreads) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaSpec& spec : Specs(dtype)) {
      SCOPED_TRACE(spec.Describe());
      TpaCase c(spec);
      OnEveryTarget(
          [&] { ExpectSameInEverySetting(kThreadCounts, [&] { return BitsOfAllSplits(c); }); });
    }
  }
}

TEST(TpaDecodeThreads, SameBitsWithAnyParallelFor) {
  for (const TpaSpec& spec : Specs(DType::kBFloat16)) {
    SCOPED_TRACE(spec.Describe());
    TpaCase c(spec);
    ExpectSameInEverySetting(kParallelFors, [&] { return BitsOfAllSplits(c); });
  }
}

TEST(TpaDecodeThreads, UsesTheGivenParallelFor) {
  TpaCase c({.m = 4000, .heads = 8, .d = 64, .e = 64});
  for (const TpaSplit split : {TpaSplit::kAuto, TpaSplit::kBH, TpaSplit::kBN}) {
    EXPECT_GT(ParallelForCalls([&] { c.Run(split); }), 0);
  }
}

TEST(TpaDecodeThreads, SeveralCallersAtOnce) {
  const ParallelRestorer restorer;
  SetParallelFor(ThreadsFor(2), [] { return 2; });
  std::vector<TpaSpec> specs;
  for (const DType dtype : kTpaTypes) {
    specs.push_back({.dtype = dtype, .batch = 2, .m = 150, .heads = 8, .d = 40, .e = 24});
    specs.push_back({.dtype = dtype, .m = 2500, .heads = 4, .rank = 9, .d = 32, .e = 16});
  }
  std::vector<std::vector<std::uint32_t>> expected;
  for (const TpaSpec& spec : specs) expected.push_back(TpaCase(spec).Bits(TpaSplit::kAuto));
  std::vector<int> differences(4, 0);
  std::vector<std::thread> callers;
  for (int& count : differences) {
    callers.emplace_back([&] {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        count += TpaCase(specs[i]).Bits(kTpaSplits[i % 4]) != expected[i];
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int count : differences) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace attnops::testing
