// Several threads call flao_fal at once. Runs under tsan, so the parallel-for is made of
// std::threads.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "tests/ops/flao_fal_case.h"
#include "tests/support/parallel_fors.h"

namespace attnops::testing {
namespace {

TEST(FlaoFalConcurrency, ResultsAreThoseOfSerialCalls) {
  const ParallelRestorer restorer;
  SetParallelFor(ThreadsFor(2), [] { return 2; });
  std::vector<FlaoFalSpec> specs;
  for (const DType dtype : kAllTypes) {
    FlaoFalSpec spec{.dtype = dtype,
                     .heads = 3,
                     .n = 150,
                     .m = 140,
                     .d = 40,
                     .e = 24,
                     .q_act = Activation::Softmax(-1),
                     .k_act = Activation::Softmax(2),
                     .v_act = Activation::Sigmoid(),
                     .g_act = Activation::Softmax(2),
                     .lrpe = Lrpe::kCosine,
                     .theta_heads = 3};
    specs.push_back(spec);
    spec.heads = spec.theta_heads = 1;
    spec.n = 2500;
    spec.m = 2100;
    spec.d = spec.e = 8;
    spec.q_act = Activation::Softmax(2);
    spec.lrpe = Lrpe::kRotate;
    specs.push_back(spec);
  }
  std::vector<std::vector<std::vector<std::uint32_t>>> expected;
  for (const FlaoFalSpec& spec : specs) expected.push_back(FlaoFalCase(spec).Bits(Keep::kKv));
  std::vector<int> differences(4, 0);
  std::vector<std::thread> callers;
  for (int& count : differences) {
    callers.emplace_back([&] {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        count += FlaoFalCase(specs[i]).Bits(Keep::kKv) != expected[i];
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int count : differences) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace attnops::testing
