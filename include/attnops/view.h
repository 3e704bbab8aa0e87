// Non-owning strided views of tensors.
#ifndef ATTNOPS_VIEW_H_
#define ATTNOPS_VIEW_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "attnops/error.h"
#include "attnops/types.h"

#pragma GCC visibility push(default)
namespace attnops {

// A short list of sizes or strides, in elements.
class Dims {
 public:
  static constexpr int kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(values.begin(), static_cast<int>(values.size())) {}
  // Anything with data() and size(): std::vector, std::array, std::span.
  template <typename List, typename = decltype(std::declval<const List&>().data())>
  Dims(const List& values)  // NOLINT(google-explicit-constructor)
      : Dims(values.data(), static_cast<int>(values.size())) {}
  Dims(const std::int64_t* values, int rank) : rank_(rank) {
    if (rank > kMaxRank) {
      throw Error("view: it has " + std::to_string(rank) + " axes; at most " +
                  std::to_string(kMaxRank) + " are supported");
    }
    for (int i = 0; i < rank; ++i) values_[i] = values[i];
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return values_[i]; }
  std::int64_t& operator[](int i) { return values_[i]; }

 private:
  int rank_ = 0;
  std::array<std::int64_t, kMaxRank> values_{};
};

// Pointer, element type, shape and strides. `Pointer` is void* or const void*.
template <typename Pointer>
class BasicView {
  static constexpr bool kConst = std::is_const_v<std::remove_pointer_t<Pointer>>;

 public:
  // Contiguous, in row-major order.
  BasicView(Pointer data, DType dtype, const Dims& shape)
      : data_(data), dtype_(dtype), shape_(shape), strides_(shape) {
    // Unsigned, which may wrap: a view of more elements than there can be is refused later.
    std::uint64_t stride = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      strides_[i] = static_cast<std::int64_t>(stride);
      stride *= static_cast<std::uint64_t>(shape[i]);
    }
  }

  // Strides in elements, one for each axis.
  BasicView(Pointer data, DType dtype, const Dims& shape, const Dims& strides)
      : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {
    if (shape.rank() != strides.rank()) {
      throw Error("view: it has " + std::to_string(shape.rank()) + " sizes and " +
                  std::to_string(strides.rank()) + " strides");
    }
  }

  template <typename T, DType kType = DTypeOf<std::remove_const_t<T>>::kValue>
  BasicView(T* data, const Dims& shape) : BasicView(data, kType, shape) {}

  template <typename T, DType kType = DTypeOf<std::remove_const_t<T>>::kValue>
  BasicView(T* data, const Dims& shape, const Dims& strides)
      : BasicView(data, kType, shape, strides) {}

  // A mutable view is also a const one.
  template <typename Other, typename = std::enable_if_t<kConst && !std::is_same_v<Other, Pointer>>>
  BasicView(const BasicView<Other>& other)  // NOLINT(google-explicit-constructor)
      : BasicView(other.data(), other.dtype(), other.shape(), other.strides()) {}

  Pointer data() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return shape_.rank(); }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  std::int64_t shape(int i) const { return shape_[i]; }
  std::int64_t stride(int i) const { return strides_[i]; }

  // The number of elements, modulo 2^64; operators refuse a view of more than memory can hold.
  std::int64_t size() const {
    std::uint64_t n = 1;
    for (int i = 0; i < rank(); ++i) n *= static_cast<std::uint64_t>(shape_[i]);
    return static_cast<std::int64_t>(n);
  }

 private:
  Pointer data_;
  DType dtype_;
  Dims shape_;
  Dims strides_;
};

using TensorView = BasicView<void*>;
using ConstTensorView = BasicView<const void*>;

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_VIEW_H_
