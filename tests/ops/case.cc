#include "tests/ops/case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace attnops::testing {

std::vector<Activation> ActivationsWithSoftmax(std::initializer_list<int> dims) {
  std::vector<Activation> activations = {Activation::None(), Activation::Relu(),
                                         Activation::Sigmoid(), Activation::Silu()};
  for (const int dim : dims) activations.push_back(Activation::Softmax(dim));
  return activations;
}

Dims StridesOr(const std::optional<Dims>& strides, const Dims& shape) {
  return strides ? *strides : TensorView(nullptr, DType::kFloat32, shape).strides();
}

Dims PermutedStrides(const Dims& shape, const std::vector<int>& order, std::int64_t row_gap,
                     std::int64_t axis_gap) {
  const int last = shape.rank() - 1;
  Dims strides = shape;
  strides[last] = 1;
  std::int64_t stride = shape[last] + row_gap;
  for (int i = last - 1; i >= 0; --i) {
    strides[order[i]] = stride;
    stride = stride * shape[order[i]] + axis_gap;
  }
  return strides;
}

std::vector<UnalignedLayout> UnalignedLayouts(const Dims& shape) {
  constexpr std::int64_t kElements = 64;
  const int last = shape.rank() - 1;
  const auto layout = [&](const std::string& name, int unaligned, int shift) {
    Dims strides = shape;
    strides[last] = 1;
    std::int64_t stride = shape[last];
    for (int i = last - 1; i >= 0; --i) {
      strides[i] = stride + (i == unaligned ? 1 : 0);
      stride = (strides[i] * shape[i] + kElements - 1) / kElements * kElements;
    }
    return UnalignedLayout{name, strides, shift};
  };
  std::vector<UnalignedLayout> layouts = {layout("aligned", -1, 0)};
  for (int axis = 0; axis < last; ++axis) {
    layouts.push_back(layout("axis " + std::to_string(axis) + " unaligned", axis, 0));
  }
  layouts.push_back(layout("start unaligned", -1, 1));
  return layouts;
}

std::string Describe(const Dims& dims) {
  std::string text;
  for (int i = 0; i < dims.rank(); ++i) text += (i == 0 ? "" : "x") + std::to_string(dims[i]);
  return text;
}

std::string Describe(const Activation& act) {
  static constexpr const char* kNames[] = {"none", "relu", "sigmoid", "silu", "softmax"};
  std::string text = kNames[static_cast<int>(act.kind)];
  if (act.kind == Activation::Kind::kSoftmax) text += "(" + std::to_string(act.dim) + ")";
  return text;
}

std::string DescribeStrides(const std::optional<Dims>& strides, const char* name) {
  return strides ? std::string(" ") + name + " strides " + Describe(*strides) : "";
}

std::vector<double> With(std::vector<double> values, std::size_t i, double value) {
  values.at(i) = value;
  return values;
}

void CheckResult(const GuardedTensor& result, const Expected& expected) {
  EXPECT_TRUE(result.AllWritten());
  EXPECT_TRUE(AllNear(result.Values(), expected.value, expected.bound));
}

std::vector<double> AwkwardThetas() {
  std::vector<double> thetas = {16,  -16,     0,       -0.0,  1,      -1,
                                0.5, 0x1p-20, 0x1p-40, 1e-30, -1e-38, 1e-45};
  for (const double turn_part : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    const double angle = M_PI * turn_part / 2;
    for (const float theta :
         {std::nextafter(static_cast<float>(angle), 0.0f), static_cast<float>(angle),
          std::nextafter(static_cast<float>(angle), 100.0f)}) {
      if (theta > 16) continue;
      thetas.push_back(theta);
      thetas.push_back(-theta);
    }
  }
  return thetas;
}

}  // namespace attnops::testing
