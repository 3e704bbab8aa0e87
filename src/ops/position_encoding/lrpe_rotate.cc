// lrpe_rotate: checks, then a call of the encoding kRotate.
#include "attnops/lrpe_rotate.h"

#include "src/core/checks.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/positions/grid.h"

namespace attnops {
namespace {

using position_encoding::Call;
using position_encoding::Problem;

constexpr char kOp[] = "lrpe_rotate";

void Check(const ConstTensorView& x, const ConstTensorView& theta,
           const LrpeRotateOptions& options) {
  if (x.rank() != 3 && x.rank() != 4) {
    Fail(kOp, "x must have 4 axes (B,N,H,D) or 3 (B,N,D); its shape is ", ToString(x.shape()));
  }
  CheckView(kOp, "x", x);
  const std::int64_t D = x.shape(x.rank() - 1);
  const std::int64_t H = x.rank() == 4 ? x.shape(2) : 1;
  if (D % 2 != 0) Fail(kOp, "x must have an even number of features; it has ", D);
  if (x.rank() == 3 && theta.rank() == 2 && theta.shape(0) != 1) {
    Fail(kOp, "theta has ", theta.shape(0), " heads; x has 3 axes (expected 1)");
  }
  CheckTheta(kOp, theta, "x", x.dtype(), H);
  CheckPairAngles(kOp, theta.shape(1), "x", D / 2);
  CheckOffset(kOp, options.offset);
}

// x (B,N,H,D) or (B,N,D).
template <typename View, typename Pointer = decltype(std::declval<View>().data())>
StridedTensor<Pointer> RowsOf(const View& view) {
  const bool heads = view.rank() == 4;
  return {view.data(), view.stride(0), heads ? view.stride(2) : 0, view.stride(1)};
}

void Run(Pass pass, const ConstTensorView& x, const ConstTensorView& theta,
         const ConstTensorView* d_out, const TensorView& out, const LrpeRotateOptions& options,
         SoftmaxAxis axis) {
  const std::int64_t half = x.shape(x.rank() - 1) / 2;
  Call call;
  call.encoding = Encoding::kRotate;
  call.pass = pass;
  call.dtype = x.dtype();
  call.act = options.act.kind;
  call.axis = axis;
  call.angles.theta = &theta;
  call.angles.shape = {x.shape(1)};
  call.angles.offset = options.offset;
  call.angles.per_axis = half;
  Problem& problem = call.problem;
  problem.x = RowsOf(x);
  problem.d_out = RowsOf(d_out != nullptr ? *d_out : x);
  problem.out = RowsOf(out);
  problem.B = x.shape(0);
  problem.N = x.shape(1);
  problem.H = x.rank() == 4 ? x.shape(2) : 1;
  problem.part = half;
  problem.encoded = theta.shape(1) == 1 ? half : theta.shape(1);
  problem.prefix = 0;
  position_encoding::Run(call);
}

// The checks that both passes share; returns the axis of the softmax.
SoftmaxAxis CheckBoth(const ConstTensorView& x, const ConstTensorView& theta,
                      const char* output_name, const TensorView& output,
                      const LrpeRotateOptions& options) {
  Check(x, theta, options);
  const SoftmaxAxis axis = CheckActivation(kOp, "act", "dim", options.act, x.rank(), 1);
  CheckSameShape(kOp, output_name, output, "x", x);
  CheckSameType(kOp, output_name, output, "x", x);
  CheckOutput(kOp, output_name, output);
  CheckApartOrSame(kOp, output_name, output, "x", x);
  CheckApart(kOp, output_name, output, "theta", theta);
  return axis;
}

}  // namespace

void LrpeRotate(const ConstTensorView& x, const ConstTensorView& theta, const TensorView& out,
                const LrpeRotateOptions& options) {
  const SoftmaxAxis axis = CheckBoth(x, theta, "out", out, options);
  Run(Pass::kForward, x, theta, nullptr, out, options, axis);
}

void LrpeRotateBackward(const ConstTensorView& x, const ConstTensorView& theta,
                        const ConstTensorView& d_out, const TensorView& dx,
                        const LrpeRotateOptions& options) {
  const SoftmaxAxis axis = CheckBoth(x, theta, "dx", dx, options);
  CheckSameShape(kOp, "d_out", d_out, "x", x);
  CheckSameType(kOp, "d_out", d_out, "x", x);
  CheckView(kOp, "d_out", d_out);
  CheckApartOrSame(kOp, "dx", dx, "d_out", d_out);
  Run(Pass::kBackward, x, theta, &d_out, dx, options, axis);
}

}  // namespace attnops
