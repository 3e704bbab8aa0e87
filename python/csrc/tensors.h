// From torch's tensors and arguments to attnops' and back.
#ifndef ATTNOPS_PYTHON_CSRC_TENSORS_H_
#define ATTNOPS_PYTHON_CSRC_TENSORS_H_

#include <attnops/attnops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace attnops::torch_binding {

using torch::stable::Tensor;

// The tensor itself, or a contiguous copy if its last axis is not contiguous. Throws
// Error unless its type is one of ours and it has a supported number of axes.
Tensor Readable(const char* op, const char* name, const Tensor& tensor);

// A view of what Readable or NewTensor returned, valid as long as that is.
TensorView ViewOf(const Tensor& tensor);

// A contiguous tensor with the shape and type of `like`, not initialised.
Tensor NewTensor(const Tensor& like);

// The same with another shape and type.
Tensor NewTensor(const Tensor& like, const Dims& shape, torch::headeronly::ScalarType type);

// The activation that an `act` and its `dim` name; the names are those of the arguments.
Activation ActivationOf(const char* op, const char* act_name, const std::string& act,
                        const char* dim_name, std::optional<std::int64_t> dim);

}  // namespace attnops::torch_binding

#endif  // ATTNOPS_PYTHON_CSRC_TENSORS_H_
