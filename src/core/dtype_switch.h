// From an element type that is known at run time to one that the compiler knows.
#ifndef ATTNOPS_SRC_CORE_DTYPE_SWITCH_H_
#define ATTNOPS_SRC_CORE_DTYPE_SWITCH_H_

#include "attnops/types.h"
#include "src/core/assert.h"

namespace attnops {

template <typename T>
struct TypeTag {
  using Type = T;
};

// f(TypeTag<T>()) with the type of a checked view.
template <class F>
decltype(auto) WithType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(TypeTag<float>());
    case DType::kFloat16:
      return f(TypeTag<Float16>());
    case DType::kBFloat16:
      break;
  }
  ATTNOPS_DASSERT(dtype == DType::kBFloat16);
  return f(TypeTag<BFloat16>());
}

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_DTYPE_SWITCH_H_
