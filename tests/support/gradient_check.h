// The gradient of a function by finite differences.
#ifndef ATTNOPS_TESTS_SUPPORT_GRADIENT_CHECK_H_
#define ATTNOPS_TESTS_SUPPORT_GRADIENT_CHECK_H_

#include <cstddef>
#include <vector>

#include "tests/support/tolerances.h"

namespace attnops::testing {

// The gradient with respect to x of Σ d_out ⊙ forward(x), by central differences. `forward` is in
// double precision, or the differences drown in rounding.
template <typename Forward>
std::vector<double> DifferenceGradient(const Forward& forward, std::vector<double> x,
                                       const std::vector<double>& d_out) {
  const auto loss = [&] {
    const std::vector<double> out = forward(x);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += d_out[i] * out[i];
    return sum;
  };
  std::vector<double> gradient;
  for (double& value : x) {
    const double original = value;
    value = original + kDifferenceStep;
    const double above = loss();
    value = original - kDifferenceStep;
    const double below = loss();
    value = original;
    gradient.push_back((above - below) / (2 * kDifferenceStep));
  }
  return gradient;
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_GRADIENT_CHECK_H_
