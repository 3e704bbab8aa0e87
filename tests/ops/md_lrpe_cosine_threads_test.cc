// The same bits whatever runs the parallel-for.
#include <gtest/gtest.h>

#include <type_traits>

#include "attnops/parallel.h"
#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Shapes that are cut in different ways: many heads, one long axis, a long prefix, a grid of many
// blocks, many features, a few rows.
std::vector<CosineSpec> Specs(DType dtype, const Activation& act) {
  const auto spec = [&](std::int64_t batch, std::int64_t heads, const Dims& shape, std::int64_t l,
                        std::int64_t features) {
    return CosineSpec{.dtype = dtype,
                      .batch = batch,
                      .heads = heads,
                      .shape = shape,
                      .l = l,
                      .features = features,
                      .theta_heads = heads,
                      .offset = shape.rank() == 1 ? 1234567 : 0,
                      .act = act};
  };
  return {spec(1, 1, {1500}, 10, 33), spec(1, 1, {30, 40}, 0, 33),  spec(1, 1, {3, 700}, 1, 3),
          spec(3, 7, {4, 17}, 1, 48), spec(2, 5, {3, 2, 5}, 2, 65), spec(1, 1, {2}, 1200, 32),
          spec(5, 1, {3}, 0, 256),    spec(1, 1, {1, 1}, 0, 1)};
}

// The bits of the table, and of both passes on the fly and with it.
using Results = std::vector<std::vector<std::uint32_t>>;

Results RunPasses(CosineCase& c) {
  Results results;
  const auto add = [&](const GuardedTensor& result) {
    EXPECT_TRUE(result.AllWritten());
    results.push_back(result.Bits());
  };
  c.BuildTable();
  add(c.table);
  for (const Angles angles : kBothAngles) {
    c.Forward(angles);
    add(c.out);
    c.Backward(angles);
    add(c.dx);
  }
  return results;
}

template <std::size_t kCount>
void ExpectSameBits(const ParallelSetting (&settings)[kCount], const std::vector<DType>& types) {
  for (const DType dtype : types) {
    for (const Activation& act : kCosinePaths) {
      for (const CosineSpec& spec : Specs(dtype, act)) {
        SCOPED_TRACE(spec.Describe());
        CosineCase c(spec);
        ExpectSameInEverySetting(settings, [&] { return RunPasses(c); });
      }
    }
  }
}

TEST(MdLrpeCosineThreads, SameBitsWithAnyNumberOfThreads) {
  ExpectSameBits(kThreadCounts, kAllTypes);
}

TEST(MdLrpeCosineThreads, SameBitsWithAnyParallelFor) {
  ExpectSameBits(kParallelFors, {DType::kBFloat16});
}

// Targets may differ from each other in the last bit, but not with the threads.
TEST(MdLrpeCosineThreads, SameBitsWithAnyNumberOfThreadsOnEveryTarget) {
  for (const Activation& act : kCosinePaths) {
    for (const CosineSpec& spec : Specs(DType::kBFloat16, act)) {
      SCOPED_TRACE(spec.Describe());
      CosineCase c(spec);
      OnEveryTarget([&] { ExpectSameInEverySetting(kThreadCounts, [&] { return RunPasses(c); }); });
    }
  }
}

TEST(MdLrpeCosineThreads, SameBitsWhenRepeatedInAnyOrder) {
  std::vector<CosineCase> cases;
  for (const Activation& act : kCosinePaths) {
    for (const CosineSpec& spec : Specs(DType::kFloat32, act)) cases.emplace_back(spec);
  }
  ExpectSameWhenRepeated(cases, RunPasses);
}

// The largest cases are right, not only the same.
TEST(MdLrpeCosineThreads, LongSequencesAgainstTheReference) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosinePaths) {
      for (const CosineSpec& spec : Specs(dtype, act)) {
        if (spec.Length() < 1000) continue;
        CosineCase c(spec);
        OnEveryTarget([&] { c.CheckAll(); });
      }
    }
  }
}

// Many batches together, too large for the caches, are gone through in an order of their own; each
// gets what it gets alone.
TEST(MdLrpeCosineThreads, ManyBatchesAsEachAlone) {
  const ParallelRestorer restorer;
  const std::int64_t batch = 5, heads = 3;
  CosineCase c({.batch = batch,
                .heads = heads,
                .shape = {100, 44},
                .l = 11,
                .features = 128,
                .theta_heads = heads});
  const auto of_batch = [&](auto view, std::int64_t b) {
    auto* data = static_cast<std::conditional_t<
        std::is_const_v<std::remove_pointer_t<decltype(view.data())>>, const float*, float*>>(
        view.data());
    Dims shape = view.shape();
    shape[0] = 1;
    return decltype(view)(data + b * view.stride(0), DType::kFloat32, shape);
  };
  c.BuildTable();
  for (const Activation& act : kCosinePaths) {
    SCOPED_TRACE(Describe(act));
    const MdLrpeCosineOptions options = {c.spec().shape, c.spec().l, 0, act};
    c.dx.Poison();
    for (std::int64_t b = 0; b < batch; ++b) {
      MdLrpeCosineBackward(of_batch(c.x.view(), b), c.theta.view(), of_batch(c.d_out.view(), b),
                           of_batch(c.dx.view(), b), options);
    }
    const std::vector<std::uint8_t> expected = c.dx.memory();
    const auto expect_same = [&](int threads, const auto& backward, const GuardedTensor& angles) {
      SetNumThreads(threads);
      c.dx.Poison();
      backward(c.x.view(), angles.view(), c.d_out.view(), c.dx.view(), options);
      EXPECT_TRUE(c.dx.memory() == expected) << threads << " threads";
    };
    expect_same(1, MdLrpeCosineBackward, c.theta);
    expect_same(5, MdLrpeCosineBackward, c.theta);
    expect_same(2, MdLrpeCosineBackwardWithTable, c.table);
  }
}

// An operator of some size uses the parallel-for that it is given.
TEST(MdLrpeCosineThreads, UsesTheGivenParallelFor) {
  for (const Activation& act : kCosineActivations) {
    CosineCase c(
        {.batch = 2, .heads = 4, .shape = {16, 32}, .features = 64, .theta_heads = 4, .act = act});
    c.BuildTable();
    for (const Angles angles : kBothAngles) {
      EXPECT_GT(ParallelForCalls([&] { c.Forward(angles); }), 0) << c.spec().Describe();
      EXPECT_GT(ParallelForCalls([&] { c.Backward(angles); }), 0) << c.spec().Describe();
    }
  }
}

}  // namespace
}  // namespace attnops::testing
