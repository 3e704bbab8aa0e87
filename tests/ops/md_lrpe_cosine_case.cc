#include "tests/ops/md_lrpe_cosine_case.h"

#include <gtest/gtest.h>

#include <sstream>
#include <tuple>

#include "tests/support/random.h"

namespace attnops::testing {

std::int64_t CosineSpec::ThetaFeatures() const {
  return (features + shape.rank() - 1) / shape.rank() + extra;
}

std::int64_t CosineSpec::Length() const { return l + TensorView(nullptr, dtype, shape).size(); }

Dims CosineSpec::XShape() const { return {batch, heads, Length(), features}; }

Dims CosineSpec::OutShape() const { return {batch, heads, Length(), 2 * features}; }

Dims CosineSpec::TableShape() const {
  std::int64_t rows = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) rows += shape[axis];
  return {theta_heads, rows, ThetaFeatures(), 2};
}

std::string CosineSpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " H=" << heads << " shape " << testing::Describe(shape)
       << " l=" << l << " D=" << features << " theta " << Name(theta_dtype) << " (" << theta_heads
       << "," << ThetaFeatures() << ") offset " << offset << " act " << testing::Describe(act)
       << DescribeStrides(x_strides, "x") << DescribeStrides(theta_strides, "theta")
       << DescribeStrides(table_strides, "table") << DescribeStrides(d_out_strides, "d_out")
       << DescribeStrides(out_strides, "out") << DescribeStrides(dx_strides, "dx") << " shift "
       << shift;
  return text.str();
}

CosineCase::CosineCase(const CosineSpec& spec)
    : x(spec.dtype, spec.XShape(), StridesOr(spec.x_strides, spec.XShape()), spec.shift),
      theta(spec.theta_dtype, {spec.theta_heads, spec.ThetaFeatures()},
            StridesOr(spec.theta_strides, {spec.theta_heads, spec.ThetaFeatures()})),
      d_out(spec.dtype, spec.OutShape(), StridesOr(spec.d_out_strides, spec.OutShape()),
            spec.shift),
      table(DType::kFloat32, spec.TableShape(), StridesOr(spec.table_strides, spec.TableShape())),
      out(spec.dtype, spec.OutShape(), StridesOr(spec.out_strides, spec.OutShape()), spec.shift),
      dx(spec.dtype, spec.XShape(), StridesOr(spec.dx_strides, spec.XShape()), spec.shift),
      spec_(spec) {
  x.Fill(RandomNormal(x.size(), 1));
  theta.Fill(RandomUniform(theta.size(), 2, -2, 2));
  d_out.Fill(RandomNormal(d_out.size(), 3));
}

reference::MdLrpeCosine CosineCase::Reference() const {
  const bool over_features = spec_.act.dim == -1 || spec_.act.dim == 3;
  return {spec_.batch,
          spec_.heads,
          spec_.features,
          spec_.shape,
          spec_.l,
          spec_.theta_heads,
          spec_.ThetaFeatures(),
          spec_.offset,
          spec_.act.kind,
          over_features ? reference::Axis::kFeatures : reference::Axis::kSequence};
}

const Expected& CosineCase::ForwardExpected() {
  if (!forward_) forward_ = ExpectedForward(Reference(), spec_.dtype, x.Values(), theta.Values());
  return *forward_;
}

const Expected& CosineCase::BackwardExpected() {
  if (!backward_) {
    backward_ =
        ExpectedBackward(Reference(), spec_.dtype, x.Values(), theta.Values(), d_out.Values());
  }
  return *backward_;
}

void CosineCase::BuildTable() {
  table.Poison();
  LrpeTable(theta.view(), spec_.shape, spec_.features, table.view(), spec_.offset);
}

void CosineCase::Forward(Angles angles) {
  out.Poison();
  if (angles == Angles::kTable) {
    MdLrpeCosineWithTable(x.view(), table.view(), out.view(), spec_.TableOptions());
  } else {
    MdLrpeCosine(x.view(), theta.view(), out.view(), spec_.Options());
  }
}

void CosineCase::Backward(Angles angles) {
  dx.Poison();
  if (angles == Angles::kTable) {
    MdLrpeCosineBackwardWithTable(x.view(), table.view(), d_out.view(), dx.view(),
                                  spec_.TableOptions());
  } else {
    MdLrpeCosineBackward(x.view(), theta.view(), d_out.view(), dx.view(), spec_.Options());
  }
}

std::string CosineCase::Trace(const char* what, Angles angles) const {
  return what + std::string(angles == Angles::kTable ? " with a table " : " ") + spec_.Describe();
}

void CosineCase::CheckTable() {
  SCOPED_TRACE("table " + spec_.Describe());
  const auto before = theta.memory();
  BuildTable();
  if (!table_) table_ = ExpectedTable(Reference(), theta.Values());
  CheckResult(table, *table_);
  EXPECT_TRUE(before == theta.memory()) << "theta has changed";
}

void CosineCase::CheckForward(Angles angles) {
  SCOPED_TRACE(Trace("forward", angles));
  const auto before = std::tuple(x.memory(), theta.memory(), table.memory());
  Forward(angles);
  CheckResult(out, ForwardExpected());
  EXPECT_TRUE(before == std::tuple(x.memory(), theta.memory(), table.memory()))
      << "an input has changed";
}

void CosineCase::CheckBackward(Angles angles) {
  SCOPED_TRACE(Trace("backward", angles));
  const auto before = std::tuple(x.memory(), theta.memory(), table.memory(), d_out.memory());
  Backward(angles);
  CheckResult(dx, BackwardExpected());
  EXPECT_TRUE(before == std::tuple(x.memory(), theta.memory(), table.memory(), d_out.memory()))
      << "an input has changed";
}

void CosineCase::CheckBackwardInPlace(Angles angles) {
  SCOPED_TRACE(Trace("backward, dx is x,", angles));
  GuardedTensor both(spec_.dtype, x.shape(), x.strides(), spec_.shift);
  both.Fill(x.Values());
  if (angles == Angles::kTable) {
    MdLrpeCosineBackwardWithTable(both.view(), table.view(), d_out.view(), both.view(),
                                  spec_.TableOptions());
  } else {
    MdLrpeCosineBackward(both.view(), theta.view(), d_out.view(), both.view(), spec_.Options());
  }
  CheckResult(both, BackwardExpected());
}

void CosineCase::CheckAll() {
  CheckTable();
  for (const Angles angles : kBothAngles) {
    CheckForward(angles);
    CheckBackward(angles);
  }
}

}  // namespace attnops::testing
