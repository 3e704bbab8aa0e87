#include "tensors.h"

#include <torch/csrc/stable/ops.h>

#include "pool.h"

namespace attnops::torch_binding {
namespace {

using torch::headeronly::ScalarType;

[[noreturn]] void Fail(const char* op, const std::string& text) {
  throw Error(std::string(op) + ": " + text);
}

std::optional<DType> DTypeOf(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}
std::optional<DType> DTypeOf(const Tensor& tensor) { return DTypeOf(tensor.scalar_type()); }

}  // namespace

Tensor Readable(const char* op, const char* name, const Tensor& tensor) {
  if (!DTypeOf(tensor)) {
    Fail(op, std::string(name) + " must be float32, float16 or bfloat16; it is " +
                 torch::headeronly::toString(tensor.scalar_type()));
  }
  const std::int64_t rank = tensor.dim();
  if (rank < 1 || rank > Dims::kMaxRank) {
    Fail(op, std::string(name) + " has " + std::to_string(rank) + " axes (expected 1 to " +
                 std::to_string(Dims::kMaxRank) + ")");
  }
  if (tensor.size(rank - 1) > 1 && tensor.stride(rank - 1) != 1) {
    return torch::stable::contiguous(tensor);
  }
  return tensor;
}

TensorView ViewOf(const Tensor& tensor) {
  return TensorView(tensor.data_ptr(), *DTypeOf(tensor), tensor.sizes(), tensor.strides());
}

Tensor NewTensor(const Tensor& like, const Dims& shape, ResultType type) {
  const bool same = type == ResultType::kSame;
  const ScalarType scalar = same ? like.scalar_type() : ScalarType::Float;
  const TensorView layout(nullptr, DType::kFloat32, shape);  // for its size and strides
  Dims sizes = layout.shape();
  Dims strides = layout.strides();
  const std::size_t axes = static_cast<std::size_t>(shape.rank());
  const torch::headeronly::IntHeaderOnlyArrayRef size_list(&sizes[0], axes);
  const torch::headeronly::IntHeaderOnlyArrayRef stride_list(&strides[0], axes);
  const std::size_t bytes =
      static_cast<std::size_t>(layout.size()) * (same ? like.element_size() : sizeof(float));
  if (bytes < kPoolMinimum) return torch::stable::new_empty(like, size_list, scalar);
  return torch::stable::from_blob(PoolAllocate(bytes), size_list, stride_list, like.device(),
                                  scalar, PoolFree);
}

Tensor NewTensor(const Tensor& like) { return NewTensor(like, like.sizes()); }

Dims DimsOf(const char* op, const char* name, const std::vector<std::int64_t>& sizes) {
  if (sizes.empty() || sizes.size() > Dims::kMaxRank) {
    Fail(op, std::string(name) + " has " + std::to_string(sizes.size()) + " axes (expected 1 to " +
                 std::to_string(Dims::kMaxRank) + ")");
  }
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > kLimit) {
      Fail(op, std::string(name) + " must have sizes from 0 to " + std::to_string(kLimit) +
                   "; one is " + std::to_string(size));
    }
  }
  return sizes;
}

Activation ActivationOf(const char* op, const char* act_name, const std::string& act,
                        const char* dim_name, std::optional<std::int64_t> dim) {
  if (act == "softmax") {
    if (!dim) Fail(op, std::string(dim_name) + " is required when " + act_name + " is softmax");
    if (*dim < -Dims::kMaxRank || *dim >= Dims::kMaxRank) {
      Fail(op,
           std::string(dim_name) + " must be an axis of the tensor; it is " + std::to_string(*dim));
    }
    return Activation::Softmax(static_cast<int>(*dim));
  }
  if (dim && (act == "none" || act == "relu" || act == "sigmoid" || act == "silu")) {
    Fail(op, std::string(dim_name) + " is for softmax only; " + act_name + " is " + act);
  }
  if (act == "none") return Activation::None();
  if (act == "relu") return Activation::Relu();
  if (act == "sigmoid") return Activation::Sigmoid();
  if (act == "silu") return Activation::Silu();
  Fail(op, std::string(act_name) + " must be one of none, relu, sigmoid, silu, softmax; it is \"" +
               act + "\"");
}

}  // namespace attnops::torch_binding
