// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_ROWOPS_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_ROWOPS_KERNELS_INL_H_
#undef ATTNOPS_SRC_ROWOPS_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_ROWOPS_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/rowops/columns-inl.h"
#include "src/rowops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::rowops {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

template <int kParts, typename T>
void AddRowsToColumns(const TokenRows& rows, float* columns, bool first) {
  const RowShape shape(rows.part, rows.part, rows.width);
  const auto x_of = [&]<int K>(std::int64_t t, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
    return LoadStrip<kParts, K>(shape, static_cast<const T*>(rows.first) + t * rows.stride, j, n);
  };
  AddToColumns<kParts, kColumnRows, T>(shape, rows.count, x_of, x_of, columns, first);
}

template <typename T>
Kernels KernelsOfTarget() {
  return {StartColumns<kColumnRows>,
          {AddRowsToColumns<1, T>, AddRowsToColumns<2, T>},
          MergeColumns<kColumnRows>,
          FinishColumns<kColumnRows>};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::rowops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_ROWOPS_KERNELS_INL_H_
