// A tensor as the schedules and kernels see it: rows of contiguous features.
#ifndef ATTNOPS_SRC_CORE_TENSOR_H_
#define ATTNOPS_SRC_CORE_TENSOR_H_

#include <cstdint>

namespace attnops {

// One row for each batch, head and token. Strides in elements; no data if a call has no such
// tensor.
template <typename Pointer>
struct StridedTensor {
  Pointer data = nullptr;
  std::int64_t batch = 0, head = 0, token = 0;
};
using Input = StridedTensor<const void*>;
using Output = StridedTensor<void*>;

template <typename T>
const T* RowAt(const Input& tensor, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return static_cast<const T*>(tensor.data) + batch * tensor.batch + head * tensor.head +
         token * tensor.token;
}
template <typename T>
T* RowAt(const Output& tensor, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return static_cast<T*>(tensor.data) + batch * tensor.batch + head * tensor.head +
         token * tensor.token;
}

// Rows of one batch and head, `stride` elements apart.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;

  T* operator[](std::int64_t row) const { return data + row * stride; }
  Rows From(std::int64_t row) const { return {(*this)[row], stride}; }
};

// Tokens or heads [begin, end).
struct Range {
  std::int64_t begin, end;

  std::int64_t size() const { return end - begin; }
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_TENSOR_H_
