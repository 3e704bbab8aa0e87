// flao: the same bits whatever runs the parallel-for.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "attnops/parallel.h"
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
  const ParallelRestorer restorer;
  for (const DType dtype : kFlaoTypes) {
    for (const FlaoSpec& spec : Specs(dtype)) {
      FlaoCase c(spec);
      OnEveryTarget([&] {
        for (const Keep keep : kAllKeeps) {
          SCOPED_TRACE(spec.Describe());
          SetNumThreads(1);
          const auto expected = c.Bits(keep);
          for (const int threads : {2, 5}) {
            SetNumThreads(threads);
            EXPECT_TRUE(c.Bits(keep) == expected) << threads << " threads";
          }
        }
      });
    }
  }
}

TEST(FlaoThreads, SameBitsWithAnyParallelFor) {
  const ParallelRestorer restorer;
  for (const FlaoSpec& spec : Specs(DType::kBFloat16)) {
    SCOPED_TRACE(spec.Describe());
    FlaoCase c(spec);
    const auto expected = c.Bits(Keep::kNone);
    SetParallelFor(TinyRangesFor, [] { return 64; });
    EXPECT_TRUE(c.Bits(Keep::kNone) == expected);
    SetParallelFor(ThreadsFor(3), [] { return 3; });
    EXPECT_TRUE(c.Bits(Keep::kNone) == expected);
    SetParallelFor({});
  }
}

TEST(FlaoThreads, UsesTheGivenParallelFor) {
  const ParallelRestorer restorer;
  std::atomic<int> calls = 0;
  SetParallelFor(
      [&](std::int64_t n, const ParallelForBody& body) {
        ++calls;
        SerialFor(n, body);
      },
      [] { return 4; });
  FlaoCase c({.heads = 1, .n = 4000, .m = 4000, .d = 16, .e = 16});
  c.Forward();
  EXPECT_GT(calls, 0);
  calls = 0;
  c.Backward();
  EXPECT_GT(calls, 0);
}

}  // namespace
}  // namespace attnops::testing
