// flao_fal: the same bits whatever runs the parallel-for.
#include <gtest/gtest.h>

#include <vector>

#include "tests/ops/flao_fal_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Shapes that are cut in different ways (many heads, one long sequence, a few heads, a few rows)
// with activations that are sums over rows, over sequences, and none.
std::vector<FlaoFalSpec> Specs(DType dtype) {
  const Activation features = Activation::Softmax(-1);
  const Activation sequence = Activation::Softmax(2);
  const Activation silu = Activation::Silu();
  return {{.dtype = dtype,
           .batch = 8,
           .heads = 9,
           .n = 40,
           .m = 30,
           .d = 34,
           .e = 20,
           .q_act = features,
           .k_act = sequence,
           .g_act = silu,
           .lrpe = Lrpe::kCosine,
           .theta_heads = 9},
          {.dtype = dtype,
           .heads = 1,
           .n = 4200,
           .m = 3300,
           .d = 8,
           .e = 20,
           .q_act = sequence,
           .k_act = sequence,
           .v_act = sequence,
           .g_act = sequence,
           .lrpe = Lrpe::kRotate,
           .offset = 1'000'000},
          {.dtype = dtype,
           .batch = 2,
           .heads = 2,
           .d = 17,
           .e = 8,
           .q_act = silu,
           .k_act = silu,
           .v_act = sequence,
           .g_act = features,
           .lrpe = Lrpe::kCosine,
           .shape = {40, 42},
           .l = 5},
          {.dtype = dtype,
           .heads = 1,
           .n = 3,
           .m = 2,
           .d = 128,
           .e = 128,
           .q_act = sequence,
           .v_act = features,
           .g_act = sequence}};
}

TEST(FlaoFalThreads, SameBitsWithAnyNumberOfThreads) {
  for (const DType dtype : kAllTypes) {
    for (const FlaoFalSpec& spec : Specs(dtype)) {
      FlaoFalCase c(spec);
      SCOPED_TRACE(c.spec().Describe());
      OnEveryTarget([&] {
        for (const Keep keep : kAllKeeps) {
          ExpectSameInEverySetting(kThreadCounts, [&] { return c.Bits(keep); });
        }
      });
    }
  }
}

TEST(FlaoFalThreads, SameBitsWithAnyParallelFor) {
  for (const FlaoFalSpec& spec : Specs(DType::kBFloat16)) {
    FlaoFalCase c(spec);
    SCOPED_TRACE(c.spec().Describe());
    ExpectSameInEverySetting(kParallelFors, [&] { return c.Bits(Keep::kNone); });
  }
}

TEST(FlaoFalThreads, UsesTheGivenParallelFor) {
  FlaoFalCase c({.heads = 1,
                 .n = 4000,
                 .m = 4000,
                 .d = 16,
                 .e = 16,
                 .k_act = Activation::Softmax(2),
                 .lrpe = Lrpe::kRotate});
  EXPECT_GT(ParallelForCalls([&] { c.Forward(); }), 0);
  EXPECT_GT(ParallelForCalls([&] { c.Backward(); }), 0);
}

}  // namespace
}  // namespace attnops::testing
