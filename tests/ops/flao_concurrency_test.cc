// Several threads call flao at once. Runs under tsan, so the parallel-for is made of std::threads.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "tests/ops/flao_case.h"
#include "tests/support/parallel_fors.h"

namespace attnops::testing {
namespace {

TEST(FlaoConcurrency, ResultsAreThoseOfSerialCalls) {
  const ParallelRestorer restorer;
  SetParallelFor(ThreadsFor(2), [] { return 2; });
  std::vector<FlaoSpec> specs;
  for (const DType dtype : kFlaoTypes) {
    specs.push_back({.dtype = dtype, .heads = 3, .n = 150, .m = 140, .d = 40, .e = 24});
    specs.push_back({.dtype = dtype, .heads = 1, .n = 2500, .m = 2100, .d = 8, .e = 8});
  }
  std::vector<std::vector<std::vector<std::uint32_t>>> expected;
  for (const FlaoSpec& spec : specs) expected.push_back(FlaoCase(spec).Bits(Keep::kKvQkv));
  std::vector<int> differences(4, 0);
  std::vector<std::thread> callers;
  for (int& count : differences) {
    callers.emplace_back([&] {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        count += FlaoCase(specs[i]).Bits(Keep::kKvQkv) != expected[i];
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int count : differences) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace attnops::testing
