// From torch's tensors and arguments to attnops' and back.
#ifndef ATTNOPS_PYTHON_CSRC_TENSORS_H_
#define ATTNOPS_PYTHON_CSRC_TENSORS_H_

#include <attnops/attnops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attnops::torch_binding {

using torch::stable::Tensor;

// The tensor itself, or a contiguous copy if its last axis is not contiguous. Throws
// Error unless it is there (None is not), its type is one of ours, it has a supported number of
// axes and a number of bytes that 63 bits can hold.
Tensor Readable(const char* op, const char* name, const Tensor& tensor);

// A view of a tensor that Readable or NewTensor returned, valid as long as the tensor.
TensorView ViewOf(const Tensor& tensor);

// A contiguous tensor of this shape, not initialised; its type is that of `like` or float32.
// Throws Error if 63 bits cannot hold its number of bytes.
enum class ResultType { kSame, kFloat32 };
Tensor NewTensor(const char* op, const char* name, const Tensor& like, const Dims& shape,
                 ResultType type = ResultType::kSame);

// A tensor with the shape and type of `like`.
Tensor NewTensor(const char* op, const char* name, const Tensor& like);

// A list of sizes, such as the argument `shape`. Throws Error unless it has a supported number
// of axes and every size is from 0 to 2^31.
Dims DimsOf(const char* op, const char* name, const std::vector<std::int64_t>& sizes);

// Options with a few named choices are numbers in the schemas: a string argument would be copied
// at every call, and torch 2.13's header loses the copy. The numbers are those of the enumerations;
// python/attnops/_choices.py has their names. Throws Error unless value is from 0 to last.
std::int64_t ChoiceOf(const char* op, const char* name, std::int64_t value, std::int64_t last);

template <typename Enum>
Enum ChoiceOf(const char* op, const char* name, std::int64_t value, Enum last) {
  return static_cast<Enum>(ChoiceOf(op, name, value, static_cast<std::int64_t>(last)));
}

// A view of a tensor of integers, valid as long as the tensor. Throws Error unless its type is
// int32 or int64 and it has a supported number of axes.
IntegerView IntegersOf(const char* op, const char* name, const Tensor& tensor);

// The precision with the number `value`, or none.
std::optional<Precision> PrecisionOf(const char* op, std::optional<std::int64_t> value);

// The activation with the number `act` and its `dim`; the names are those of the arguments.
Activation ActivationOf(const char* op, const char* act_name, std::int64_t act,
                        const char* dim_name, std::optional<std::int64_t> dim);

// The name of an activation, for messages.
const char* Name(Activation::Kind kind);

}  // namespace attnops::torch_binding

#endif  // ATTNOPS_PYTHON_CSRC_TENSORS_H_
