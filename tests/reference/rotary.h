// Rotary encoding with positions, pairs and sections of any kind, in plain double-precision loops.
#ifndef ATTNOPS_TESTS_REFERENCE_ROTARY_H_
#define ATTNOPS_TESTS_REFERENCE_ROTARY_H_

#include <cstdint>
#include <vector>

#include "attnops/types.h"
#include "tests/reference/activation.h"

namespace attnops::reference {

using Values = std::vector<double>;

// x, d_out and the results are (B,N,H,D) in row-major order.
struct Rotary {
  std::int64_t batch = 1, length = 1, heads = 1, features = 2;
  std::int64_t rotated = 2;
  bool interleaved = false;
  std::vector<std::int64_t> sections = {};
  bool sections_interleaved = false;
  double scale = 1;
  std::vector<std::int64_t> positions = {};  // (sections or 1, B, N)
  std::int64_t theta_heads = 1, theta_features = 1;
  Activation::Kind act = Activation::Kind::kNone;
  Axis softmax_axis = Axis::kFeatures;

  TensorActivation Act() const {
    return {act, {batch, length, heads, features}, softmax_axis == Axis::kFeatures ? 3 : 1};
  }

  // The two features of pair j.
  std::int64_t First(std::int64_t j) const { return interleaved ? 2 * j : j; }
  std::int64_t Second(std::int64_t j) const { return interleaved ? 2 * j + 1 : j + rotated / 2; }
  // Pairs that have an angle.
  std::int64_t Pairs() const { return theta_features == 1 ? rotated / 2 : theta_features; }
  // The position of pair j of a token, and the theta of a pair of a head.
  std::int64_t Position(std::int64_t j, std::int64_t b, std::int64_t t) const;
  std::int64_t ThetaIndex(std::int64_t h, std::int64_t j) const {
    return (theta_heads == 1 ? 0 : h) * theta_features + (theta_features == 1 ? 0 : j);
  }

  // Every pair of y rotated by sign·position·theta, times the scale.
  Values Rotate(const Values& y, const Values& theta, int sign) const;
  Values Forward(const Values& x, const Values& theta) const;
  Values Backward(const Values& x, const Values& theta, const Values& d_out) const;
  // Σ p·(o_j·do_j' − o_j'·do_j), and the sum of the terms' bounds |p|·|o|·|do|, in lengths of
  // pairs.
  struct ThetaGradient {
    Values value, magnitude;
  };
  ThetaGradient GradientOfTheta(const Values& x, const Values& theta, const Values& d_out) const;
  // √(v_j² + v_j'²) for both features of every pair with an angle; |v| of the others.
  Values PairLengths(const Values& v) const;

  // Calls f(b, t, h, j, row): `row` is where the token's features are.
  template <class F>
  void ForEachPair(const F& f) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t < length; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t j = 0; j < Pairs(); ++j) {
            f(b, t, h, j, ((b * length + t) * heads + h) * features);
          }
        }
      }
    }
  }
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_ROTARY_H_
