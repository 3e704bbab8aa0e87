// What the test cases of several operators share.
#ifndef ATTNOPS_TESTS_OPS_CASE_H_
#define ATTNOPS_TESTS_OPS_CASE_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "attnops/types.h"
#include "attnops/view.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

inline const std::vector<DType> kAllTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// The types of a tensor with every type that its theta may have.
struct TypePair {
  DType dtype;
  DType theta_dtype;
};
inline constexpr TypePair kTypePairs[] = {{DType::kFloat32, DType::kFloat32},
                                          {DType::kFloat16, DType::kFloat32},
                                          {DType::kFloat16, DType::kFloat16},
                                          {DType::kBFloat16, DType::kFloat32},
                                          {DType::kBFloat16, DType::kBFloat16}};

// None, relu, sigmoid, silu and a softmax along each of `dims`.
std::vector<Activation> ActivationsWithSoftmax(std::initializer_list<int> dims);

// Contiguous ones unless strides are given.
Dims StridesOr(const std::optional<Dims>& strides, const Dims& shape);

// Strides with the outer axes in memory in the given order, outermost first, and gaps after each
// row and each axis.
Dims PermutedStrides(const Dims& shape, const std::vector<int>& order, std::int64_t row_gap,
                     std::int64_t axis_gap);

// Strides of a tensor whose outer axes and start are multiples of 64 elements, but for one.
struct UnalignedLayout {
  std::string name;
  Dims strides;
  int shift;
};
// All aligned, then each outer axis off by one element, then the start. The last axis has a
// multiple of 64 elements.
std::vector<UnalignedLayout> UnalignedLayouts(const Dims& shape);

// "2x3x4"
std::string Describe(const Dims& dims);
// "softmax(-1)"
std::string Describe(const Activation& act);
// " x strides 6x3x1", or nothing.
std::string DescribeStrides(const std::optional<Dims>& strides, const char* name);

// values[i] = value for one element of `values`.
std::vector<double> With(std::vector<double> values, std::size_t i, double value);

// Everything written, nothing beside it, within the bounds.
void CheckResult(const GuardedTensor& result, const Expected& expected);

// Thetas that a reduction may trip over: both ends of the range, multiples of parts of a turn,
// powers of two, few and many bits, next to nothing.
std::vector<double> AwkwardThetas();

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_CASE_H_
