// lrpe_rotate: checks, then a call of the encoding kRotate.
#include "attnops/lrpe_rotate.h"

#include "src/core/checks.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/ops/position_encoding/rotary.h"
#include "src/positions/grid.h"
#include "src/positions/theta.h"

namespace attnops {
namespace {

using position_encoding::Call;
using position_encoding::RotaryAxes;

constexpr char kOp[] = "lrpe_rotate";

// A call with x in place of d_out and no result yet.
Call CheckCall(Pass pass, bool of_theta, const ConstTensorView& x, const ConstTensorView& theta,
               const LrpeRotateOptions& options) {
  const Layout layout = options.rotary.layout;
  if (x.rank() != 4 && (x.rank() != 3 || layout != Layout::kBnhd)) {
    Fail(kOp, "x must have 4 axes ", position_encoding::AxesOf(layout),
         layout == Layout::kBnhd ? " or 3 (B,N,D)" : "", "; its shape is ", ToString(x.shape()));
  }
  CheckView(kOp, "x", x);
  const RotaryAxes axes(layout, x.rank());
  const std::int64_t features = x.shape(x.rank() - 1);
  const std::int64_t rotated = position_encoding::CheckRotated(kOp, "x", features, options.rotary);
  if (x.rank() == 3 && theta.rank() == 2 && theta.shape(0) != 1) {
    Fail(kOp, "theta has ", theta.shape(0), " heads; x has 3 axes (expected 1)");
  }
  CheckTheta(kOp, theta, "x", x.dtype(), axes.Heads(x));
  CheckPairAngles(kOp, theta.shape(1), "x", rotated / 2);
  Call call;
  position_encoding::CheckRotary(kOp, x.shape(0), x.shape(axes.sequence), rotated, options.offset,
                                 options.rotary, -1, call.angles);
  call.axis = CheckActivation(kOp, "act", "dim", options.act, x.rank(), axes.sequence);
  call.encoding = Encoding::kRotate;
  call.pass = pass;
  call.theta = of_theta;
  call.dtype = x.dtype();
  call.act = options.act.kind;
  call.angles.theta = &theta;
  call.pairs = {options.rotary.interleaved, rotated, features};
  position_encoding::SetProblem(call, axes, x, theta.shape(1), call.problem);
  return call;
}

void CheckResult(const char* name, const TensorView& result, const ConstTensorView& x,
                 const ConstTensorView& theta) {
  CheckSameShape(kOp, name, result, "x", x);
  CheckSameType(kOp, name, result, "x", x);
  CheckOutput(kOp, name, result);
  CheckApartOrSame(kOp, name, result, "x", x);
  CheckApart(kOp, name, result, "theta", theta);
}

void CheckGradient(const ConstTensorView& d_out, const ConstTensorView& x) {
  CheckSameShape(kOp, "d_out", d_out, "x", x);
  CheckSameType(kOp, "d_out", d_out, "x", x);
  CheckView(kOp, "d_out", d_out);
}

}  // namespace

void LrpeRotate(const ConstTensorView& x, const ConstTensorView& theta, const TensorView& out,
                const LrpeRotateOptions& options) {
  Call call = CheckCall(Pass::kForward, false, x, theta, options);
  CheckResult("out", out, x, theta);
  call.problem.out = RotaryAxes(options.rotary.layout, x.rank()).RowsOf(out);
  position_encoding::Run(call);
}

void LrpeRotateBackward(const ConstTensorView& x, const ConstTensorView& theta,
                        const ConstTensorView& d_out, const TensorView& dx,
                        const LrpeRotateOptions& options) {
  Call call = CheckCall(Pass::kBackward, false, x, theta, options);
  CheckResult("dx", dx, x, theta);
  CheckGradient(d_out, x);
  CheckApartOrSame(kOp, "dx", dx, "d_out", d_out);
  const RotaryAxes axes(options.rotary.layout, x.rank());
  call.problem.d_out = axes.RowsOf(d_out);
  call.problem.out = axes.RowsOf(dx);
  position_encoding::Run(call);
}

void LrpeRotateThetaGradient(const ConstTensorView& x, const ConstTensorView& theta,
                             const ConstTensorView& d_out, const TensorView& d_theta,
                             const LrpeRotateOptions& options) {
  Call call = CheckCall(Pass::kBackward, true, x, theta, options);
  CheckGradient(d_out, x);
  CheckThetaGradient(kOp, d_theta, theta);
  CheckApart(kOp, "d_theta", d_theta, "x", x);
  CheckApart(kOp, "d_theta", d_theta, "d_out", d_out);
  call.problem.d_out = RotaryAxes(options.rotary.layout, x.rank()).RowsOf(d_out);
  position_encoding::RunTheta(call, d_theta);
}

}  // namespace attnops
