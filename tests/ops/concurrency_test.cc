// Several threads call the operators at once. Runs under tsan, so the parallel-for is made of
// std::threads: libgomp's barriers are invisible to tsan and give false races.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "attnops/target.h"
#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/parallel_fors.h"

namespace attnops::testing {
namespace {

std::vector<RotateSpec> Specs() {
  std::vector<RotateSpec> specs;
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      specs.push_back({.dtype = dtype,
                       .batch = 2,
                       .length = 150,
                       .heads = 3,
                       .features = 48,
                       .theta_heads = 3,
                       .theta_features = 24,
                       .offset = 1'000'000,
                       .act = act});
    }
  }
  return specs;
}

struct Results {
  std::vector<std::uint32_t> forward;
  std::vector<std::uint32_t> backward;
};

std::vector<Results> RunAll(std::vector<RotateCase>& cases) {
  std::vector<Results> results;
  for (RotateCase& c : cases) {
    Results& result = results.emplace_back();
    c.Forward();
    result.forward = c.out.Bits();
    c.Backward();
    result.backward = c.out.Bits();
  }
  return results;
}

std::vector<RotateCase> MakeCases() {
  std::vector<RotateCase> cases;
  for (const RotateSpec& spec : Specs()) cases.emplace_back(spec);
  return cases;
}

class Concurrency : public ::testing::Test {
 protected:
  void SetUp() override {
    SetParallelFor(ThreadsFor(2), [] { return 2; });
  }

 private:
  ParallelRestorer restorer_;
};

// Runs first: the first calls of a process set things up, and may come from several threads.
TEST_F(Concurrency, FirstCallsAtOnce) {
  constexpr int kCallers = 4;
  std::vector<std::vector<RotateCase>> cases;
  for (int i = 0; i < kCallers; ++i) cases.push_back(MakeCases());
  std::vector<std::string> targets(kCallers);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      targets[i] = GetTarget();
      RunAll(cases[i]);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& target : targets) EXPECT_EQ(target, GetTarget());
}

TEST_F(Concurrency, ResultsAreThoseOfSerialCalls) {
  constexpr int kCallers = 4;
  constexpr int kRounds = 3;
  std::vector<RotateCase> serial_cases = MakeCases();
  const std::vector<Results> expected = RunAll(serial_cases);
  std::vector<std::vector<RotateCase>> cases;
  for (int i = 0; i < kCallers; ++i) cases.push_back(MakeCases());
  std::vector<int> differences(kCallers, 0);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<Results> results = RunAll(cases[i]);
        for (std::size_t k = 0; k < results.size(); ++k) {
          differences[i] += results[k].forward != expected[k].forward;
          differences[i] += results[k].backward != expected[k].backward;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int i = 0; i < kCallers; ++i) EXPECT_EQ(differences[i], 0) << "caller " << i;
}

// Callers share inputs; each has an output of its own. An error in one leaves the others alone.
TEST_F(Concurrency, SharedInputsAndErrors) {
  RotateCase shared(Specs().back());
  shared.Forward();
  const std::vector<std::uint32_t> expected = shared.out.Bits();
  std::vector<std::vector<std::uint32_t>> results(3);
  int errors = 0;
  std::vector<std::thread> callers;
  for (auto& result : results) {
    callers.emplace_back([&] {
      GuardedTensor out(shared.spec().dtype, shared.spec().Shape());
      LrpeRotate(shared.x.view(), shared.theta.view(), out.view(), shared.spec().Options());
      result = out.Bits();
    });
  }
  callers.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      try {
        LrpeRotate(shared.x.view(), shared.x.view(), shared.out.view(), shared.spec().Options());
      } catch (const Error&) {
        ++errors;
      }
    }
  });
  for (std::thread& caller : callers) caller.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
  EXPECT_EQ(errors, 20);
}

}  // namespace
}  // namespace attnops::testing
