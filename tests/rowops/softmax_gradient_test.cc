// The gradient of softmax over the features for inputs near the bounds within which exponentials
// are not shifted, and gradients of any size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attnops/attnops.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr std::int64_t kTokens = 5, kFeatures = 70;

struct Scale {
  double x, gradient;
};
constexpr Scale kScales[] = {{60, 1e12}, {30, 1e26}, {-63, 1e-17}, {-40, 1e-25},
                             {63, 1e10}, {80, 1e30}, {-80, 1e-30}};

std::vector<float> Around(std::uint32_t seed, double center, double spread) {
  std::vector<float> values;
  for (const double value : RandomNormal(kTokens * kFeatures, seed)) {
    values.push_back(static_cast<float>(center + spread * value));
  }
  return values;
}

// dx = p ⊙ (dy − Σ p⊙dy) for each row, and the scale of its rounding errors.
void ExpectGradient(const std::vector<float>& x, const std::vector<float>& dy,
                    const std::vector<float>& dx) {
  for (std::int64_t row = 0; row < kTokens; ++row) {
    const float* in = x.data() + row * kFeatures;
    const float* gradient = dy.data() + row * kFeatures;
    double max = in[0], sum = 0, dot = 0, scale = 0;
    for (int j = 0; j < kFeatures; ++j) max = std::max<double>(max, in[j]);
    for (int j = 0; j < kFeatures; ++j) sum += std::exp(in[j] - max);
    for (int j = 0; j < kFeatures; ++j) {
      const double p = std::exp(in[j] - max) / sum;
      dot += p * gradient[j];
      scale += p * std::abs(gradient[j]);
    }
    for (int j = 0; j < kFeatures; ++j) {
      const double p = std::exp(in[j] - max) / sum;
      const double expected = p * (gradient[j] - dot);
      // What float32 cannot hold is lost.
      const double bound = p * (std::abs(gradient[j]) + scale) *
                               (kSoftmax + SumError(kFeatures) + 2 * SoftmaxArgument(in[j], max) +
                                2 * SoftmaxArgument(in[j], 0)) +
                           1e-37;
      ASSERT_NEAR(dx[row * kFeatures + j], expected, bound) << row << " " << j;
    }
  }
}

TEST(SoftmaxGradient, OfAnySize) {
  for (const Scale& scale : kScales) {
    const std::vector<float> x = Around(1, scale.x, 1), dy = Around(2, 0, scale.gradient);
    OnEveryTarget([&] {
      SCOPED_TRACE(std::to_string(scale.x) + ", gradients of " + std::to_string(scale.gradient));
      std::vector<float> dx(x.size());
      const float zero = 0;  // no rotation
      LrpeRotateBackward({x.data(), {1, kTokens, 1, kFeatures}}, {&zero, {1, 1}},
                         {dy.data(), {1, kTokens, 1, kFeatures}},
                         {dx.data(), {1, kTokens, 1, kFeatures}}, {.act = Activation::Softmax(-1)});
      ExpectGradient(x, dy, dx);

      // All tokens without a position: the gradient of the first half of the encoding.
      std::vector<float> wide(2 * dy.size(), 0), theta(kFeatures, 1);
      for (std::int64_t i = 0; i < kTokens; ++i) {
        std::copy_n(dy.data() + i * kFeatures, kFeatures, wide.data() + 2 * i * kFeatures);
      }
      MdLrpeCosineBackward({x.data(), {1, 1, kTokens, kFeatures}}, {theta.data(), {1, kFeatures}},
                           {wide.data(), {1, 1, kTokens, 2 * kFeatures}},
                           {dx.data(), {1, 1, kTokens, kFeatures}},
                           {.shape = {0}, .l = kTokens, .act = Activation::Softmax(-1)});
      ExpectGradient(x, dy, dx);

      // out = softmax(g) ⊙ 1, from q, k and v of ones.
      const std::vector<float> ones(kTokens * kFeatures, 1);
      std::vector<float> dq(kTokens), dk(1), dv(kFeatures), dg(x.size());
      FlaoFalBackward({ones.data(), {1, 1, kTokens, 1}}, {ones.data(), {1, 1, 1, 1}},
                      {ones.data(), {1, 1, 1, kFeatures}}, {x.data(), {1, 1, kTokens, kFeatures}},
                      {dy.data(), {1, 1, kTokens, kFeatures}}, {dq.data(), {1, 1, kTokens, 1}},
                      {dk.data(), {1, 1, 1, 1}}, {dv.data(), {1, 1, 1, kFeatures}},
                      {dg.data(), {1, 1, kTokens, kFeatures}}, {.g_act = Activation::Softmax(-1)});
      ExpectGradient(x, dy, dg);
    });
  }
}

}  // namespace
}  // namespace attnops::testing
