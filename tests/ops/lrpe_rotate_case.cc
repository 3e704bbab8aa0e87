#include "tests/ops/lrpe_rotate_case.h"

#include <random>
#include <sstream>
#include <tuple>
#include <utility>

#include "tests/support/random.h"

namespace attnops::testing {
namespace {

bool OverFeatures(const RotateSpec& spec) {
  const int rank = spec.three_axes ? 3 : 4;
  return spec.act.dim == -1 || spec.act.dim == rank - 1;
}

}  // namespace

Dims RotateSpec::Shape() const {
  return three_axes ? Dims{batch, length, features} : Dims{batch, length, heads, features};
}

std::string RotateSpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " N=" << length << " H=" << heads << " D=" << features
       << (three_axes ? " (3 axes)" : "") << " theta " << Name(theta_dtype) << " (" << theta_heads
       << "," << theta_features << ") offset " << offset << " act " << testing::Describe(act)
       << DescribeStrides(x_strides, "x") << DescribeStrides(theta_strides, "theta")
       << DescribeStrides(d_out_strides, "d_out") << DescribeStrides(out_strides, "out")
       << " shift " << shift;
  return text.str();
}

RotateCase::RotateCase(const RotateSpec& spec)
    : x(spec.dtype, spec.Shape(), StridesOr(spec.x_strides, spec.Shape()), spec.shift),
      theta(spec.theta_dtype, {spec.theta_heads, spec.theta_features},
            StridesOr(spec.theta_strides, {spec.theta_heads, spec.theta_features})),
      d_out(spec.dtype, spec.Shape(), StridesOr(spec.d_out_strides, spec.Shape()), spec.shift),
      out(spec.dtype, spec.Shape(), StridesOr(spec.out_strides, spec.Shape()), spec.shift),
      spec_(spec) {
  x.Fill(RandomNormal(x.size(), 1));
  theta.Fill(RandomUniform(theta.size(), 2, -2, 2));
  d_out.Fill(RandomNormal(d_out.size(), 3));
}

reference::LrpeRotate RotateCase::Reference() const {
  return {spec_.batch,
          spec_.length,
          spec_.heads,
          spec_.features,
          spec_.theta_heads,
          spec_.theta_features,
          spec_.offset,
          spec_.act.kind,
          OverFeatures(spec_) ? reference::Axis::kFeatures : reference::Axis::kSequence};
}

const Expected& RotateCase::ForwardExpected() {
  if (!forward_) forward_ = ExpectedForward(Reference(), spec_.dtype, x.Values(), theta.Values());
  return *forward_;
}

const Expected& RotateCase::BackwardExpected() {
  if (!backward_) {
    backward_ =
        ExpectedBackward(Reference(), spec_.dtype, x.Values(), theta.Values(), d_out.Values());
  }
  return *backward_;
}

void RotateCase::Forward() {
  out.Poison();
  LrpeRotate(x.view(), theta.view(), out.view(), spec_.Options());
}

void RotateCase::Backward() {
  out.Poison();
  LrpeRotateBackward(x.view(), theta.view(), d_out.view(), out.view(), spec_.Options());
}

void RotateCase::CheckForward() {
  SCOPED_TRACE("forward " + spec_.Describe());
  const auto before = std::pair(x.memory(), theta.memory());
  Forward();
  CheckResult(out, ForwardExpected());
  EXPECT_TRUE(before == std::pair(x.memory(), theta.memory())) << "an input has changed";
}

void RotateCase::CheckBackward() {
  SCOPED_TRACE("backward " + spec_.Describe());
  const auto before = std::tuple(x.memory(), theta.memory(), d_out.memory());
  Backward();
  CheckResult(out, BackwardExpected());
  EXPECT_TRUE(before == std::tuple(x.memory(), theta.memory(), d_out.memory()))
      << "an input has changed";
}

void RotateCase::CheckForwardInPlace() {
  SCOPED_TRACE("forward, out is x, " + spec_.Describe());
  GuardedTensor both(spec_.dtype, x.shape(), x.strides(), spec_.shift);
  both.Fill(x.Values());
  LrpeRotate(both.view(), theta.view(), both.view(), spec_.Options());
  CheckResult(both, ForwardExpected());
}

void RotateCase::CheckBackwardInPlaceOfX() {
  SCOPED_TRACE("backward, dx is x, " + spec_.Describe());
  GuardedTensor both(spec_.dtype, x.shape(), x.strides(), spec_.shift);
  both.Fill(x.Values());
  LrpeRotateBackward(both.view(), theta.view(), d_out.view(), both.view(), spec_.Options());
  CheckResult(both, BackwardExpected());
}

void RotateCase::CheckBackwardInPlaceOfDOut() {
  SCOPED_TRACE("backward, dx is d_out, " + spec_.Describe());
  GuardedTensor both(spec_.dtype, d_out.shape(), d_out.strides(), spec_.shift);
  both.Fill(d_out.Values());
  LrpeRotateBackward(x.view(), theta.view(), both.view(), both.view(), spec_.Options());
  CheckResult(both, BackwardExpected());
}

void ForEachSpec(const std::function<void(const RotateSpec&)>& body) {
  struct Shape {
    std::int64_t batch, length, heads;
  };
  static constexpr Shape kShapes[] = {{1, 33, 7}, {1, 257, 1}, {3, 1, 7}, {3, 0, 1}, {0, 33, 7}};
  static constexpr Shape kLarge = {3, 257, 7};
  static constexpr std::int64_t kAwkwardFeatures[] = {2, 6, 48, 130};
  static constexpr std::int64_t kCommonFeatures[] = {64, 128, 256};
  static constexpr std::int64_t kOffsets[] = {
      0, 5, -7, 1'000'000, 1'000'000'000, -(std::int64_t{1} << 31), std::int64_t{1} << 31};
  std::mt19937 generator(2024);
  const auto run = [&](RotateSpec spec, const Shape& shape, bool every_theta) {
    spec.batch = shape.batch;
    spec.length = shape.length;
    spec.heads = shape.heads;
    const std::int64_t pairs = spec.features / 2;
    for (const std::int64_t theta_features : {pairs, pairs / 2 + 1, std::int64_t{1}}) {
      for (const std::int64_t theta_heads : {spec.heads, std::int64_t{1}}) {
        spec.theta_heads = theta_heads;
        spec.theta_features = theta_features;
        spec.offset = kOffsets[generator() % std::size(kOffsets)];
        spec.shift = static_cast<int>(generator() % 3);
        body(spec);
        if (spec.heads == 1 || !every_theta) break;
      }
      if (pairs == 1 || !every_theta) break;
    }
  };
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    for (const Activation& act : kDistinctActivations) {
      RotateSpec spec = {.dtype = dtype, .theta_dtype = theta_dtype, .act = act};
      for (const std::int64_t features : kAwkwardFeatures) {
        spec.features = features;
        for (const Shape& shape : kShapes) run(spec, shape, true);
      }
      // The rest takes one theta form, or the tests take too long.
      for (const std::int64_t features : kCommonFeatures) {
        spec.features = features;
        for (const Shape& shape : kShapes) run(spec, shape, false);
      }
      spec.features = 66;
      run(spec, kLarge, false);
    }
  }
}

}  // namespace attnops::testing
