#include "tests/reference/rotary.h"

#include <cmath>

namespace attnops::reference {

std::int64_t Rotary::Position(std::int64_t j, std::int64_t b, std::int64_t t) const {
  const auto k = static_cast<std::int64_t>(sections.size());
  std::int64_t stream = 0;
  if (sections_interleaved) {
    if (j < k * sections[j % k]) stream = j % k;
  } else if (k > 0) {
    for (std::int64_t end = sections[0]; j >= end; end += sections[++stream]) {
    }
  }
  return positions[(stream * batch + b) * length + t];
}

Values Rotary::Rotate(const Values& y, const Values& theta, int sign) const {
  Values out = y;
  ForEachPair([&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t j,
                  std::int64_t row) {
    // 33 bits times 24 bits: exact in the 64 bits of a long double, whose sine and cosine reduce
    // the angle exactly.
    const long double angle = static_cast<long double>(Position(j, b, t)) * theta[ThetaIndex(h, j)];
    const double c = scale * static_cast<double>(std::cos(angle));
    const double s = scale * static_cast<double>(sign * std::sin(angle));
    const double first = y[row + First(j)], second = y[row + Second(j)];
    out[row + First(j)] = first * c - second * s;
    out[row + Second(j)] = first * s + second * c;
  });
  return out;
}

Values Rotary::Forward(const Values& x, const Values& theta) const {
  return Rotate(Act().Forward(x), theta, 1);
}

Values Rotary::Backward(const Values& x, const Values& theta, const Values& d_out) const {
  return Act().Backward(x, Rotate(d_out, theta, -1));
}

Rotary::ThetaGradient Rotary::GradientOfTheta(const Values& x, const Values& theta,
                                              const Values& d_out) const {
  const Values o = Forward(x, theta);
  ThetaGradient gradient{Values(theta.size()), Values(theta.size())};
  ForEachPair([&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t j,
                  std::int64_t row) {
    const auto p = static_cast<double>(Position(j, b, t));
    const std::int64_t first = row + First(j), second = row + Second(j);
    gradient.value[ThetaIndex(h, j)] += p * (o[first] * d_out[second] - o[second] * d_out[first]);
    gradient.magnitude[ThetaIndex(h, j)] +=
        std::abs(p) * std::hypot(o[first], o[second]) * std::hypot(d_out[first], d_out[second]);
  });
  return gradient;
}

Values Rotary::PairLengths(const Values& v) const {
  Values lengths(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) lengths[i] = std::abs(v[i]);
  ForEachPair([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t j, std::int64_t row) {
    const std::int64_t first = row + First(j), second = row + Second(j);
    lengths[first] = lengths[second] = std::hypot(v[first], v[second]);
  });
  return lengths;
}

}  // namespace attnops::reference
