// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_POSITIONS_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_POSITIONS_KERNELS_INL_H_
#undef ATTNOPS_SRC_POSITIONS_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_POSITIONS_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/core/dtype_switch.h"
#include "src/positions/ids-inl.h"
#include "src/positions/kernels.h"
#include "src/positions/tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::positions {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

template <typename T>
void FillTurnsOf(const ConstTensorView& theta, const Angles& angles) {
  WithType(theta.dtype(), [&](auto tag) HWY_ATTR {
    using Theta = typename decltype(tag)::Type;
    FillTurns<T>(static_cast<const Theta*>(theta.data()), theta.stride(0), theta.shape(1), angles);
  });
}

template <typename T>
std::int64_t StorageOffsetOf(std::int64_t angle) {
  return static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(angle)));
}

template <typename T>
Kernels KernelsOfTarget() {
  return {static_cast<std::int64_t>(ChunkSize()),
          StorageOffsetOf<T>,
          FillTurnsOf<T>,
          FillSteps,
          FillStreams<T>,
          FillTable<T>,
          FillPositions<T>,
          FillFactors<T>};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::positions
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_POSITIONS_KERNELS_INL_H_
