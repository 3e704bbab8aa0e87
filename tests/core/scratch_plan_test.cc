// The scratch plan: arrays are aligned and disjoint, and those of a worker follow one another.
#include "src/core/scratch_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace attnops {
namespace {

TEST(ScratchPlan, ArraysAreAlignedAndDisjoint) {
  constexpr int kWorkers = 3;
  Arrays shared, empty, first, second;
  ScratchPlan plan;
  plan.AddForWorkers(first, 5);
  plan.Add(shared, 33, 4);
  plan.Add(empty, 0, 2);
  plan.AddForWorkers(second, 100);
  Scratch scratch(plan.Bytes(kWorkers));
  plan.Take(scratch, kWorkers);

  std::vector<std::pair<float*, int>> arrays;
  for (int i = 0; i < 4; ++i) arrays.emplace_back(shared.At(i), 33);
  for (int worker = 0; worker < kWorkers; ++worker) {
    arrays.emplace_back(first.At(worker), 5);
    arrays.emplace_back(second.At(worker), 100);
    EXPECT_LT(first.At(worker), second.At(worker));
    if (worker > 0) {
      EXPECT_GT(first.At(worker), second.At(worker - 1));
    }
  }
  float mark = 0;
  for (const auto& [data, size] : arrays) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % Scratch::kAlignment, 0u);
    for (int i = 0; i < size; ++i) data[i] = mark;
    ++mark;
  }
  mark = 0;
  for (const auto& [data, size] : arrays) {
    for (int i = 0; i < size; ++i) ASSERT_EQ(data[i], mark);
    ++mark;
  }
}

}  // namespace
}  // namespace attnops
