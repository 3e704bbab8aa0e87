#include "tests/reference/activation.h"

#include <cmath>
#include <limits>
#include <utility>

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

std::vector<std::vector<std::int64_t>> TensorActivation::SoftmaxGroups() const {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  for (int i = 0; i < softmax_axis; ++i) outer *= shape[i];
  for (int i = softmax_axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  const std::int64_t length = shape[softmax_axis];
  std::vector<std::vector<std::int64_t>> groups;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < inner; ++i) {
      std::vector<std::int64_t> group(length);
      for (std::int64_t k = 0; k < length; ++k) group[k] = (o * length + k) * inner + i;
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

std::vector<double> TensorActivation::Forward(const std::vector<double>& x) const {
  std::vector<double> y = x;
  if (kind == Kind::kSoftmax) {
    for (const auto& group : SoftmaxGroups()) Softmax(group, x, y);
    return y;
  }
  for (double& v : y) {
    if (kind == Kind::kRelu) v = v <= 0 ? 0 : v;
    if (kind == Kind::kSigmoid) v = Sigmoid(v);
    if (kind == Kind::kSilu) v = v * Sigmoid(v);
  }
  return y;
}

std::vector<double> TensorActivation::Backward(const std::vector<double>& x,
                                               const std::vector<double>& dy) const {
  std::vector<double> dx = dy;
  if (kind == Kind::kSoftmax) {
    const std::vector<double> p = Forward(x);
    for (const auto& group : SoftmaxGroups()) {
      double sum = 0;
      for (std::int64_t i : group) sum += p[i] * dy[i];
      for (std::int64_t i : group) dx[i] = p[i] * (dy[i] - sum);
    }
    return dx;
  }
  for (std::size_t i = 0; i < dx.size(); ++i) {
    if (kind == Kind::kRelu) dx[i] = x[i] <= 0 ? 0 : dy[i];
    if (kind == Kind::kSigmoid || kind == Kind::kSilu) {
      const double s = Sigmoid(x[i]);
      dx[i] = dy[i] * s * (kind == Kind::kSilu ? 1 + x[i] * (1 - s) : 1 - s);
    }
  }
  return dx;
}

}  // namespace attnops::reference
