// A thread pool that steals work: the thread that waits in the parallel-for of one call runs other
// calls meanwhile, nested on the same stack. Both give what they give alone.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "tests/ops/flao_case.h"
#include "tests/ops/flao_fal_case.h"
#include "tests/ops/lrpe_rotate_case.h"
#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/ops/tpa_case.h"
#include "tests/ops/tpa_decode_case.h"
#include "tests/support/parallel_fors.h"

namespace attnops::testing {
namespace {

using Results = std::vector<std::vector<std::uint32_t>>;

// One call or a few of an operator, with tensors of its own.
struct Call {
  std::string name;
  std::function<Results()> run;
};

template <class Case, class Run>
Call MakeCall(const std::string& name, const std::shared_ptr<Case>& c, const Run& run) {
  return {name, [c, run] { return run(*c); }};
}

// Every operator and pass, each large enough for several workers. Lengths that differ with
// `variant` make scratch of other sizes and contents.
std::vector<Call> AllCalls(DType dtype, int variant) {
  const std::int64_t length = 150 + 23 * variant;
  std::vector<Call> calls;
  for (const Activation& act :
       {Activation::None(), Activation::Softmax(-1), Activation::Softmax(1)}) {
    auto c = std::make_shared<RotateCase>(RotateSpec{.dtype = dtype,
                                                     .batch = 3,
                                                     .length = length,
                                                     .heads = 3,
                                                     .features = 48,
                                                     .theta_heads = 3,
                                                     .theta_features = 24,
                                                     .offset = 1'000'000 + variant,
                                                     .act = act});
    const std::string name = "lrpe_rotate " + Describe(act);
    calls.push_back(MakeCall(name, c, [](RotateCase& c) {
      c.Forward();
      return Results{c.out.Bits()};
    }));
    calls.push_back(MakeCall(name + " backward", c, [](RotateCase& c) {
      c.Backward();
      return Results{c.out.Bits()};
    }));
  }
  for (const Activation& act : {Activation::None(), Activation::Softmax(2)}) {
    auto c = std::make_shared<CosineCase>(CosineSpec{.dtype = dtype,
                                                     .batch = 3,
                                                     .heads = 3,
                                                     .shape = {10, length / 10},
                                                     .l = 10 + variant,
                                                     .features = 48,
                                                     .theta_heads = 3,
                                                     .act = act});
    const std::string name = "md_lrpe_cosine " + Describe(act);
    calls.push_back(MakeCall("lrpe_table for " + name, c, [](CosineCase& c) {
      c.BuildTable();
      return Results{c.table.Bits()};
    }));
    calls.push_back(MakeCall(name, c, [](CosineCase& c) {
      c.Forward();
      return Results{c.out.Bits()};
    }));
    calls.push_back(MakeCall(name + " backward", c, [](CosineCase& c) {
      c.Backward();
      return Results{c.dx.Bits()};
    }));
    calls.push_back(MakeCall(name + " with a table", c, [](CosineCase& c) {
      c.Forward(Angles::kTable);
      c.Backward(Angles::kTable);
      return Results{c.out.Bits(), c.dx.Bits()};
    }));
  }
  // Several heads, and a long one that is cut into pieces.
  for (const std::int64_t heads : {8, 1}) {
    const std::int64_t n = heads > 1 ? length : 20 * length;
    auto flao = std::make_shared<FlaoCase>(
        FlaoSpec{.dtype = dtype, .heads = heads, .n = n, .m = n - 7, .d = 40, .e = 24});
    auto fal = std::make_shared<FlaoFalCase>(FlaoFalSpec{.dtype = dtype,
                                                         .heads = heads,
                                                         .n = n,
                                                         .m = n - 7,
                                                         .d = 40,
                                                         .e = 24,
                                                         .q_act = Activation::Softmax(-1),
                                                         .k_act = Activation::Softmax(2),
                                                         .v_act = Activation::Sigmoid(),
                                                         .g_act = Activation::Softmax(2),
                                                         .lrpe = Lrpe::kRotate,
                                                         .theta_heads = heads});
    for (const Keep keep : {Keep::kNone, Keep::kKvQkv}) {
      const std::string name =
          std::to_string(heads) + " heads" + (keep == Keep::kNone ? "" : ", kept");
      calls.push_back(MakeCall("flao " + name, flao, [keep](FlaoCase& c) { return c.Bits(keep); }));
      calls.push_back(
          MakeCall("flao_fal " + name, fal, [keep](FlaoFalCase& c) { return c.Bits(keep); }));
    }
  }
  auto tpa = std::make_shared<TpaCase>(TpaSpec{
      .dtype = dtype, .batch = 2, .m = 8 * length, .heads = 8, .rank = 3, .d = 40, .e = 24});
  for (const TpaSplit split : kTpaSplits) {
    calls.push_back(MakeCall("tpa_decode split " + std::to_string(static_cast<int>(split)), tpa,
                             [split](TpaCase& c) { return Results{c.Bits(split)}; }));
  }
  auto ranks = std::make_shared<TpaRanksCase>(TpaRanksSpec{
      .dtype = dtype, .batch = 2, .m = 8 * length, .heads = 8, .q_rank = 3, .d = 40, .e = 24});
  for (const TpaSplit split : kTpaSplits) {
    calls.push_back(
        MakeCall("tpa_decode with ranks, split " + std::to_string(static_cast<int>(split)), ranks,
                 [split](TpaRanksCase& c) {
                   c.Decode(split);
                   return Results{c.out.Bits()};
                 }));
  }
  auto prefill = std::make_shared<TpaRanksCase>(
      TpaRanksSpec{.dtype = dtype, .n = length, .m = length + 7, .heads = 3, .d = 24, .e = 20});
  calls.push_back(MakeCall("tpa", prefill, [](TpaRanksCase& c) {
    c.Backward();
    return Results{c.out.Bits(), c.d_aq.Bits(), c.d_bk.Bits(), c.d_bv.Bits()};
  }));
  return calls;
}

// How deep the calls on this thread are nested: 0 in the test itself.
thread_local int depth = 0;

// Calls for each depth, and the parallel-for that runs them in turns. Those of a depth run on one
// thread at a time.
class Nested {
 public:
  static constexpr int kDepths = 3;

  explicit Nested(DType dtype) {
    const ParallelRestorer restorer;
    SetParallelFor(SerialFor, [] { return 1; });
    for (int i = 0; i < kDepths; ++i) {
      calls_.push_back(AllCalls(dtype, i));
      expected_.emplace_back();
      for (const Call& call : calls_[i]) expected_[i].push_back(call.run());
    }
  }

  // Runs every call, with others nested in it.
  void Run() {
    for (std::size_t i = 0; i < calls_[0].size(); ++i) {
      outer_ = calls_[0][i].name;
      nested_ = 0;
      EXPECT_TRUE(calls_[0][i].run() == expected_[0][i]) << outer_ << " with others nested in it";
      EXPECT_GT(nested_, 0) << outer_;
    }
  }

  // The work of another call, if it is not too deep. A nested call steals at some of its chances
  // alone, or the time grows with their number to the power of the depth.
  void Steal() {
    if (depth + 1 == kDepths) return;
    if (depth > 0 && ++chances_ % 5 != 0) return;
    ++depth;
    const std::size_t i = turn_[depth]++ % calls_[depth].size();
    EXPECT_TRUE(calls_[depth][i].run() == expected_[depth][i])
        << calls_[depth][i].name << " nested in " << outer_ << " at depth " << depth;
    ++nested_;
    --depth;
  }

 private:
  std::vector<std::vector<Call>> calls_;        // [depth]
  std::vector<std::vector<Results>> expected_;  // [depth]
  std::size_t turn_[kDepths] = {};
  std::size_t chances_ = 0;  // of nested calls
  std::string outer_;
  int nested_ = 0;
};

class NestedParallel : public ::testing::TestWithParam<DType> {
 protected:
  NestedParallel() : nested_(GetParam()) {}

  Nested nested_;

 private:
  ParallelRestorer restorer_;
};

// Before, between and after the bodies.
TEST_P(NestedParallel, OtherCallsBetweenTheBodies) {
  SetParallelFor(
      [this](std::int64_t n, const ParallelForBody& body) {
        nested_.Steal();
        for (std::int64_t i = 0; i < n; ++i) {
          body(i, i + 1);
          nested_.Steal();
        }
      },
      [] { return 2; });
  nested_.Run();
}

// While another thread runs the bodies.
TEST_P(NestedParallel, OtherCallsWhileTheBodiesRun) {
  SetParallelFor(
      [this](std::int64_t n, const ParallelForBody& body) {
        std::thread worker(body, 0, n);
        nested_.Steal();
        worker.join();
      },
      [] { return 2; });
  nested_.Run();
}

INSTANTIATE_TEST_SUITE_P(Types, NestedParallel, ::testing::ValuesIn(kAllTypes),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace attnops::testing
