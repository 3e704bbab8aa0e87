// Thread counts and the parallel-for callback.
#include "attnops/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "attnops/error.h"
#include "attnops/lrpe_rotate.h"
#include "tests/support/guarded_tensor.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/random.h"

namespace attnops::testing {
namespace {

// An operator large enough to be worth several threads.
std::vector<std::uint32_t> RunOperator() {
  GuardedTensor x(DType::kFloat32, {4, 512, 4, 64});
  GuardedTensor theta(DType::kFloat32, {4, 32});
  GuardedTensor out(DType::kFloat32, {4, 512, 4, 64});
  x.Fill(RandomNormal(x.size(), 1));
  theta.Fill(RandomNormal(theta.size(), 2));
  LrpeRotate(x.view(), theta.view(), out.view(), {.act = Activation::Silu()});
  EXPECT_TRUE(out.AllWritten());
  return out.Bits();
}

TEST(Parallel, NumThreads) {
  const ParallelRestorer restorer;
  EXPECT_GE(GetNumThreads(), 1);
  for (const int n : {1, 2, 5, 64}) {
    SetNumThreads(n);
    EXPECT_EQ(GetNumThreads(), n);
  }
  SetNumThreads(0);
  EXPECT_GE(GetNumThreads(), 1);
}

TEST(Parallel, NegativeNumThreadsIsAnError) {
  const ParallelRestorer restorer;
  SetNumThreads(3);
  for (const int n : {-1, -17}) {
    try {
      SetNumThreads(n);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(n)), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(GetNumThreads(), 3);
  }
}

TEST(Parallel, AnyCallbackGivesTheSameResult) {
  const ParallelRestorer restorer;
  const std::vector<std::uint32_t> expected = RunOperator();
  SetParallelFor(SerialFor);
  EXPECT_EQ(RunOperator(), expected);
  SetParallelFor(SerialFor, [] { return 1; });
  EXPECT_EQ(RunOperator(), expected);
  SetParallelFor(TinyRangesFor, [] { return 7; });
  EXPECT_EQ(RunOperator(), expected);
  SetParallelFor(ThreadsFor(3), [] { return 3; });
  EXPECT_EQ(RunOperator(), expected);
}

TEST(Parallel, CallbackIsUsedUntilTheDefaultIsRestored) {
  const ParallelRestorer restorer;
  std::atomic<int> calls = 0;
  const ParallelFor counting = [&](std::int64_t n, const ParallelForBody& body) {
    ++calls;
    SerialFor(n, body);
  };
  SetParallelFor(counting, [] { return 4; });
  RunOperator();
  EXPECT_GT(calls, 0);
  SetParallelFor({});
  calls = 0;
  RunOperator();
  EXPECT_EQ(calls, 0);
}

// Callbacks with state of their own are kept alive, and released when replaced.
TEST(Parallel, CallbackIsOwned) {
  const ParallelRestorer restorer;
  auto state = std::make_shared<std::atomic<int>>(0);
  const std::weak_ptr<std::atomic<int>> watch = state;
  SetParallelFor(
      [state](std::int64_t n, const ParallelForBody& body) {
        ++*state;
        SerialFor(n, body);
      },
      [] { return 2; });
  state.reset();
  RunOperator();
  ASSERT_FALSE(watch.expired());
  EXPECT_GT(*watch.lock(), 0);
  SetParallelFor({});
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace attnops::testing
