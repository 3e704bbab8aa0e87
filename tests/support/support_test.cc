// The test support finds what it is there to find.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "tests/support/compare.h"
#include "tests/support/guarded_tensor.h"
#include "tests/support/rounding.h"

namespace attnops::testing {
namespace {

TEST(Rounding, KnownValues) {
  EXPECT_EQ(BFloat16Bits(BitsOf(1.0f)), 0x3F80);
  EXPECT_EQ(BFloat16Bits(0x3F808000), 0x3F80);  // a tie, to even
  EXPECT_EQ(BFloat16Bits(0x3F818000), 0x3F82);
  EXPECT_EQ(BFloat16Bits(0x3F808001), 0x3F81);
  EXPECT_EQ(BFloat16Bits(0x7F7FFFFF), 0x7F80);  // overflow
  EXPECT_GT(BFloat16Bits(0x7F800001) & 0x7FFF, 0x7F80);
  EXPECT_EQ(Float16Bits(BitsOf(1.0f)), 0x3C00);
  EXPECT_EQ(Float16Bits(BitsOf(-2.0f)), 0xC000);
  EXPECT_EQ(Float16Bits(BitsOf(65504.0f)), 0x7BFF);
  EXPECT_EQ(Float16Bits(BitsOf(65519.996f)), 0x7BFF);
  EXPECT_EQ(Float16Bits(BitsOf(65520.0f)), 0x7C00);
  EXPECT_EQ(Float16Bits(BitsOf(0x1p-24f)), 0x0001);
  EXPECT_EQ(Float16Bits(BitsOf(0x1p-25f)), 0x0000);  // a tie, to even
  EXPECT_EQ(Float16Bits(BitsOf(0x1.8p-24f)), 0x0002);
  EXPECT_EQ(Float16Bits(BitsOf(0x1.000002p-25f)), 0x0001);
  EXPECT_EQ(Float16Bits(BitsOf(0x1.ffcp-15f)), 0x0400);  // a tie, up to the first normal number
  EXPECT_GT(Float16Bits(0x7F800001) & 0x7FFF, 0x7C00);
}

// Rounding is to the nearest: by comparison with the two neighbours, in double.
TEST(Rounding, EveryFloat16IsNearest) {
  for (std::uint32_t i = 0; i < 0x7BFF; ++i) {
    const double low = FloatOf(Float16{static_cast<std::uint16_t>(i)});
    const double high = FloatOf(Float16{static_cast<std::uint16_t>(i + 1)});
    ASSERT_LT(low, high);
    const auto at = [&](double part) {
      return Float16Bits(BitsOf(static_cast<float>(low + part * (high - low))));
    };
    ASSERT_EQ(at(0), i);
    ASSERT_EQ(at(0.4990234375), i);
    ASSERT_EQ(at(0.5), i + (i & 1));
    ASSERT_EQ(at(0.5009765625), i + 1);
  }
}

TEST(GuardedTensor, FillAndValues) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Dims& strides : {Dims{3, 1}, Dims{10, 1}, Dims{-4, 1}, Dims{1, 2}}) {
      GuardedTensor tensor(dtype, {2, 3}, strides, 1);
      EXPECT_TRUE(tensor.Untouched());
      EXPECT_FALSE(tensor.AllWritten());
      const std::vector<double> values = {1, 2, 3, 4, 5, -6};
      tensor.Fill(values);
      EXPECT_EQ(tensor.Values(), values);
      EXPECT_TRUE(tensor.AllWritten());
      EXPECT_FALSE(tensor.Untouched());
    }
  }
}

TEST(GuardedTensor, FindsWritesOutside) {
  for (const std::int64_t outside : {-1, -60, 3, 4, 8, 70}) {
    GuardedTensor tensor(DType::kFloat32, {2, 3}, {5, 1});
    static_cast<float*>(tensor.view().data())[outside] = 0;
    EXPECT_FALSE(tensor.GuardsIntact()) << outside;
  }
}

TEST(GuardedTensor, FindsAnElementLeftOut) {
  GuardedTensor tensor(DType::kBFloat16, {2, 2});
  auto* data = static_cast<BFloat16*>(tensor.view().data());
  data[0] = data[1] = data[3] = BFloat16{0};
  EXPECT_FALSE(tensor.AllWritten());
  EXPECT_FALSE(tensor.Untouched());
  data[2] = BFloat16{0x7FC0};  // a NaN that was computed
  EXPECT_TRUE(tensor.AllWritten());
}

TEST(GuardedTensor, StartsAligned) {
  for (int shift = 0; shift < 3; ++shift) {
    GuardedTensor tensor(DType::kFloat16, {3, 5}, {5, 1}, shift);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.view().data()) % 64, 2u * shift);
  }
}

TEST(AllNear, ComparesSpecialValues) {
  EXPECT_TRUE(AllNear({1, NAN, INFINITY}, {1.5, NAN, INFINITY}, {0.5, 0, 0}));
  EXPECT_FALSE(AllNear({1}, {1.5}, {0.4}));
  EXPECT_FALSE(AllNear({1}, {NAN}, {9}));
  EXPECT_FALSE(AllNear({NAN}, {1}, {9}));
  EXPECT_FALSE(AllNear({INFINITY}, {-INFINITY}, {INFINITY}));
  EXPECT_FALSE(AllNear({1}, {1, 2}, {9, 9}));
}

}  // namespace
}  // namespace attnops::testing
