#include "tests/ops/lrpe_rotate_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Kind = Activation::Kind;
using Values = std::vector<double>;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

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

// The relative error of every p = softmax(x); 0 where p is 0, x = -inf included.
Values SoftmaxErrors(const std::vector<std::vector<std::int64_t>>& groups, const Values& x,
                     const Values& p) {
  Values errors(x.size());
  for (const auto& group : groups) {
    double max = -std::numeric_limits<double>::infinity();
    for (std::int64_t i : group) max = std::max(max, x[i]);
    double in_sum = SumError(static_cast<std::int64_t>(group.size()));
    for (std::int64_t i : group) {
      if (p[i] > 0) in_sum += p[i] * SoftmaxArgument(x[i], max);
    }
    for (std::int64_t i : group) {
      errors[i] = p[i] > 0 ? kSoftmax + SoftmaxArgument(x[i], max) + in_sum : 0;
    }
  }
  return errors;
}

// The absolute error of every y = f(x).
Values ActivationErrors(const reference::LrpeRotate& reference, const Values& x, const Values& y) {
  Values errors(x.size());
  if (reference.act == Kind::kSoftmax) errors = SoftmaxErrors(reference.SoftmaxGroups(), x, y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (reference.act == Kind::kSoftmax) errors[i] = errors[i] * y[i] + kTiny;
    if (reference.act == Kind::kSigmoid) errors[i] = kSigmoid * y[i] + kTiny;
    if (reference.act == Kind::kSilu) errors[i] = kSilu * std::abs(y[i]) + kTiny * std::abs(x[i]);
  }
  return errors;
}

Values WithStorageError(DType dtype, const Values& value, Values bound) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    bound[i] += StorageError(dtype, std::abs(value[i]) + bound[i]);
  }
  return bound;
}

}  // namespace

Expected ExpectedForward(const reference::LrpeRotate& reference, DType dtype, const Values& x,
                         const Values& theta) {
  const Values y = reference.Activate(x);
  Values out = reference.Rotate(y, theta, 1);
  Values bound = PairLengths(reference, y);
  const Values y_errors = PairLengths(reference, ActivationErrors(reference, x, y));
  for (std::size_t i = 0; i < bound.size(); ++i) bound[i] = kRotation * bound[i] + y_errors[i];
  bound = WithStorageError(dtype, out, std::move(bound));
  return {std::move(out), std::move(bound)};
}

Expected ExpectedBackward(const reference::LrpeRotate& reference, DType dtype, const Values& x,
                          const Values& theta, const Values& d_out) {
  const Values dy = reference.Rotate(d_out, theta, -1);
  Values dx = reference.ActivateBackward(x, dy);
  const Values lengths = PairLengths(reference, d_out);
  Values bound(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double s = Sigmoid(x[i]);
    double slope = 1;
    double slope_error = 0;
    if (reference.act == Kind::kRelu) slope = x[i] <= 0 ? 0 : 1;
    if (reference.act == Kind::kSigmoid) {
      slope = s * (1 - s);
      slope_error = kSigmoidGradient * s + kTiny;
    }
    if (reference.act == Kind::kSilu) {
      slope = s * (1 + x[i] * (1 - s));
      slope_error = (kSigmoidGradient * s + kTiny) * (1 + std::abs(x[i]));
    }
    bound[i] = lengths[i] * (kRotation * std::abs(slope) + slope_error);
  }
  if (reference.act == Kind::kSoftmax) {
    const auto groups = reference.SoftmaxGroups();
    const Values p = reference.Activate(x);
    const Values p_errors = SoftmaxErrors(groups, x, p);
    for (const auto& group : groups) {
      double mean_length = 0;  // Σ p⊙L, which bounds Σ p⊙dy
      double mean_error = 0;   // of Σ p⊙dy
      for (std::int64_t i : group) {
        mean_length += p[i] * lengths[i];
        mean_error += p[i] * lengths[i] * (p_errors[i] + kRotation);
      }
      mean_error += mean_length * SumError(static_cast<std::int64_t>(group.size()));
      for (std::int64_t i : group) {
        const double scale = lengths[i] + mean_length;
        bound[i] = p[i] * (scale * (p_errors[i] + 2 * kUnitFloat32) + kRotation * lengths[i] +
                           mean_error) +
                   kTiny * scale;
      }
    }
  }
  bound = WithStorageError(dtype, dx, std::move(bound));
  return {std::move(dx), std::move(bound)};
}

}  // namespace attnops::testing
