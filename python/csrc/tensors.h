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
// Error unless its type is one of ours and it has a supported number of axes.
Tensor Readable(const char* op, const char* name, const Tensor& tensor);

// A view of what Readable or NewTensor returned, valid as long as that is.
TensorView ViewOf(const Tensor& tensor);

// A contiguous tensor of this shape, not initialised; its type is that of `like` or float32.
enum class ResultType { kSame, kFloat32 };
Tensor NewTensor(const Tensor& like, const Dims& shape, ResultType type = ResultType::kSame);

// One with the shape and type of `like`.
Tensor NewTensor(const Tensor& like);

// A list of sizes, such as the argument `shape`. Throws Error unless it has a supported number
// of axes and every size is from 0 to 2^31.
Dims DimsOf(const char* op, const char* name, const std::vector<std::int64_t>& sizes);

// The activation that an `act` and its `dim` name; the names are those of the arguments.
Activation ActivationOf(const char* op, const char* act_name, const std::string& act,
                        const char* dim_name, std::optional<std::int64_t> dim);

}  // namespace attnops::torch_binding

#endif  // ATTNOPS_PYTHON_CSRC_TENSORS_H_
