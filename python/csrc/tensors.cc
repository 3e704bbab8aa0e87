#include "tensors.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cctype>

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

// The type's name in Python.
std::string NameOf(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Double:
      return "float64";
    case ScalarType::ComplexHalf:
      return "complex32";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    default: {
      // Float8_e5m2 and UInt16 differ from their Python names in capitals only.
      std::string name = torch::headeronly::toString(type);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return std::tolower(c); });
      return name;
    }
  }
}

std::string Listed(const Dims& sizes) {
  std::string text;
  for (int i = 0; i < sizes.rank(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return "(" + text + ")";
}

// The bytes of a tensor, if 63 bits can hold them; an axis of size 0 counts as 1, as in strides.
std::optional<std::int64_t> BytesOf(const Dims& shape, std::int64_t element_size) {
  std::int64_t bytes = element_size;
  for (int i = 0; i < shape.rank(); ++i) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(shape[i], 1), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

// A tensor from torch's allocator. Not new_empty, which passes torch's dispatcher twice: in a call
// for one token that was a tenth of the time.
Tensor Empty(ScalarType type, torch::headeronly::IntHeaderOnlyArrayRef sizes,
             torch::headeronly::IntHeaderOnlyArrayRef strides) {
  AtenTensorHandle tensor = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type)),
      aoti_torch_device_type_cpu(), 0, &tensor));
  return Tensor(tensor);
}

[[noreturn]] void FailTooLarge(const char* op, const char* name, const Dims& shape) {
  Fail(op, std::string(name) + " is too large; its shape is " + Listed(shape));
}

}  // namespace

Tensor Readable(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor.defined()) Fail(op, std::string(name) + " must be a tensor; it is None");
  if (!DTypeOf(tensor)) {
    Fail(op, std::string(name) + " must be float32, float16 or bfloat16; it is " +
                 NameOf(tensor.scalar_type()));
  }
  const std::int64_t rank = tensor.dim();
  if (rank < 1 || rank > Dims::kMaxRank) {
    Fail(op, std::string(name) + " has " + std::to_string(rank) + " axes (expected 1 to " +
                 std::to_string(Dims::kMaxRank) + ")");
  }
  const Dims shape = tensor.sizes();
  if (!BytesOf(shape, tensor.element_size())) FailTooLarge(op, name, shape);
  if (tensor.size(rank - 1) > 1 && tensor.stride(rank - 1) != 1) {
    try {
      return torch::stable::contiguous(tensor);
    } catch (const std::exception&) {  // its text names a line of torch
      Fail(op, std::string(name) + " cannot be copied, which its last axis needs, not being " +
                   "contiguous; its shape is " + Listed(shape));
    }
  }
  return tensor;
}

IntegerView IntegersOf(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  if (type != ScalarType::Int && type != ScalarType::Long) {
    Fail(op, std::string(name) + " must be int32 or int64; it is " +
                 (DTypeOf(type) ? attnops::Name(*DTypeOf(type)) : NameOf(type)));
  }
  if (tensor.dim() > Dims::kMaxRank) {
    Fail(op, std::string(name) + " has " + std::to_string(tensor.dim()) + " axes (expected 0 to " +
                 std::to_string(Dims::kMaxRank) + ")");
  }
  if (type == ScalarType::Int) {
    return IntegerView(static_cast<const std::int32_t*>(tensor.data_ptr()), tensor.sizes(),
                       tensor.strides());
  }
  return IntegerView(static_cast<const std::int64_t*>(tensor.data_ptr()), tensor.sizes(),
                     tensor.strides());
}

TensorView ViewOf(const Tensor& tensor) {
  return TensorView(tensor.data_ptr(), *DTypeOf(tensor), tensor.sizes(), tensor.strides());
}

Tensor NewTensor(const char* op, const char* name, const Tensor& like, const Dims& shape,
                 ResultType type) {
  const bool same = type == ResultType::kSame;
  const ScalarType scalar = same ? like.scalar_type() : ScalarType::Float;
  const std::int64_t element_size = same ? like.element_size() : sizeof(float);
  // torch's from_blob would end the process.
  if (!BytesOf(shape, element_size)) FailTooLarge(op, name, shape);
  const TensorView layout(nullptr, DType::kFloat32, shape);  // for its size and strides
  Dims sizes = layout.shape();
  Dims strides = layout.strides();
  const std::size_t axes = static_cast<std::size_t>(shape.rank());
  const torch::headeronly::IntHeaderOnlyArrayRef size_list(&sizes[0], axes);
  const torch::headeronly::IntHeaderOnlyArrayRef stride_list(&strides[0], axes);
  const std::size_t bytes = static_cast<std::size_t>(layout.size() * element_size);
  if (bytes < kPoolMinimum) return Empty(scalar, size_list, stride_list);
  return torch::stable::from_blob(PoolAllocate(bytes), size_list, stride_list, like.device(),
                                  scalar, PoolFree);
}

Tensor NewTensor(const char* op, const char* name, const Tensor& like) {
  return NewTensor(op, name, like, like.sizes());
}

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

std::int64_t ChoiceOf(const char* op, const char* name, std::int64_t value, std::int64_t last) {
  if (value < 0 || value > last) {
    Fail(op, std::string(name) + " must be a number from 0 to " + std::to_string(last) +
                 "; it is " + std::to_string(value));
  }
  return value;
}

const char* Name(Activation::Kind kind) {
  constexpr const char* kNames[] = {"none", "relu", "sigmoid", "silu", "softmax"};
  return kNames[static_cast<int>(kind)];
}

std::optional<Precision> PrecisionOf(const char* op, std::optional<std::int64_t> value) {
  if (!value) return std::nullopt;
  return ChoiceOf(op, "precision", *value, Precision::kMedium);
}

Activation ActivationOf(const char* op, const char* act_name, std::int64_t act,
                        const char* dim_name, std::optional<std::int64_t> dim) {
  const Activation::Kind kind = ChoiceOf(op, act_name, act, Activation::Kind::kSoftmax);
  if (kind != Activation::Kind::kSoftmax) {
    if (dim) {
      Fail(op, std::string(dim_name) + " is for softmax only; " + act_name + " is " + Name(kind));
    }
    return {kind, 0};
  }
  if (!dim) Fail(op, std::string(dim_name) + " is required when " + act_name + " is softmax");
  if (*dim < -Dims::kMaxRank || *dim >= Dims::kMaxRank) {
    Fail(op,
         std::string(dim_name) + " must be an axis of the tensor; it is " + std::to_string(*dim));
  }
  return Activation::Softmax(static_cast<int>(*dim));
}

}  // namespace attnops::torch_binding
