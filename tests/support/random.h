// Random inputs, the same in every run.
#ifndef ATTNOPS_TESTS_SUPPORT_RANDOM_H_
#define ATTNOPS_TESTS_SUPPORT_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace attnops::testing {

// Close to normal, with the given deviation: the sum of four uniform numbers, which is quicker than
// std::normal_distribution and the same in every standard library.
inline std::vector<double> RandomNormal(std::int64_t n, std::uint32_t seed, double deviation = 1) {
  std::mt19937_64 generator(seed);
  // The sum of four parts of 16 bits has the variance 4 · 2^32 / 12.
  const double scale = deviation * std::sqrt(3.0) / 65536;
  std::vector<double> values(n);
  for (double& value : values) {
    const std::uint64_t bits = generator();
    const std::uint64_t sum =
        (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48);
    value = scale * (static_cast<double>(sum) - 2 * 65535);
  }
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
