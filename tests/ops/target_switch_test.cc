// SetTarget from another thread while operators run: a call takes the target once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "attnops/target.h"
#include "tests/ops/flao_case.h"
#include "tests/ops/flao_fal_case.h"
#include "tests/ops/lrpe_rotate_case.h"
#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/ops/tpa_case.h"
#include "tests/ops/tpa_decode_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

using Results = std::vector<std::vector<std::uint32_t>>;

// run() is one call. While the target changes all the time, it gives what one of them gives.
void ExpectResultsOfOneTarget(const std::string& name, const std::function<Results()>& run) {
  constexpr int kCalls = 100;
  const TargetRestorer restorer;
  const std::vector<std::string> targets = SupportedTargets();
  std::vector<Results> expected;
  OnEveryTarget([&] { expected.push_back(run()); });
  std::atomic<bool> stop = false;
  std::thread switcher([&] {
    for (std::size_t i = 0; !stop; ++i) SetTarget(targets[i % targets.size()]);
  });
  int mixed = 0;
  for (int i = 0; i < kCalls; ++i) {
    mixed += std::find(expected.begin(), expected.end(), run()) == expected.end();
  }
  stop = true;
  switcher.join();
  EXPECT_EQ(mixed, 0) << name << ": results of no target, in " << kCalls << " calls";
}

class TargetSwitch : public ::testing::Test {
 protected:
  void SetUp() override {
    SetParallelFor(ThreadsFor(2), [] { return 2; });
  }

 private:
  ParallelRestorer restorer_;
};

TEST_F(TargetSwitch, Encodings) {
  for (const Activation& act : {Activation::Silu(), Activation::Softmax(1)}) {
    RotateCase c({.batch = 2,
                  .length = 150,
                  .heads = 3,
                  .features = 64,
                  .theta_heads = 3,
                  .theta_features = 32,
                  .act = act});
    ExpectResultsOfOneTarget("lrpe_rotate", [&] {
      c.Forward();
      return Results{c.out.Bits()};
    });
    ExpectResultsOfOneTarget("lrpe_rotate backward", [&] {
      c.Backward();
      return Results{c.out.Bits()};
    });
  }
  for (const Activation& act : {Activation::Silu(), Activation::Softmax(2)}) {
    CosineCase c({.batch = 2,
                  .heads = 3,
                  .shape = {10, 14},
                  .l = 10,
                  .features = 64,
                  .theta_heads = 3,
                  .act = act});
    ExpectResultsOfOneTarget("lrpe_table", [&] {
      c.BuildTable();
      return Results{c.table.Bits()};
    });
    ExpectResultsOfOneTarget("md_lrpe_cosine", [&] {
      c.Forward();
      return Results{c.out.Bits()};
    });
    ExpectResultsOfOneTarget("md_lrpe_cosine backward", [&] {
      c.Backward();
      return Results{c.dx.Bits()};
    });
  }
}

TEST_F(TargetSwitch, Flao) {
  for (const DType dtype : kFlaoTypes) {
    FlaoCase c({.dtype = dtype, .heads = 3, .n = 150, .m = 140, .d = 40, .e = 24});
    ExpectResultsOfOneTarget("flao", [&] {
      c.Forward();
      return Results{c.out.Bits()};
    });
    ExpectResultsOfOneTarget("flao backward", [&] {
      c.Backward();
      return Results{c.dq.Bits(), c.dk.Bits(), c.dv.Bits(), c.dg.Bits()};
    });
  }
}

TEST_F(TargetSwitch, FlaoFal) {
  for (const DType dtype : kAllTypes) {
    for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
      FlaoFalCase c({.dtype = dtype,
                     .heads = 3,
                     .n = 150,
                     .m = 140,
                     .d = 40,
                     .e = 24,
                     .q_act = Activation::Softmax(-1),
                     .k_act = Activation::Softmax(2),
                     .v_act = Activation::Silu(),
                     .g_act = Activation::Softmax(2),
                     .lrpe = lrpe,
                     .theta_heads = 3});
      ExpectResultsOfOneTarget("flao_fal", [&] {
        c.Forward();
        return Results{c.out.Bits()};
      });
      ExpectResultsOfOneTarget("flao_fal backward", [&] {
        c.Backward();
        return Results{c.dq.Bits(), c.dk.Bits(), c.dv.Bits(), c.dg.Bits()};
      });
    }
  }
}

TEST_F(TargetSwitch, TpaDecode) {
  for (const DType dtype : kTpaTypes) {
    TpaCase c({.dtype = dtype, .batch = 2, .m = 600, .heads = 8, .rank = 3, .d = 40, .e = 24});
    for (const TpaSplit split : kTpaSplits) {
      ExpectResultsOfOneTarget("tpa_decode", [&] { return Results{c.Bits(split)}; });
    }
  }
}

TEST_F(TargetSwitch, TpaOfAnyRank) {
  for (const DType dtype : kTpaTypes) {
    TpaRanksCase step(
        {.dtype = dtype, .batch = 2, .m = 600, .heads = 8, .q_rank = 3, .d = 40, .e = 24});
    for (const TpaSplit split : kTpaSplits) {
      ExpectResultsOfOneTarget("tpa_decode", [&] {
        step.Decode(split);
        return Results{step.out.Bits()};
      });
    }
    TpaRanksCase c({.dtype = dtype, .n = 100, .m = 150, .heads = 3, .d = 24, .e = 20});
    ExpectResultsOfOneTarget("tpa", [&] {
      c.Forward();
      return Results{c.out.Bits(), c.lse.Bits()};
    });
    const TpaRanksCase& inputs = c;
    ExpectResultsOfOneTarget("tpa backward", [&] {
      TpaBackward(c.Query(), c.Keys(), inputs.out.view(), inputs.lse.view(), inputs.d_out.view(),
                  {c.d_aq.view(),
                   c.d_bq.view(),
                   {},
                   c.d_ak.view(),
                   c.d_av.view(),
                   c.d_bk.view(),
                   c.d_bv.view()});
      return Results{c.d_aq.Bits(), c.d_bq.Bits(), c.d_ak.Bits(), c.d_bv.Bits()};
    });
  }
}

}  // namespace
}  // namespace attnops::testing
