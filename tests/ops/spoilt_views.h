// Views of four axes that an operator must refuse.
#ifndef ATTNOPS_TESTS_OPS_SPOILT_VIEWS_H_
#define ATTNOPS_TESTS_OPS_SPOILT_VIEWS_H_

#include <vector>

#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops::testing {

// What can be wrong with any view: another size on each axis, fewer or more axes, another type, no
// data, a negative size, features that are not contiguous.
template <typename View>
std::vector<View> Spoilt(const View& view) {
  std::vector<View> views;
  const Dims shape = view.shape();
  for (int axis = 0; axis < 4; ++axis) {
    for (const std::int64_t change : {-1, 1}) {
      Dims other = shape;
      other[axis] += change;
      views.push_back({view.data(), view.dtype(), other});
    }
  }
  views.push_back({view.data(), view.dtype(), Dims{shape[1], shape[2], shape[3]}});
  views.push_back({view.data(), view.dtype(), Dims{1, shape[0], shape[1], shape[2], shape[3]}});
  views.push_back({view.data(), DType::kBFloat16, shape});
  views.push_back({view.data(), DType::kFloat16, shape});
  views.push_back({nullptr, view.dtype(), shape});
  views.push_back({view.data(), view.dtype(), Dims{shape[0], shape[1], -1, shape[3]}});
  views.push_back({view.data(), view.dtype(), shape, Dims{1, 1, 1, 2}});
  views.push_back({view.data(), view.dtype(), shape, Dims{1, 1, 1, 0}});
  return views;
}

// Outputs may also not overlap themselves.
inline std::vector<TensorView> SpoiltOutputs(const TensorView& view) {
  std::vector<TensorView> views = Spoilt(view);
  const Dims strides = view.strides();
  for (int axis = 0; axis < 3; ++axis) {
    Dims other = strides;
    other[axis] = 0;
    views.push_back({view.data(), view.dtype(), view.shape(), other});
  }
  views.push_back({view.data(), view.dtype(), view.shape(), Dims{strides[0], strides[1], 2, 1}});
  return views;
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_SPOILT_VIEWS_H_
