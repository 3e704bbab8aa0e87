#include "tests/ops/lrpe_rotate_bounds.h"

#include <cmath>
#include <utility>

#include "tests/ops/activation_bounds.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;

// √(v_j² + v_{j+D/2}²), for both elements of every pair.
Values PairLengths(const reference::LrpeRotate& reference, const Values& v) {
  Values lengths(v.size());
  const std::int64_t pairs = reference.features / 2;
  for (std::size_t row = 0; row < v.size(); row += reference.features) {
    for (std::int64_t j = 0; j < pairs; ++j) {
      lengths[row + j] = lengths[row + j + pairs] = std::hypot(v[row + j], v[row + j + pairs]);
    }
  }
  return lengths;
}

}  // namespace

Expected ExpectedForward(const reference::LrpeRotate& reference, DType dtype, const Values& x,
                         const Values& theta) {
  const Values y = reference.Act().Forward(x);
  Values out = reference.Rotate(y, theta, 1);
  Values bound = PairLengths(reference, y);
  const Values y_errors = PairLengths(reference, ActivationErrors(reference.Act(), x, y));
  for (std::size_t i = 0; i < bound.size(); ++i) bound[i] = kRotation * bound[i] + y_errors[i];
  bound = WithStorageError(dtype, out, std::move(bound));
  return {std::move(out), std::move(bound)};
}

Expected ExpectedBackward(const reference::LrpeRotate& reference, DType dtype, const Values& x,
                          const Values& theta, const Values& d_out) {
  Values dx = reference.Backward(x, theta, d_out);
  const Values lengths = PairLengths(reference, d_out);
  Values dy_errors = lengths;
  for (double& error : dy_errors) error *= kRotation;
  Values bound = ActivationGradientBound(reference.Act(), x, lengths, dy_errors);
  bound = WithStorageError(dtype, dx, std::move(bound));
  return {std::move(dx), std::move(bound)};
}

}  // namespace attnops::testing
