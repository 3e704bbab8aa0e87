// Whether views share memory, against all pairs of their bytes.
#include "src/core/overlap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>

namespace attnops {
namespace {

std::set<std::int64_t> BytesOf(const ConstTensorView& view, std::int64_t base) {
  std::set<std::int64_t> bytes;
  const auto visit = [&](const auto& self, int axis, std::int64_t at) -> void {
    if (axis == view.rank()) {
      for (int i = 0; i < SizeOf(view.dtype()); ++i) bytes.insert(at + i);
      return;
    }
    for (std::int64_t i = 0; i < view.shape(axis); ++i) {
      self(self, axis + 1, at + i * view.stride(axis) * SizeOf(view.dtype()));
    }
  };
  visit(visit, 0, reinterpret_cast<std::intptr_t>(view.data()) - base);
  return bytes;
}

bool HaveCommon(const std::set<std::int64_t>& a, const std::set<std::int64_t>& b) {
  for (const std::int64_t byte : a) {
    if (b.count(byte) != 0) return true;
  }
  return false;
}

TEST(Overlap, AgreesWithAllPairsOfBytes) {
  alignas(8) static char memory[8192];
  std::mt19937 random(2024);
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int shared = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto make = [&] {
      const DType dtype = number(0, 1) == 0 ? DType::kFloat32 : DType::kBFloat16;
      const int rank = number(0, 4);
      Dims shape(std::vector<std::int64_t>(rank, 1)), strides = shape;
      for (int axis = 0; axis < rank; ++axis) {
        shape[axis] = number(0, 9) == 0 ? 0 : number(1, 4);
        strides[axis] = number(-30, 30);
      }
      return ConstTensorView(memory + 4096 + 2 * number(0, 200), dtype, shape, strides);
    };
    const ConstTensorView a = make(), b = make();
    const auto base = reinterpret_cast<std::intptr_t>(memory);
    const bool expected = HaveCommon(BytesOf(a, base), BytesOf(b, base));
    shared += expected;
    EXPECT_EQ(ShareMemory(a, b), expected) << i;
    EXPECT_EQ(ShareMemory(b, a), expected) << i;
  }
  EXPECT_GT(shared, 100);
  EXPECT_LT(shared, 2900);
}

// q, k and v as slices of one tensor of large rows.
TEST(Overlap, SlicesOfOneTensorShareNothing) {
  static float memory[4];
  const Dims shape = {8, 512, 12, 64}, strides = {512 * 3 * 768, 3 * 768, 64, 1};
  const ConstTensorView q(memory, shape, strides);
  const ConstTensorView k(memory + 768, shape, strides);
  const ConstTensorView near(memory + 700, shape, strides);
  EXPECT_FALSE(ShareMemory(q, k));
  EXPECT_TRUE(ShareMemory(q, near));
  EXPECT_TRUE(ShareMemory(k, near));
  EXPECT_TRUE(ShareMemory(q, q));
}

}  // namespace
}  // namespace attnops
