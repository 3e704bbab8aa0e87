#include "tests/reference/lrpe_rotate.h"

#include <cmath>

namespace attnops::reference {

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
  return Rotate(Act().Forward(x), theta, 1);
}

std::vector<double> LrpeRotate::Backward(const std::vector<double>& x,
                                         const std::vector<double>& theta,
                                         const std::vector<double>& d_out) const {
  return Act().Backward(x, Rotate(d_out, theta, -1));
}

}  // namespace attnops::reference
