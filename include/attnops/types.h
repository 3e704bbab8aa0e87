// Element types and activations.
#ifndef ATTNOPS_TYPES_H_
#define ATTNOPS_TYPES_H_

#include <cstdint>

#pragma GCC visibility push(default)
namespace attnops {

// Storage of the 16-bit types; arithmetic is always float32 or better.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

enum class DType { kFloat32, kFloat16, kBFloat16 };

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kFloat32;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType kValue = DType::kFloat16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::kBFloat16;
};

constexpr int SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

constexpr const char* Name(DType dtype) {
  return dtype == DType::kFloat32    ? "float32"
         : dtype == DType::kFloat16  ? "float16"
         : dtype == DType::kBFloat16 ? "bfloat16"
                                     : "no known type";
}

// The function that is applied to a tensor before the operator. Softmax acts along `dim`, a
// dimension of the tensor counted as in Python (negative from the end); the
// other kinds act element by element and ignore it.
struct Activation {
  enum class Kind { kNone, kRelu, kSigmoid, kSilu, kSoftmax };

  Kind kind = Kind::kNone;
  int dim = 0;

  static constexpr Activation None() { return {}; }
  static constexpr Activation Relu() { return {Kind::kRelu, 0}; }
  static constexpr Activation Sigmoid() { return {Kind::kSigmoid, 0}; }
  static constexpr Activation Silu() { return {Kind::kSilu, 0}; }
  static constexpr Activation Softmax(int dim) { return {Kind::kSoftmax, dim}; }
};

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_TYPES_H_
