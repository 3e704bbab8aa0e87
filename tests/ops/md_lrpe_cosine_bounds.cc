#include "tests/ops/md_lrpe_cosine_bounds.h"

#include <cmath>
#include <utility>

#include "tests/ops/activation_bounds.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;

// Calls body(i, j, encoded) for every element i of x, where j is its place in out; the sines are
// D further.
template <typename Body>
void ForEachElement(const reference::MdLrpeCosine& reference, const Body& body) {
  const std::int64_t features = reference.features;
  const std::int64_t length = reference.Length();
  for (std::int64_t i = 0; i < reference.size(); ++i) {
    const std::int64_t row = i / features;
    body(i, row * features + i, row % length >= reference.l);
  }
}

}  // namespace

Expected ExpectedForward(const reference::MdLrpeCosine& reference, DType dtype, const Values& x,
                         const Values& theta) {
  const Values y = reference.Act().Forward(x);
  const Values y_errors = ActivationErrors(reference.Act(), x, y);
  Values out = reference.Encode(y, theta);
  Values bound(out.size());
  ForEachElement(reference, [&](std::int64_t i, std::int64_t j, bool encoded) {
    bound[j] = y_errors[i] + (encoded ? kRotation * std::abs(y[i]) : 0);
    bound[j + reference.features] = encoded ? bound[j] : 0;
  });
  bound = WithStorageError(dtype, out, std::move(bound));
  return {std::move(out), std::move(bound)};
}

Expected ExpectedBackward(const reference::MdLrpeCosine& reference, DType dtype, const Values& x,
                          const Values& theta, const Values& d_out) {
  Values dx = reference.Backward(x, theta, d_out);
  Values lengths(x.size());
  Values dy_errors(x.size());
  ForEachElement(reference, [&](std::int64_t i, std::int64_t j, bool encoded) {
    lengths[i] = encoded ? std::hypot(d_out[j], d_out[j + reference.features]) : std::abs(d_out[j]);
    dy_errors[i] = encoded ? kRotation * lengths[i] : 0;
  });
  Values bound = ActivationGradientBound(reference.Act(), x, lengths, dy_errors);
  bound = WithStorageError(dtype, dx, std::move(bound));
  return {std::move(dx), std::move(bound)};
}

Expected ExpectedTable(const reference::MdLrpeCosine& reference, const Values& theta) {
  Values table = reference.Table(theta);
  Values bound(table.size(), kRotation);
  return {std::move(table), std::move(bound)};
}

}  // namespace attnops::testing
