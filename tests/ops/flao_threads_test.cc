// flao: the same bits whatever runs the parallel-for.
#include <gtest/gtest.h>

#include <vector>

#include "tests/ops/flao_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Shapes that are cut in different ways: many heads, one long sequence, a few heads, a few rows.
std::vector<FlaoSpec> Specs(DType dtype) {
  return {{.dtype = dtype, .batch = 8, .heads = 9, .n = 40, .m = 30, .d = 33, .e = 20},
          {.dtype = dtype, .heads = 1, .n = 9000, .m = 7000, .d = 8, .e = 20},
          {.dtype = dtype, .batch = 2, .heads = 2, .n = 3000, .m = 2500, .d = 17, .e = 8},
          {.dtype = dtype, .heads = 1, .n = 3, .m = 2, .d = 128, .e = 128}};
}

TEST(FlaoThreads, SameBitsWithAnyNumberOfThreads) {
  for (const DType dtype : kFlaoTypes) {
    for (const FlaoSpec& spec : Specs(dtype)) {
      FlaoCase c(spec);
      SCOPED_TRACE(c.spec().Describe());
      OnEveryTarget([&] {
        for (const Keep keep : kAllKeeps) {
          ExpectSameInEverySetting(kThreadCounts, [&] { return c.Bits(keep); });
        }
      });
    }
  }
}

// With one thread a task is a head. With more it is a piece; here the KVs are so large that heads,
// and in the second case also the pieces of one head, are at work a few at a time.
TEST(FlaoThreads, SameBitsInWavesOfHeadsAndPieces) {
  const ParallelSetting settings[] = {kThreadCounts[0], kThreadCounts[1]};
  for (const FlaoSpec& spec : {FlaoSpec{.heads = 4, .n = 2100, .m = 2060, .d = 470, .e = 460},
                               FlaoSpec{.heads = 4, .n = 3080, .m = 3100, .d = 860, .e = 850}}) {
    FlaoCase c(spec);
    SCOPED_TRACE(c.spec().Describe());
    ExpectSameInEverySetting(settings, [&] { return c.Bits(Keep::kNone); });
  }
}

TEST(FlaoThreads, SameBitsWithAnyParallelFor) {
  for (const FlaoSpec& spec : Specs(DType::kBFloat16)) {
    FlaoCase c(spec);
    SCOPED_TRACE(c.spec().Describe());
    ExpectSameInEverySetting(kParallelFors, [&] { return c.Bits(Keep::kNone); });
  }
}

TEST(FlaoThreads, UsesTheGivenParallelFor) {
  FlaoCase c({.heads = 1, .n = 4000, .m = 4000, .d = 16, .e = 16});
  EXPECT_GT(ParallelForCalls([&] { c.Forward(); }), 0);
  EXPECT_GT(ParallelForCalls([&] { c.Backward(); }), 0);
}

}  // namespace
}  // namespace attnops::testing
