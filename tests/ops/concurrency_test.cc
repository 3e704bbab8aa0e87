// Several threads call the operators at once. Runs under tsan, so the parallel-for is made of
// std::threads: libgomp's barriers are invisible to tsan and give false races.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "attnops/target.h"
#include "tests/ops/lrpe_rotate_case.h"
#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/parallel_fors.h"

namespace attnops::testing {
namespace {

std::vector<RotateSpec> RotateSpecs() {
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

std::vector<CosineSpec> CosineSpecs() {
  std::vector<CosineSpec> specs;
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      specs.push_back({.dtype = dtype,
                       .batch = 2,
                       .heads = 3,
                       .shape = {10, 15},
                       .l = 10,
                       .features = 48,
                       .theta_heads = 3,
                       .act = act});
    }
  }
  return specs;
}

// Calls of every operator.
struct Cases {
  Cases() {
    for (const RotateSpec& spec : RotateSpecs()) rotate.emplace_back(spec);
    for (const CosineSpec& spec : CosineSpecs()) cosine.emplace_back(spec);
  }

  std::vector<RotateCase> rotate;
  std::vector<CosineCase> cosine;
};

// The bits of every result.
std::vector<std::vector<std::uint32_t>> RunAll(Cases& cases) {
  std::vector<std::vector<std::uint32_t>> results;
  for (RotateCase& c : cases.rotate) {
    c.Forward();
    results.push_back(c.out.Bits());
    c.Backward();
    results.push_back(c.out.Bits());
  }
  for (CosineCase& c : cases.cosine) {
    c.BuildTable();
    results.push_back(c.table.Bits());
    for (const Angles angles : kBothAngles) {
      c.Forward(angles);
      results.push_back(c.out.Bits());
      c.Backward(angles);
      results.push_back(c.dx.Bits());
    }
  }
  return results;
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
  std::vector<Cases> cases(kCallers);
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
  Cases serial_cases;
  const auto expected = RunAll(serial_cases);
  std::vector<Cases> cases(kCallers);
  std::vector<int> differences(kCallers, 0);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        const auto results = RunAll(cases[i]);
        for (std::size_t k = 0; k < results.size(); ++k)
          differences[i] += results[k] != expected[k];
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int i = 0; i < kCallers; ++i) EXPECT_EQ(differences[i], 0) << "caller " << i;
}

// Callers share inputs; each has an output of its own. An error in one leaves the others alone.
TEST_F(Concurrency, SharedInputsAndErrors) {
  RotateCase shared(RotateSpecs().back());
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

// Callers share a table.
TEST_F(Concurrency, SharedTable) {
  CosineCase shared(CosineSpecs().back());
  shared.BuildTable();
  shared.Forward(Angles::kTable);
  const std::vector<std::uint32_t> expected = shared.out.Bits();
  std::vector<std::vector<std::uint32_t>> results(3);
  int errors = 0;
  std::vector<std::thread> callers;
  for (auto& result : results) {
    callers.emplace_back([&] {
      GuardedTensor out(shared.spec().dtype, shared.spec().OutShape());
      MdLrpeCosineWithTable(shared.x.view(), shared.table.view(), out.view(),
                            shared.spec().TableOptions());
      result = out.Bits();
    });
  }
  callers.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      try {
        MdLrpeCosineWithTable(shared.x.view(), shared.x.view(), shared.out.view(),
                              shared.spec().TableOptions());
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
