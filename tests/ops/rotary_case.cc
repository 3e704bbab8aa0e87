#include "tests/ops/rotary_case.h"

#include <cmath>
#include <random>
#include <sstream>
#include <utility>

#include "tests/ops/activation_bounds.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

Dims ShapeOf(const RotarySpec& spec) {
  return spec.layout == Layout::kBnhd ? Dims{spec.batch, spec.length, spec.heads, spec.features}
                                      : Dims{spec.batch, spec.heads, spec.length, spec.features};
}

Dims ThetaShape(const RotarySpec& spec) {
  return {spec.theta_heads, spec.theta_features > 0 ? spec.theta_features : spec.rotated / 2};
}

bool OverFeatures(const RotarySpec& spec) { return spec.act.dim == -1; }

}  // namespace

std::string RotarySpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " N=" << length << " H=" << heads << " D=" << features
       << " rotated " << rotated << (interleaved ? " interleaved" : "") << " form "
       << static_cast<int>(form) << (wide ? "" : " narrow")
       << (sections_interleaved ? " sections interleaved" : "") << " first " << first << " scale "
       << scale << (layout == Layout::kBnhd ? "" : " bhnd") << " theta " << Name(theta_dtype) << " "
       << testing::Describe(ThetaShape(*this)) << " act " << testing::Describe(act);
  return text.str();
}

RotaryPositions::RotaryPositions(const RotarySpec& spec) : spec_(spec) {
  const bool sections = spec.form == PositionForm::kSections;
  if (sections) {
    const std::int64_t pairs = spec.rotated / 2, part = pairs / 3;
    sections_ = {pairs - 2 * part, part, part};
  }
  const std::int64_t streams = sections ? 3 : 1;
  std::mt19937 generator(7);
  for (std::int64_t s = 0; s < streams; ++s) {
    for (std::int64_t b = 0; b < spec.batch; ++b) {
      for (std::int64_t t = 0; t < spec.length; ++t) {
        std::int64_t position = t;
        if (spec.form == PositionForm::kOffsets) position += 3 * b;
        if (spec.form == PositionForm::kOfTokens) position = (t * 11) % 29;
        if (spec.form == PositionForm::kOfBatches) position += 16 * (b % 2) - 4;
        if (spec.form == PositionForm::kPacked) position = t < 20 ? t : t - 20;
        if (sections) position = static_cast<std::int64_t>(generator() % 50) - 9 * s;
        values_.push_back(spec.first + position);
      }
    }
  }
  if (spec.form == PositionForm::kOfTokens) {
    wide_.assign(values_.begin(), values_.begin() + spec.length);
  } else if (spec.form == PositionForm::kOffsets) {
    for (std::int64_t b = 0; b < spec.batch; ++b) wide_.push_back(values_[b * spec.length]);
  } else {
    wide_ = values_;
  }
  for (const std::int64_t value : wide_) narrow_.push_back(static_cast<std::int32_t>(value));
}

RotaryOptions RotaryPositions::Options() const {
  RotaryOptions options;
  if (spec_.rotated != spec_.features) options.rotary_dim = spec_.rotated;
  options.interleaved = spec_.interleaved;
  options.scale = spec_.scale;
  options.layout = spec_.layout;
  const Dims shape = spec_.form == PositionForm::kOffsets    ? Dims{spec_.batch}
                     : spec_.form == PositionForm::kOfTokens ? Dims{spec_.length}
                     : spec_.form == PositionForm::kSections ? Dims{3, spec_.batch, spec_.length}
                                                             : Dims{spec_.batch, spec_.length};
  const IntegerView view =
      spec_.wide ? IntegerView(wide_.data(), shape) : IntegerView(narrow_.data(), shape);
  if (spec_.form == PositionForm::kOffsets) {
    options.offsets = view;
  } else if (spec_.form != PositionForm::kOffset) {
    options.positions = view;
  }
  options.sections = sections_;
  options.sections_interleaved = spec_.sections_interleaved && !sections_.empty();
  return options;
}

RotaryCase::RotaryCase(const RotarySpec& spec)
    : x(spec.dtype, ShapeOf(spec)),
      theta(spec.theta_dtype, ThetaShape(spec)),
      d_out(spec.dtype, ShapeOf(spec)),
      out(spec.dtype, ShapeOf(spec)),
      d_theta(DType::kFloat32, ThetaShape(spec)),
      spec_(spec),
      positions_(spec) {
  x.Fill(RandomNormal(x.size(), 1));
  theta.Fill(RandomUniform(theta.size(), 2, -2, 2));
  d_out.Fill(RandomNormal(d_out.size(), 3));
}

reference::Rotary RotaryCase::Reference() const {
  reference::Rotary rotary;
  rotary.batch = spec_.batch;
  rotary.length = spec_.length;
  rotary.heads = spec_.heads;
  rotary.features = spec_.features;
  rotary.rotated = spec_.rotated;
  rotary.interleaved = spec_.interleaved;
  rotary.sections = positions_.sections();
  rotary.sections_interleaved = positions_.Options().sections_interleaved;
  rotary.scale = spec_.scale;
  rotary.positions = positions_.values();
  rotary.theta_heads = spec_.theta_heads;
  rotary.theta_features = ThetaShape(spec_)[1];
  rotary.act = spec_.act.kind;
  rotary.softmax_axis =
      OverFeatures(spec_) ? reference::Axis::kFeatures : reference::Axis::kSequence;
  return rotary;
}

LrpeRotateOptions RotaryCase::Options() const {
  Activation act = spec_.act;
  if (act.kind == Activation::Kind::kSoftmax && !OverFeatures(spec_)) {
    act.dim = spec_.layout == Layout::kBnhd ? 1 : 2;
  }
  return {positions_.Offset(), act, positions_.Options()};
}

std::vector<double> RotaryCase::InOrder(const std::vector<double>& values, bool to_tensor) const {
  if (spec_.layout == Layout::kBnhd) return values;
  std::vector<double> result(values.size());
  std::size_t at = 0;
  for (std::int64_t b = 0; b < spec_.batch; ++b) {
    for (std::int64_t t = 0; t < spec_.length; ++t) {
      for (std::int64_t h = 0; h < spec_.heads; ++h) {
        for (std::int64_t c = 0; c < spec_.features; ++c, ++at) {
          const std::size_t other = ((b * spec_.heads + h) * spec_.length + t) * spec_.features + c;
          result[to_tensor ? other : at] = values[to_tensor ? at : other];
        }
      }
    }
  }
  return result;
}

void RotaryCase::Forward() {
  out.Poison();
  LrpeRotate(x.view(), theta.view(), out.view(), Options());
}

void RotaryCase::Backward() {
  out.Poison();
  LrpeRotateBackward(x.view(), theta.view(), d_out.view(), out.view(), Options());
}

void RotaryCase::ThetaGradient() {
  d_theta.Poison();
  LrpeRotateThetaGradient(x.view(), theta.view(), d_out.view(), d_theta.view(), Options());
}

Expected RotaryCase::ExpectedForward() const {
  const reference::Rotary rotary = Reference();
  const std::vector<double> values = InOrder(x.Values(), false);
  const std::vector<double> y = rotary.Act().Forward(values);
  std::vector<double> value = rotary.Rotate(y, theta.Values(), 1);
  std::vector<double> bound = rotary.PairLengths(y);
  const std::vector<double> errors = rotary.PairLengths(ActivationErrors(rotary.Act(), values, y));
  const double scale = std::max(1.0, std::abs(rotary.scale));
  for (std::size_t i = 0; i < bound.size(); ++i) {
    bound[i] = scale * (kRotation * bound[i] + errors[i]);
  }
  bound = WithStorageError(spec_.dtype, value, std::move(bound));
  return {InOrder(value, true), InOrder(bound, true)};
}

Expected RotaryCase::ExpectedBackward() const {
  const reference::Rotary rotary = Reference();
  const std::vector<double> values = InOrder(x.Values(), false);
  const std::vector<double> gradient = InOrder(d_out.Values(), false);
  std::vector<double> dx = rotary.Backward(values, theta.Values(), gradient);
  std::vector<double> lengths = rotary.PairLengths(gradient);
  for (double& length : lengths) length *= std::max(1.0, std::abs(rotary.scale));
  std::vector<double> errors = lengths;
  for (double& error : errors) error *= kRotation;
  std::vector<double> bound = ActivationGradientBound(rotary.Act(), values, lengths, errors);
  bound = WithStorageError(spec_.dtype, dx, std::move(bound));
  return {InOrder(dx, true), InOrder(bound, true)};
}

void RotaryCase::CheckForward() {
  SCOPED_TRACE("forward " + spec_.Describe());
  Forward();
  CheckResult(out, ExpectedForward());
}

void RotaryCase::CheckBackward() {
  SCOPED_TRACE("backward " + spec_.Describe());
  Backward();
  CheckResult(out, ExpectedBackward());
}

void RotaryCase::CheckThetaGradient() {
  SCOPED_TRACE("gradient of theta " + spec_.Describe());
  ThetaGradient();
  const auto expected = Reference().GradientOfTheta(InOrder(x.Values(), false), theta.Values(),
                                                    InOrder(d_out.Values(), false));
  std::vector<double> bound = expected.magnitude;
  for (double& value : bound) value *= kThetaGradient;
  CheckResult(d_theta, {expected.value, bound});
}

RopeCase::RopeCase(RotarySpec spec, std::int64_t key_heads)
    : q(spec), k([&] {
        spec.heads = key_heads;
        return spec;
      }()) {}

void RopeCase::Forward() {
  q.out.Poison();
  k.out.Poison();
  Rope(q.x.view(), k.x.view(), q.theta.view(), q.out.view(), k.out.view(), Options());
}

void RopeCase::Backward() {
  q.out.Poison();
  k.out.Poison();
  RopeBackward(q.d_out.view(), k.d_out.view(), q.theta.view(), q.out.view(), k.out.view(),
               Options());
}

void ForEachRotaryForm(const std::function<void(RotarySpec)>& body) {
  constexpr PositionForm kForms[] = {PositionForm::kOffset,   PositionForm::kOffsets,
                                     PositionForm::kOfTokens, PositionForm::kOfBatches,
                                     PositionForm::kPacked,   PositionForm::kSections};
  int number = 0;
  for (const bool interleaved : {false, true}) {
    for (const std::int64_t rotated : {70, 44, 16}) {
      for (const PositionForm form : kForms) {
        for (const Layout layout : {Layout::kBnhd, Layout::kBhnd}) {
          RotarySpec spec;
          spec.features = 70;
          spec.rotated = rotated;
          spec.interleaved = interleaved;
          spec.form = form;
          spec.layout = layout;
          // What does not depend on these varies with them.
          ++number;
          spec.wide = number % 2 == 0;
          spec.sections_interleaved = number % 4 < 2;
          spec.scale = number % 3 == 0 ? 1.25f : 1.0f;
          spec.theta_heads = number % 5 == 0 ? spec.heads : 1;
          spec.theta_features = number % 7 == 0 ? rotated / 4 : 0;
          spec.first = number % 3 == 1 ? 1'000'003 : -5;
          body(spec);
        }
      }
    }
  }
}

}  // namespace attnops::testing
