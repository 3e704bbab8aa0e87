// Declares the kernels of a folder, which cmake/kernels.cmake lists and generated files define.
#ifndef ATTNOPS_SRC_CORE_KERNEL_LIST_H_
#define ATTNOPS_SRC_CORE_KERNEL_LIST_H_

#include "attnops/types.h"
#include "src/core/dtype_switch.h"  // IWYU pragma: export
#include "src/core/target.h"        // IWYU pragma: export

// In a folder's namespace: KernelsOf<T>(target) for every element type, and KernelsFor(dtype,
// target), which chooses one of them.
#define ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels)                                          \
  template <typename T>                                                                    \
  Kernels KernelsOf(::attnops::TargetIndex target);                                        \
  template <>                                                                              \
  Kernels KernelsOf<float>(::attnops::TargetIndex target);                                 \
  template <>                                                                              \
  Kernels KernelsOf<::attnops::Float16>(::attnops::TargetIndex target);                    \
  template <>                                                                              \
  Kernels KernelsOf<::attnops::BFloat16>(::attnops::TargetIndex target);                   \
  inline Kernels KernelsFor(::attnops::DType dtype, ::attnops::TargetIndex target) {       \
    return ::attnops::WithType(                                                            \
        dtype, [&](auto tag) { return KernelsOf<typename decltype(tag)::Type>(target); }); \
  }                                                                                        \
  static_assert(true, "a semicolon follows")

#endif  // ATTNOPS_SRC_CORE_KERNEL_LIST_H_
