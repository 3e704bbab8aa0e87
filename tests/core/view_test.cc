// Views, sizes, types and the exception.
#include "attnops/view.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "attnops/error.h"
#include "attnops/types.h"

namespace attnops {
namespace {

TEST(Dims, HoldsWhatItIsGiven) {
  const Dims empty;
  EXPECT_EQ(empty.rank(), 0);
  const Dims list = {2, 3, 5};
  ASSERT_EQ(list.rank(), 3);
  EXPECT_EQ(list[0], 2);
  EXPECT_EQ(list[2], 5);
  const Dims from_vector = std::vector<std::int64_t>{7, 11};
  ASSERT_EQ(from_vector.rank(), 2);
  EXPECT_EQ(from_vector[1], 11);
  const Dims from_array = std::array<std::int64_t, 1>{-4};
  ASSERT_EQ(from_array.rank(), 1);
  EXPECT_EQ(from_array[0], -4);
}

TEST(Dims, RankIsLimited) {
  EXPECT_EQ(Dims(std::vector<std::int64_t>(Dims::kMaxRank, 1)).rank(), Dims::kMaxRank);
  try {
    const Dims dims(std::vector<std::int64_t>(Dims::kMaxRank + 1, 1));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "view: it has 9 axes; at most 8 are supported");
  }
}

TEST(View, ContiguousStridesAreRowMajor) {
  float data[24] = {};
  const TensorView view(data, {2, 3, 4});
  EXPECT_EQ(view.data(), data);
  EXPECT_EQ(view.dtype(), DType::kFloat32);
  EXPECT_EQ(view.rank(), 3);
  EXPECT_EQ(view.shape(1), 3);
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(1), 4);
  EXPECT_EQ(view.stride(2), 1);
  EXPECT_EQ(view.size(), 24);
}

TEST(View, SizeOfEmptyAndScalar) {
  float data = 0;
  EXPECT_EQ(TensorView(&data, {2, 0, 4}).size(), 0);
  EXPECT_EQ(TensorView(&data, Dims()).size(), 1);
}

TEST(View, KeepsGivenStrides) {
  float data[24] = {};
  const ConstTensorView view(data, {2, 3}, {0, -4});
  EXPECT_EQ(view.stride(0), 0);
  EXPECT_EQ(view.stride(1), -4);
}

TEST(View, StridesMustMatchTheShape) {
  float data[24] = {};
  try {
    const TensorView view(data, {2, 3}, {3, 1, 1});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "view: it has 2 sizes and 3 strides");
  }
}

TEST(View, TypeComesFromThePointer) {
  float f32 = 0;
  Float16 f16 = {};
  const BFloat16 bf16 = {};
  EXPECT_EQ(TensorView(&f32, {1}).dtype(), DType::kFloat32);
  EXPECT_EQ(TensorView(&f16, {1}).dtype(), DType::kFloat16);
  EXPECT_EQ(ConstTensorView(&bf16, {1}).dtype(), DType::kBFloat16);
}

TEST(View, MutableConvertsToConstOnly) {
  static_assert(std::is_convertible_v<TensorView, ConstTensorView>);
  static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);
  float data[6] = {};
  const TensorView view(data, {2, 3}, {1, 2});
  const ConstTensorView same = view;
  EXPECT_EQ(same.data(), data);
  EXPECT_EQ(same.shape(1), 3);
  EXPECT_EQ(same.stride(1), 2);
}

TEST(Types, NamesAndSizes) {
  EXPECT_STREQ(Name(DType::kFloat32), "float32");
  EXPECT_STREQ(Name(DType::kFloat16), "float16");
  EXPECT_STREQ(Name(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(SizeOf(DType::kFloat32), 4);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2);
  static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);
}

TEST(Types, Activations) {
  EXPECT_EQ(Activation::None().kind, Activation::Kind::kNone);
  EXPECT_EQ(Activation().kind, Activation::Kind::kNone);
  EXPECT_EQ(Activation::Softmax(-1).kind, Activation::Kind::kSoftmax);
  EXPECT_EQ(Activation::Softmax(-1).dim, -1);
}

TEST(Error, IsAnInvalidArgument) {
  static_assert(std::is_base_of_v<std::invalid_argument, Error>);
  try {
    throw Error("op: what");
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "op: what");
  }
}

}  // namespace
}  // namespace attnops
