#include "src/c/convert.h"

#include <array>
#include <cstdio>

namespace attnops::c {
namespace {

// No allocation: there may be no memory.
thread_local std::array<char, 1024> last_error{};

template <typename View>
View Contiguous(const std::int64_t* shape, std::int32_t rank) {
  View view = {};
  view.rank = rank;
  std::uint64_t stride = 1;  // may wrap; a view of too many elements is refused later
  // A bad rank is refused by the operator.
  for (std::int32_t i = rank <= ATTNOPS_MAX_RANK ? rank - 1 : -1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.strides[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(shape[i]);
  }
  return view;
}

attnops_tensor TensorOf(const void* data, std::int32_t dtype,
                        std::initializer_list<std::int64_t> shape) {
  return attnops_tensor_of(data, dtype, static_cast<std::int32_t>(shape.size()), shape.begin());
}

}  // namespace

attnops_status Fail(attnops_status status, const char* text) {
  std::snprintf(last_error.data(), last_error.size(), "%s", text);
  return status;
}

std::int32_t Arguments::Rank(const char* name, std::int32_t rank) const {
  if (rank < 0 || rank > ATTNOPS_MAX_RANK) {
    throw Error(std::string(op_) + ": " + name + " has " + std::to_string(rank) +
                " axes; it must have 0 to " + std::to_string(ATTNOPS_MAX_RANK));
  }
  return rank;
}

TensorView Arguments::Output(const char* name, const attnops_tensor* tensor) const {
  const attnops_tensor& t = Given(name, tensor);
  const std::int32_t rank = Rank(name, t.rank);
  return {t.data, Type(name, t.dtype), Dims(t.shape, rank), Dims(t.strides, rank)};
}

std::optional<TensorView> Arguments::OptionalOutput(const char* name,
                                                    const attnops_tensor* tensor) const {
  return tensor != nullptr ? std::optional<TensorView>(Output(name, tensor)) : std::nullopt;
}

std::optional<ConstTensorView> Arguments::OptionalInput(const char* name,
                                                        const attnops_tensor* tensor) const {
  return tensor != nullptr ? std::optional<ConstTensorView>(Input(name, tensor)) : std::nullopt;
}

std::optional<IntegerView> Arguments::OptionalIntegers(const char* name,
                                                       const attnops_integers* integers) const {
  if (integers == nullptr) return std::nullopt;
  const Dims shape(integers->shape, Rank(name, integers->rank));
  const Dims strides(integers->strides, integers->rank);
  switch (integers->bits) {
    case 32:
      return IntegerView(static_cast<const std::int32_t*>(integers->data), shape, strides);
    case 64:
      return IntegerView(static_cast<const std::int64_t*>(integers->data), shape, strides);
  }
  throw Error(std::string(op_) + ": " + name + " has integers of " +
              std::to_string(integers->bits) + " bits; they must have 32 or 64");
}

Dims Arguments::Sizes(const char* name, const attnops_dims& dims) const {
  return {dims.values, Rank(name, dims.rank)};
}

std::optional<Precision> Arguments::OptionalPrecision(std::int32_t precision) const {
  if (precision == ATTNOPS_PRECISION_DEFAULT) return std::nullopt;
  // One more than the C++ numbers, since 0 is the default.
  return Choice("precision", precision - 1, Precision::kMedium);
}

RotaryOptions Arguments::Rotary(const attnops_rotary_options& options) const {
  RotaryOptions rotary;
  rotary.positions = OptionalIntegers("positions", options.positions);
  rotary.offsets = OptionalIntegers("offsets", options.offsets);
  if (options.rotary_dim != 0) rotary.rotary_dim = options.rotary_dim;
  rotary.interleaved = options.interleaved != 0;
  rotary.sections = Sizes("sections", options.sections);
  rotary.sections_interleaved = options.sections_interleaved != 0;
  if (options.scale != nullptr) rotary.scale = *options.scale;
  rotary.layout = Choice("layout", options.layout, Layout::kBhnd);
  return rotary;
}

}  // namespace attnops::c

using attnops::c::Contiguous;
using attnops::c::TensorOf;

const char* attnops_last_error(void) { return attnops::c::last_error.data(); }

attnops_tensor attnops_tensor_of(const void* data, int32_t dtype, int32_t rank,
                                 const int64_t* shape) {
  attnops_tensor tensor = Contiguous<attnops_tensor>(shape, rank);
  tensor.data = const_cast<void*>(data);  // inputs are not written to
  tensor.dtype = dtype;
  return tensor;
}

attnops_tensor attnops_tensor1(const void* data, int32_t dtype, int64_t n0) {
  return TensorOf(data, dtype, {n0});
}

attnops_tensor attnops_tensor2(const void* data, int32_t dtype, int64_t n0, int64_t n1) {
  return TensorOf(data, dtype, {n0, n1});
}

attnops_tensor attnops_tensor3(const void* data, int32_t dtype, int64_t n0, int64_t n1,
                               int64_t n2) {
  return TensorOf(data, dtype, {n0, n1, n2});
}

attnops_tensor attnops_tensor4(const void* data, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
                               int64_t n3) {
  return TensorOf(data, dtype, {n0, n1, n2, n3});
}

attnops_integers attnops_integers_of(const void* data, int32_t bits, int32_t rank,
                                     const int64_t* shape) {
  attnops_integers integers = Contiguous<attnops_integers>(shape, rank);
  integers.data = data;
  integers.bits = bits;
  return integers;
}
