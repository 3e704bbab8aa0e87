// Comparison of a result with the reference, element by element.
#ifndef ATTNOPS_TESTS_SUPPORT_COMPARE_H_
#define ATTNOPS_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace attnops::testing {

// What a result must be, and how far from it each element may be.
struct Expected {
  std::vector<double> value;
  std::vector<double> bound;
};

// Succeeds if every actual[i] is within bound[i] of expected[i]. Where NaN or an infinity is
// expected, it must be that. A failure says how many elements are off and shows the worst.
inline ::testing::AssertionResult AllNear(const std::vector<double>& actual,
                                          const std::vector<double>& expected,
                                          const std::vector<double>& bound) {
  if (actual.size() != expected.size() || bound.size() != expected.size()) {
    return ::testing::AssertionFailure() << "sizes differ: " << actual.size() << ", "
                                         << expected.size() << " and " << bound.size();
  }
  std::size_t failures = 0;
  std::size_t worst = 0;
  double worst_excess = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i]) continue;
    const double error = std::abs(actual[i] - expected[i]);
    if (std::isfinite(expected[i]) && error <= bound[i]) continue;
    ++failures;
    const double excess = std::isfinite(error) ? error / std::max(bound[i], 1e-300) : INFINITY;
    if (failures == 1 || excess > worst_excess) {
      worst = i;
      worst_excess = excess;
    }
  }
  if (failures == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << failures << " of " << actual.size() << " elements are off; at " << worst << " it is "
         << actual[worst] << ", expected " << expected[worst] << " within " << bound[worst];
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_COMPARE_H_
