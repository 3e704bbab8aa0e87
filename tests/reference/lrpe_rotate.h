// lrpe_rotate in plain double-precision loops: the truth that the library is judged by.
#ifndef ATTNOPS_TESTS_REFERENCE_LRPE_ROTATE_H_
#define ATTNOPS_TESTS_REFERENCE_LRPE_ROTATE_H_

#include <cstdint>
#include <vector>

#include "attnops/types.h"
#include "tests/reference/activation.h"

namespace attnops::reference {

// x, d_out and the results are (B,N,H,D) in row-major order (H = 1 for a 3-axis x) and theta is
// (theta_heads, theta_features). The vectors hold exactly the values that the library is given.
struct LrpeRotate {
  std::int64_t batch = 1;
  std::int64_t length = 1;
  std::int64_t heads = 1;
  std::int64_t features = 2;
  std::int64_t theta_heads = 1;
  std::int64_t theta_features = 1;
  std::int64_t offset = 0;
  Activation::Kind act = Activation::Kind::kNone;
  Axis softmax_axis = Axis::kFeatures;

  std::int64_t size() const { return batch * length * heads * features; }

  // Where x[b,t,h,c] is.
  std::int64_t Index(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
    return ((b * length + t) * heads + h) * features + c;
  }

  // f, of x.
  TensorActivation Act() const {
    return {act, {batch, length, heads, features}, softmax_axis == Axis::kFeatures ? 3 : 1};
  }

  // Every pair of y rotated by sign · (offset+t) · theta[h,j].
  std::vector<double> Rotate(const std::vector<double>& y, const std::vector<double>& theta,
                             int sign) const;

  std::vector<double> Forward(const std::vector<double>& x, const std::vector<double>& theta) const;

  std::vector<double> Backward(const std::vector<double>& x, const std::vector<double>& theta,
                               const std::vector<double>& d_out) const;
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_LRPE_ROTATE_H_
