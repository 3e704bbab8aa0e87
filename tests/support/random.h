// Random inputs, the same in every run.
#ifndef ATTNOPS_TESTS_SUPPORT_RANDOM_H_
#define ATTNOPS_TESTS_SUPPORT_RANDOM_H_

#include <cstdint>
#include <random>
#include <vector>

namespace attnops::testing {

// Normal, with the given deviation.
inline std::vector<double> RandomNormal(std::int64_t n, std::uint32_t seed, double deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution(0, deviation);
  std::vector<double> values(n);
  for (double& value : values) value = distribution(generator);
  return values;
}

// Uniform in [low, high).
inline std::vector<double> RandomUniform(std::int64_t n, std::uint32_t seed, double low,
                                         double high) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> distribution(low, high);
  std::vector<double> values(n);
  for (double& value : values) value = distribution(generator);
  return values;
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_RANDOM_H_
