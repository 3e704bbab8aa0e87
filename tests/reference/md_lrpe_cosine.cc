#include "tests/reference/md_lrpe_cosine.h"

#include <cmath>

namespace attnops::reference {
namespace {

struct CosSin {
  double cos;
  double sin;
};

// 33 bits times 24 bits: exact in the 64 bits of a long double, whose sine and cosine reduce the
// angle exactly.
CosSin CosSinOf(std::int64_t position, double theta) {
  const long double angle = static_cast<long double>(position) * theta;
  return {static_cast<double>(std::cos(angle)), static_cast<double>(std::sin(angle))};
}

// Calls body(h, t, c, cos a, sin a) for every head, token with a position and feature.
template <typename Body>
void ForEachAngle(const MdLrpeCosine& op, const std::vector<double>& theta, const Body& body) {
  for (std::int64_t h = 0; h < op.heads; ++h) {
    const std::int64_t theta_row = (op.theta_heads == 1 ? 0 : h) * op.theta_features;
    for (std::int64_t c = 0; c < op.features; ++c) {
      const auto axis = static_cast<int>(c / op.theta_features);
      std::vector<CosSin> angles;  // one for each index of the axis
      for (std::int64_t s = 0; s < op.shape[axis]; ++s) {
        angles.push_back(CosSinOf(op.offset + s, theta[theta_row + c % op.theta_features]));
      }
      for (std::int64_t t = op.l; t < op.Length(); ++t) {
        const CosSin& a = angles[op.GridIndex(t - op.l, axis)];
        body(h, t, c, a.cos, a.sin);
      }
    }
  }
}

}  // namespace

std::int64_t MdLrpeCosine::Length() const {
  std::int64_t tokens = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) tokens *= shape[axis];
  return l + tokens;
}

TensorActivation MdLrpeCosine::Act() const {
  return {act, {batch, heads, Length(), features}, softmax_axis == Axis::kFeatures ? 3 : 2};
}

std::int64_t MdLrpeCosine::GridIndex(std::int64_t i, int axis) const {
  for (int faster = shape.rank() - 1; faster > axis; --faster) i /= shape[faster];
  return i % shape[axis];
}

std::vector<double> MdLrpeCosine::Encode(const std::vector<double>& y,
                                         const std::vector<double>& theta) const {
  const std::int64_t length = Length();
  std::vector<double> out(2 * y.size(), 0);
  for (std::int64_t row = 0; row < batch * heads * length; ++row) {
    if (row % length >= l) continue;
    for (std::int64_t c = 0; c < features; ++c) out[row * 2 * features + c] = y[row * features + c];
  }
  ForEachAngle(*this, theta,
               [&](std::int64_t h, std::int64_t t, std::int64_t c, double cos, double sin) {
                 for (std::int64_t b = 0; b < batch; ++b) {
                   const std::int64_t row = (b * heads + h) * length + t;
                   const double value = y[row * features + c];
                   out[row * 2 * features + c] = value * cos;
                   out[row * 2 * features + features + c] = value * sin;
                 }
               });
  return out;
}

std::vector<double> MdLrpeCosine::EncodeBackward(const std::vector<double>& d_out,
                                                 const std::vector<double>& theta) const {
  const std::int64_t length = Length();
  std::vector<double> dy(d_out.size() / 2);
  for (std::int64_t row = 0; row < batch * heads * length; ++row) {
    if (row % length >= l) continue;
    for (std::int64_t c = 0; c < features; ++c) {
      dy[row * features + c] = d_out[row * 2 * features + c];
    }
  }
  ForEachAngle(*this, theta,
               [&](std::int64_t h, std::int64_t t, std::int64_t c, double cos, double sin) {
                 for (std::int64_t b = 0; b < batch; ++b) {
                   const std::int64_t row = (b * heads + h) * length + t;
                   const std::int64_t i = row * 2 * features + c;
                   dy[row * features + c] = d_out[i] * cos + d_out[i + features] * sin;
                 }
               });
  return dy;
}

std::vector<double> MdLrpeCosine::Forward(const std::vector<double>& x,
                                          const std::vector<double>& theta) const {
  return Encode(Act().Forward(x), theta);
}

std::vector<double> MdLrpeCosine::Backward(const std::vector<double>& x,
                                           const std::vector<double>& theta,
                                           const std::vector<double>& d_out) const {
  return Act().Backward(x, EncodeBackward(d_out, theta));
}

std::vector<double> MdLrpeCosine::Table(const std::vector<double>& theta) const {
  std::vector<double> table;
  for (std::int64_t h = 0; h < theta_heads; ++h) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      for (std::int64_t s = 0; s < shape[axis]; ++s) {
        for (std::int64_t e = 0; e < theta_features; ++e) {
          const CosSin a = CosSinOf(offset + s, theta[h * theta_features + e]);
          table.push_back(a.cos);
          table.push_back(a.sin);
        }
      }
    }
  }
  return table;
}

}  // namespace attnops::reference
