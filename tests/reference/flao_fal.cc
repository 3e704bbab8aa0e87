#include "tests/reference/flao_fal.h"

#include <cmath>

namespace attnops::reference {
namespace {

using Values = std::vector<double>;

// Calls body(first, second, cos a, sin a) for every pair with an angle: `first` is the place of
// its first part in y, `second` in an array of encoded tokens.
template <typename Body>
void ForEachPair(const Encoding& op, const Values& theta, const Body& body) {
  const std::int64_t pairs = op.lrpe == Lrpe::kCosine ? op.features : op.features / 2;
  for (std::int64_t h = 0; h < op.heads; ++h) {
    const std::int64_t theta_row = (op.theta_heads == 1 ? 0 : h) * op.theta_features;
    for (std::int64_t t = 0; t < op.tokens; ++t) {
      if (!op.HasPosition(t)) continue;
      for (std::int64_t j = 0; j < pairs; ++j) {
        if (op.Angle(j) < 0) continue;
        // 33 bits times 24 bits: exact in the 64 bits of a long double, whose sine and cosine
        // reduce the angle exactly.
        const long double angle =
            static_cast<long double>(op.Position(t, j)) * theta[theta_row + op.Angle(j)];
        const auto cos = static_cast<double>(std::cos(angle));
        const auto sin = static_cast<double>(std::sin(angle));
        for (std::int64_t b = 0; b < op.batch; ++b) {
          const std::int64_t row = (b * op.heads + h) * op.tokens + t;
          body(row * op.features + j, row * op.EncodedFeatures() + j, cos, sin);
        }
      }
    }
  }
}

}  // namespace

std::int64_t Encoding::Angle(std::int64_t j) const {
  if (lrpe == Lrpe::kCosine || shape.rank() > 1) return j % theta_features;
  if (theta_features == 1) return 0;
  return j < theta_features ? j : -1;
}

std::int64_t Encoding::Position(std::int64_t token, std::int64_t j) const {
  std::int64_t index = token - l;
  if (shape.rank() <= 1) return offset + index;
  const auto axis = static_cast<int>(j / theta_features);
  for (int faster = shape.rank() - 1; faster > axis; --faster) index /= shape[faster];
  return index % shape[axis];
}

Values Encoding::Forward(const Values& y, const Values& theta) const {
  Values out = y;  // tokens without a position and pairs without an angle pass through
  if (lrpe == Lrpe::kCosine) {
    out.assign(2 * y.size(), 0);
    for (std::int64_t row = 0; row < batch * heads * tokens; ++row) {
      for (std::int64_t c = 0; c < features; ++c) {
        out[row * 2 * features + c] = y[row * features + c];
      }
    }
  }
  ForEachPair(*this, theta, [&](std::int64_t i, std::int64_t o, double cos, double sin) {
    const double second = lrpe == Lrpe::kCosine ? 0 : y[i + Half()];
    out[o] = y[i] * cos - second * sin;
    out[o + Half()] = y[i] * sin + second * cos;
  });
  return out;
}

void Encoding::AddThetaGradient(const Values& encoded, const Values& d_encoded,
                                const Values& magnitudes, const Values& d_magnitudes,
                                Values& gradient, Values& magnitude) const {
  for (std::int64_t row = 0; row < batch * heads * tokens; ++row) {
    const std::int64_t token = row % tokens, head = row / tokens % heads;
    if (!HasPosition(token)) continue;
    for (std::int64_t j = 0; j < Half(); ++j) {
      if (Angle(j) < 0) continue;
      const std::int64_t first = row * EncodedFeatures() + j, second = first + Half();
      const std::int64_t at = (theta_heads == 1 ? 0 : head) * theta_features + Angle(j);
      const auto p = static_cast<double>(Position(token, j));
      gradient[at] += p * (encoded[first] * d_encoded[second] - encoded[second] * d_encoded[first]);
      magnitude[at] += std::abs(p) * (magnitudes[first] + magnitudes[second]) *
                       (d_magnitudes[first] + d_magnitudes[second]);
    }
  }
}

Values Encoding::Backward(const Values& d_encoded, const Values& theta) const {
  Values dy = d_encoded;
  if (lrpe == Lrpe::kCosine) {
    dy.resize(d_encoded.size() / 2);
    for (std::int64_t row = 0; row < batch * heads * tokens; ++row) {
      for (std::int64_t c = 0; c < features; ++c) {
        dy[row * features + c] = d_encoded[row * 2 * features + c];
      }
    }
  }
  ForEachPair(*this, theta, [&](std::int64_t i, std::int64_t o, double cos, double sin) {
    const double first = d_encoded[o];
    const double second = d_encoded[o + Half()];
    dy[i] = first * cos + second * sin;
    if (lrpe == Lrpe::kRotate) dy[i + Half()] = second * cos - first * sin;
  });
  return dy;
}

FlaoFal::Inputs FlaoFal::Prepare(const Inputs& x, const Values& theta) const {
  return {QEncoding().Forward(QAct().Forward(x.q), theta),
          KEncoding().Forward(KAct().Forward(x.k), theta), VAct().Forward(x.v),
          GAct().Forward(x.g)};
}

Flao::Forward FlaoFal::Run(const Inputs& x, const Values& theta) const {
  const Inputs ready = Prepare(x, theta);
  return Attention().Run(ready.q, ready.k, ready.v, ready.g);
}

FlaoFal::Inputs FlaoFal::RunBackward(const Inputs& x, const Values& theta,
                                     const Values& d_out) const {
  const Inputs ready = Prepare(x, theta);
  const Flao::Backward d = Attention().RunBackward(ready.q, ready.k, ready.v, ready.g, d_out);
  return {QAct().Backward(x.q, QEncoding().Backward(d.dq, theta)),
          KAct().Backward(x.k, KEncoding().Backward(d.dk, theta)), VAct().Backward(x.v, d.dv),
          GAct().Backward(x.g, d.dg)};
}

}  // namespace attnops::reference
