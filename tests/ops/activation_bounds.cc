#include "tests/ops/activation_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Kind = Activation::Kind;
using Values = std::vector<double>;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

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

}  // namespace

Values ActivationErrors(const reference::TensorActivation& act, const Values& x, const Values& y) {
  Values errors(x.size());
  if (act.kind == Kind::kSoftmax) errors = SoftmaxErrors(act.SoftmaxGroups(), x, y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (act.kind == Kind::kSoftmax) errors[i] = errors[i] * y[i] + kTiny;
    if (act.kind == Kind::kSigmoid) errors[i] = kSigmoid * y[i] + kTiny;
    if (act.kind == Kind::kSilu) errors[i] = kSilu * std::abs(y[i]) + kTiny * std::abs(x[i]);
  }
  return errors;
}

Values ActivationGradientBound(const reference::TensorActivation& act, const Values& x,
                               const Values& scale, const Values& dy_errors) {
  Values bound(x.size());
  if (act.kind == Kind::kSoftmax) {
    const auto groups = act.SoftmaxGroups();
    const Values p = act.Forward(x);
    const Values p_errors = SoftmaxErrors(groups, x, p);
    for (const auto& group : groups) {
      double mean_scale = 0;  // Σ p⊙scale, which bounds Σ p⊙dy
      double mean_error = 0;  // of Σ p⊙dy
      for (std::int64_t i : group) {
        mean_scale += p[i] * scale[i];
        mean_error += p[i] * (scale[i] * p_errors[i] + dy_errors[i]);
      }
      mean_error += mean_scale * SumError(static_cast<std::int64_t>(group.size()));
      for (std::int64_t i : group) {
        const double sum = scale[i] + mean_scale;
        bound[i] = p[i] * (sum * (p_errors[i] + 2 * kUnitFloat32) + dy_errors[i] + mean_error) +
                   kTiny * sum;
      }
    }
    return bound;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    double slope = 1;
    double slope_error = 0;
    if (act.kind == Kind::kRelu) slope = x[i] <= 0 ? 0 : 1;
    if (act.kind == Kind::kSigmoid) {
      const double s = Sigmoid(x[i]);
      slope = s * (1 - s);
      slope_error = kSigmoidGradient * s + kTiny;
    }
    if (act.kind == Kind::kSilu) {
      const double s = Sigmoid(x[i]);
      slope = s * (1 + x[i] * (1 - s));
      slope_error = (kSigmoidGradient * s + kTiny) * (1 + std::abs(x[i]));
    }
    bound[i] = dy_errors[i] * std::abs(slope) + scale[i] * slope_error;
  }
  return bound;
}

Values WithStorageError(DType dtype, const Values& value, Values bound) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    bound[i] += StorageError(dtype, std::abs(value[i]) + bound[i]);
  }
  return bound;
}

}  // namespace attnops::testing
