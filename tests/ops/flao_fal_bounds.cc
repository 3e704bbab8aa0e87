#include "tests/ops/flao_fal_bounds.h"

#include <cmath>
#include <utility>

#include "tests/ops/activation_bounds.h"
#include "tests/ops/flao_case.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using reference::Encoding;
using reference::TensorActivation;
using Values = std::vector<double>;

// One of Q̄, K̄, V̄ and Ḡ: its magnitudes, without and with its errors.
struct Prepared {
  Values value, magnitude, larger;
};

Prepared WithErrors(Values value, const Values& errors) {
  Prepared result{std::move(value), {}, {}};
  for (std::size_t i = 0; i < result.value.size(); ++i) {
    result.magnitude.push_back(std::abs(result.value[i]));
    result.larger.push_back(result.magnitude[i] + errors[i]);
  }
  return result;
}

Prepared Activated(const TensorActivation& act, const Values& x) {
  Values y = act.Forward(x);
  const Values errors = ActivationErrors(act, x, y);
  return WithErrors(std::move(y), errors);
}

// An operand of a product, which may be rounded before.
Prepared Rounded(Prepared operand, double rounding) {
  for (double& larger : operand.larger) larger *= 1 + rounding;
  return operand;
}

// Calls body(i, j, o) for the elements of every encoded pair: in a tensor without the encoding i
// and, for kRotate, j, else −1; in the encoded one o and o + Half().
template <typename Body>
void ForEachPair(const Encoding& encoding, const Body& body) {
  const bool cosine = encoding.lrpe == Lrpe::kCosine;
  const std::int64_t half = encoding.Half();
  const std::int64_t rows = encoding.batch * encoding.heads * encoding.tokens;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!encoding.HasPosition(row % encoding.tokens)) continue;
    for (std::int64_t c = 0; c < half; ++c) {
      const std::int64_t i = row * encoding.features + c;
      body(i, cosine ? -1 : i + half, row * encoding.EncodedFeatures() + c);
    }
  }
}

Prepared Encoded(const Encoding& encoding, const TensorActivation& act, const Values& x,
                 const Values& theta) {
  const Values y = act.Forward(x);
  const Values y_errors = ActivationErrors(act, x, y);
  // Where there is no position the errors are those of y, and of the zeros behind it 0.
  Encoding in_place = encoding;
  in_place.l = encoding.tokens;
  Values errors = in_place.Forward(y_errors, theta);
  ForEachPair(encoding, [&](std::int64_t i, std::int64_t j, std::int64_t o) {
    const double length = j < 0 ? std::abs(y[i]) : std::hypot(y[i], y[j]);
    const double error = j < 0 ? y_errors[i] : std::hypot(y_errors[i], y_errors[j]);
    errors[o] = errors[o + encoding.Half()] = kRotation * length + error;
  });
  return WithErrors(encoding.Forward(y, theta), errors);
}

// A sum whose value is known, from its magnitudes without and with errors.
Expected Sum(const Values& value, const Values& magnitude, const Values& larger,
             double arithmetic) {
  Expected result{value, Values(value.size())};
  for (std::size_t i = 0; i < value.size(); ++i) {
    result.bound[i] = larger[i] - magnitude[i] + arithmetic * larger[i] + kTiny;
  }
  return result;
}

// The gradient of x from that of the prepared tensor, `d`.
Expected Gradient(const Encoding& encoding, const TensorActivation& act, const Values& x,
                  const Values& theta, const Expected& d) {
  Values magnitudes(d.value.size());
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i] = std::abs(d.value[i]) + d.bound[i];
  }
  Encoding in_place = encoding;
  in_place.l = encoding.tokens;
  Values scale = in_place.Backward(magnitudes, theta);
  Values errors = in_place.Backward(d.bound, theta);
  ForEachPair(encoding, [&](std::int64_t i, std::int64_t j, std::int64_t o) {
    const double length = std::hypot(magnitudes[o], magnitudes[o + encoding.Half()]);
    const double error = kRotation * length + std::hypot(d.bound[o], d.bound[o + encoding.Half()]);
    for (const std::int64_t at : {i, j}) {
      if (at < 0) continue;
      scale[at] = length;
      errors[at] = error;
    }
  });
  Expected result{act.Backward(x, encoding.Backward(d.value, theta)),
                  ActivationGradientBound(act, x, scale, errors)};
  for (double& bound : result.bound) bound += kTiny;
  return result;
}

Expected Gradient(const TensorActivation& act, const Values& x, const Expected& d) {
  const std::int64_t tokens = act.shape[2];
  return Gradient(Encoding{act.shape[0], act.shape[1], tokens, act.shape[3]}, act, x, {}, d);
}

}  // namespace

FlaoFalExpected ExpectedFlaoFal(const reference::FlaoFal& op, const reference::FlaoFal::Inputs& x,
                                const Values& theta, const Values& d_out, Precision precision) {
  const double rounding = OperandError(precision, 1);
  const Prepared q = Rounded(Encoded(op.QEncoding(), op.QAct(), x.q, theta), rounding);
  const Prepared k = Rounded(Encoded(op.KEncoding(), op.KAct(), x.k, theta), rounding);
  const Prepared v = Rounded(Activated(op.VAct(), x.v), rounding);
  const Prepared g = Activated(op.GAct(), x.g);
  const Prepared d = WithErrors(d_out, Values(d_out.size(), 0));

  const reference::Flao flao = op.Attention();
  const auto forward = [&](Values Prepared::*of) { return flao.Run(q.*of, k.*of, v.*of, g.*of); };
  const auto backward = [&](Values Prepared::*of) {
    return flao.RunBackward(q.*of, k.*of, v.*of, g.*of, d.*of);
  };
  const auto value = forward(&Prepared::value);
  const auto magnitude = forward(&Prepared::magnitude);
  const auto larger = forward(&Prepared::larger);
  const auto d_value = backward(&Prepared::value);
  const auto d_magnitude = backward(&Prepared::magnitude);
  const auto d_larger = backward(&Prepared::larger);

  const double over_m = SumError(flao.m);
  const double over_m_and_d = TwoSums(flao.m, flao.d) + rounding;
  // dO ⊙ Ḡ, and KV or dKV.
  const double of_both = OperandError(precision, 2);
  FlaoFalExpected result;
  result.kv = Sum(value.kv, magnitude.kv, larger.kv, over_m);
  result.qkv = Sum(value.qkv, magnitude.qkv, larger.qkv, over_m_and_d);
  result.out = Sum(value.out, magnitude.out, larger.out, over_m_and_d);
  const auto gradient = [&](Values reference::Flao::Backward::*of, double arithmetic) {
    return Sum(d_value.*of, d_magnitude.*of, d_larger.*of, arithmetic);
  };
  using Backward = reference::Flao::Backward;
  result.dq = Gradient(op.QEncoding(), op.QAct(), x.q, theta,
                       gradient(&Backward::dq, TwoSums(flao.m, flao.e) + of_both));
  result.dk = Gradient(op.KEncoding(), op.KAct(), x.k, theta,
                       gradient(&Backward::dk, TwoSums(flao.n, flao.e) + of_both));
  result.dv = Gradient(op.VAct(), x.v, gradient(&Backward::dv, TwoSums(flao.n, flao.d) + of_both));
  Expected dg = gradient(&Backward::dg, over_m_and_d);
  result.dg = Gradient(op.GAct(), x.g, dg);
  for (std::size_t i = 0; i < dg.bound.size(); ++i) {
    dg.bound[i] += kUnitBFloat16 * (std::abs(dg.value[i]) + dg.bound[i]);
  }
  result.dg_of_rounded_qkv = Gradient(op.GAct(), x.g, dg);
  return result;
}

}  // namespace attnops::testing
