#include "tensors.h"

#include <torch/csrc/stable/ops.h>

#include <array>

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

Tensor NewTensor(const Tensor& like) { return NewTensor(like, like.sizes(), like.scalar_type()); }

Tensor NewTensor(const Tensor& like, const Dims& shape, ScalarType type) {
  std::array<std::int64_t, Dims::kMaxRank> sizes{};
  std::array<std::int64_t, Dims::kMaxRank> strides{};
  std::int64_t elements = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    sizes[static_cast<std::size_t>(i)] = shape[i];
    strides[static_cast<std::size_t>(i)] = elements;
    elements *= shape[i];
  }
  const auto rank = static_cast<std::size_t>(shape.rank());
  const torch::headeronly::IntHeaderOnlyArrayRef all_sizes(sizes.data(), rank);
  const std::size_t bytes = static_cast<std::size_t>(elements * SizeOf(*DTypeOf(type)));
  if (bytes < kPoolMinimum) return torch::stable::new_empty(like, all_sizes, type);
  return torch::stable::from_blob(PoolAllocate(bytes), all_sizes,
                                  torch::headeronly::IntHeaderOnlyArrayRef(strides.data(), rank),
                                  like.device(), type, PoolFree);
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
