// The same bits whatever runs the parallel-for.
#include <gtest/gtest.h>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Shapes that are cut in different ways: many heads, one long sequence, many features, a few rows.
std::vector<RotateSpec> Specs(DType dtype, const Activation& act) {
  const auto spec = [&](std::int64_t batch, std::int64_t length, std::int64_t heads,
                        std::int64_t features) {
    return RotateSpec{.dtype = dtype,
                      .batch = batch,
                      .length = length,
                      .heads = heads,
                      .features = features,
                      .theta_heads = heads,
                      .theta_features = features / 2,
                      .offset = 1234567,
                      .act = act};
  };
  return {spec(1, 5000, 1, 64), spec(1, 5000, 1, 6), spec(3, 257, 7, 48),
          spec(2, 33, 5, 130),  spec(5, 3, 1, 256),  spec(1, 1, 1, 2)};
}

struct Results {
  std::vector<std::uint32_t> forward;
  std::vector<std::uint32_t> backward;

  bool operator==(const Results& other) const {
    return forward == other.forward && backward == other.backward;
  }
};

Results RunPasses(RotateCase& c) {
  Results results;
  c.Forward();
  EXPECT_TRUE(c.out.AllWritten());
  results.forward = c.out.Bits();
  c.Backward();
  EXPECT_TRUE(c.out.AllWritten());
  results.backward = c.out.Bits();
  return results;
}

template <std::size_t kCount>
void ExpectSameBits(const ParallelSetting (&settings)[kCount]) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const RotateSpec& spec : Specs(dtype, act)) {
        SCOPED_TRACE(spec.Describe());
        RotateCase c(spec);
        ExpectSameInEverySetting(settings, [&] { return RunPasses(c); });
      }
    }
  }
}

TEST(LrpeRotateThreads, SameBitsWithAnyNumberOfThreads) { ExpectSameBits(kThreadCounts); }

TEST(LrpeRotateThreads, SameBitsWithAnyParallelFor) { ExpectSameBits(kParallelFors); }

// Targets may differ from each other in the last bit, but not with the threads.
TEST(LrpeRotateThreads, SameBitsWithAnyNumberOfThreadsOnEveryTarget) {
  for (const Activation& act : kDistinctActivations) {
    for (const RotateSpec& spec : Specs(DType::kBFloat16, act)) {
      SCOPED_TRACE(spec.Describe());
      RotateCase c(spec);
      OnEveryTarget([&] { ExpectSameInEverySetting(kThreadCounts, [&] { return RunPasses(c); }); });
    }
  }
}

TEST(LrpeRotateThreads, SameBitsWhenRepeatedInAnyOrder) {
  std::vector<RotateCase> cases;
  for (const Activation& act : kDistinctActivations) {
    for (const RotateSpec& spec : Specs(DType::kFloat32, act)) cases.emplace_back(spec);
  }
  ExpectSameWhenRepeated(cases, RunPasses);
}

// The largest case is right, not only the same.
TEST(LrpeRotateThreads, LongSequenceAgainstTheReference) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      RotateCase c(Specs(dtype, act).front());
      OnEveryTarget([&] {
        c.CheckForward();
        c.CheckBackward();
      });
    }
  }
}

// An operator of some size uses the parallel-for that it is given.
TEST(LrpeRotateThreads, UsesTheGivenParallelFor) {
  for (const Activation& act : kDistinctActivations) {
    RotateCase c({.batch = 4,
                  .length = 1024,
                  .heads = 4,
                  .features = 64,
                  .theta_heads = 4,
                  .theta_features = 32,
                  .act = act});
    EXPECT_GT(ParallelForCalls([&] { c.Forward(); }), 0) << c.spec().Describe();
    EXPECT_GT(ParallelForCalls([&] { c.Backward(); }), 0) << c.spec().Describe();
  }
}

}  // namespace
}  // namespace attnops::testing
