#include "tests/reference/lrpe_rotate.h"

#include <cmath>
#include <limits>

namespace attnops::reference {
namespace {

using Kind = Activation::Kind;

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// softmax(x) over the elements of one group, written to p.
void Softmax(const std::vector<std::int64_t>& group, const std::vector<double>& x,
             std::vector<double>& p) {
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t i : group) max = x[i] > max ? x[i] : max;
  double sum = 0;
  for (std::int64_t i : group) sum += p[i] = std::exp(x[i] - max);
  for (std::int64_t i : group) p[i] /= sum;
}

}  // namespace

std::vector<std::vector<std::int64_t>> LrpeRotate::SoftmaxGroups() const {
  std::vector<std::vector<std::int64_t>> groups;
  const bool over_features = softmax_axis == Axis::kFeatures;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < (over_features ? length : features); ++i) {
        std::vector<std::int64_t> group(over_features ? features : length);
        for (std::size_t k = 0; k < group.size(); ++k) {
          group[k] = over_features ? Index(b, i, h, k) : Index(b, k, h, i);
        }
        groups.push_back(std::move(group));
      }
    }
  }
  return groups;
}

std::vector<double> LrpeRotate::Activate(const std::vector<double>& x) const {
  std::vector<double> y = x;
  if (act == Kind::kSoftmax) {
    for (const auto& group : SoftmaxGroups()) Softmax(group, x, y);
    return y;
  }
  for (double& v : y) {
    if (act == Kind::kRelu) v = v <= 0 ? 0 : v;
    if (act == Kind::kSigmoid) v = Sigmoid(v);
    if (act == Kind::kSilu) v = v * Sigmoid(v);
  }
  return y;
}

std::vector<double> LrpeRotate::ActivateBackward(const std::vector<double>& x,
                                                 const std::vector<double>& dy) const {
  std::vector<double> dx = dy;
  if (act == Kind::kSoftmax) {
    const std::vector<double> p = Activate(x);
    for (const auto& group : SoftmaxGroups()) {
      double sum = 0;
      for (std::int64_t i : group) sum += p[i] * dy[i];
      for (std::int64_t i : group) dx[i] = p[i] * (dy[i] - sum);
    }
    return dx;
  }
  for (std::size_t i = 0; i < dx.size(); ++i) {
    const double s = Sigmoid(x[i]);
    if (act == Kind::kRelu) dx[i] = x[i] <= 0 ? 0 : dy[i];
    if (act == Kind::kSigmoid) dx[i] = dy[i] * s * (1 - s);
    if (act == Kind::kSilu) dx[i] = dy[i] * s * (1 + x[i] * (1 - s));
  }
  return dx;
}

std::vector<double> LrpeRotate::Rotate(const std::vector<double>& y,
                                       const std::vector<double>& theta, int sign) const {
  std::vector<double> out = y;  // the pairs without an angle pass through
  const std::int64_t pairs = features / 2;
  const std::int64_t rotated = theta_features == 1 ? pairs : theta_features;
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t theta_row = (theta_heads == 1 ? 0 : h) * theta_features;
      for (std::int64_t j = 0; j < rotated; ++j) {
        // 33 bits times 24 bits: exact in the 64 bits of a long double, whose sine and cosine
        // reduce the angle exactly.
        const long double angle =
            static_cast<long double>(offset + t) * theta[theta_row + (theta_features == 1 ? 0 : j)];
        const double c = static_cast<double>(std::cos(angle));
        const double s = static_cast<double>(sign * std::sin(angle));
        for (std::int64_t b = 0; b < batch; ++b) {
          const std::int64_t i1 = Index(b, t, h, j);
          const std::int64_t i2 = i1 + pairs;
          out[i1] = y[i1] * c - y[i2] * s;
          out[i2] = y[i1] * s + y[i2] * c;
        }
      }
    }
  }
  return out;
}

std::vector<double> LrpeRotate::Forward(const std::vector<double>& x,
                                        const std::vector<double>& theta) const {
  return Rotate(Activate(x), theta, 1);
}

std::vector<double> LrpeRotate::Backward(const std::vector<double>& x,
                                         const std::vector<double>& theta,
                                         const std::vector<double>& d_out) const {
  return ActivateBackward(x, Rotate(d_out, theta, -1));
}

}  // namespace attnops::reference
