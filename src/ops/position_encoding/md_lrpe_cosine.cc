// md_lrpe_cosine: checks, then a call of the encoding kCosine.
#include "attnops/md_lrpe_cosine.h"

#include "src/core/checks.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/positions/grid.h"
#include "src/positions/theta.h"

namespace attnops {
namespace {

using position_encoding::Call;
using position_encoding::Problem;

constexpr char kOp[] = "md_lrpe_cosine";

// x and the options; returns the axis of the softmax.
SoftmaxAxis CheckInput(const ConstTensorView& x, const MdLrpeCosineOptions& options) {
  if (x.rank() != 4) {
    Fail(kOp, "x must have 4 axes (B,H,L,D); its shape is ", ToString(x.shape()));
  }
  CheckView(kOp, "x", x);
  CheckGrid(kOp, options.shape);
  CheckGridTokens(kOp, "x", x.shape(2), options.shape, options.l);
  return CheckActivation(kOp, "act", "dim", options.act, 4, 2);
}

void CheckTable(const ConstTensorView& x, const ConstTensorView& table,
                const MdLrpeCosineOptions& options) {
  if (table.rank() != 4 || table.shape(3) != 2) {
    Fail(kOp, "table must have the shape (heads, positions, angles, 2); its shape is ",
         ToString(table.shape()));
  }
  CheckView(kOp, "table", table);
  if (table.dtype() != DType::kFloat32) {
    Fail(kOp, "table must be float32; it is ", Name(table.dtype()));
  }
  const std::int64_t positions = TableRows(options.shape);
  if (table.shape(1) != positions) {
    Fail(kOp, "table has ", table.shape(1), " positions; shape has ", positions);
  }
  if (table.shape(0) != x.shape(1) && table.shape(0) != 1) {
    Fail(kOp, "table has ", table.shape(0), " heads; x has ", x.shape(1), " (expected ", x.shape(1),
         " or 1)");
  }
  if (table.size() > 0 && table.shape(2) > 1 && table.stride(2) != 2) {
    Fail(kOp, "table must be contiguous in its last two axes; its strides are ",
         ToString(table.strides()));
  }
}

// `encoded` has twice the features of x.
void CheckEncoded(const char* name, const ConstTensorView& encoded, const ConstTensorView& x) {
  CheckShape(kOp, name, encoded, {x.shape(0), x.shape(1), x.shape(2), 2 * x.shape(3)});
  CheckSameType(kOp, name, encoded, "x", x);
  CheckView(kOp, name, encoded);
}

template <typename View, typename Pointer = decltype(std::declval<View>().data())>
StridedTensor<Pointer> RowsOf(const View& view) {
  return {view.data(), view.stride(0), view.stride(1), view.stride(2)};
}

// Where the angles come from: theta or table, the other null.
struct Source {
  const ConstTensorView* theta;
  const ConstTensorView* table;

  const char* Name() const { return table != nullptr ? "table" : "theta"; }
  const ConstTensorView& View() const { return table != nullptr ? *table : *theta; }
  std::int64_t PerAxis() const { return table != nullptr ? table->shape(2) : theta->shape(1); }
};

SoftmaxAxis CheckCall(const ConstTensorView& x, const Source& source,
                      const MdLrpeCosineOptions& options) {
  const SoftmaxAxis axis = CheckInput(x, options);
  if (source.table != nullptr) {
    CheckTable(x, *source.table, options);
    if (options.offset != 0) Fail(kOp, "offset must be 0 with a table; it is ", options.offset);
  } else {
    CheckTheta(kOp, *source.theta, "x", x.dtype(), x.shape(1));
  }
  CheckAngles(kOp, source.Name(), source.PerAxis(), options.shape, "x", x.shape(3), "features");
  CheckGridOffset(kOp, options.shape, options.offset);
  return axis;
}

Call CallOf(Pass pass, const ConstTensorView& x, const Source& source, const TensorView& out,
            const MdLrpeCosineOptions& options, SoftmaxAxis axis) {
  Call call;
  call.encoding = Encoding::kCosine;
  call.pass = pass;
  call.dtype = x.dtype();
  call.act = options.act.kind;
  call.axis = axis;
  call.angles.theta = source.theta;
  call.angles.table = source.table;
  call.angles.shape = options.shape;
  call.angles.offset = options.offset;
  call.angles.per_axis = source.PerAxis();
  call.pairs = {false, x.shape(3), x.shape(3)};
  Problem& problem = call.problem;
  problem.x = RowsOf(x);
  problem.d_out = RowsOf(x);
  problem.out = RowsOf(out);
  problem.B = x.shape(0);
  problem.H = x.shape(1);
  problem.N = x.shape(2);
  problem.part = x.shape(3);
  problem.tail = 0;
  problem.encoded = x.shape(3);
  problem.prefix = options.l;
  return call;
}

void Forward(const ConstTensorView& x, const Source& source, const TensorView& out,
             const MdLrpeCosineOptions& options) {
  const SoftmaxAxis axis = CheckCall(x, source, options);
  CheckEncoded("out", out, x);
  CheckOutput(kOp, "out", out);
  CheckApart(kOp, "out", out, "x", x);
  CheckApart(kOp, "out", out, source.Name(), source.View());
  position_encoding::Run(CallOf(Pass::kForward, x, source, out, options, axis));
}

void Backward(const ConstTensorView& x, const Source& source, const ConstTensorView& d_out,
              const TensorView& dx, const MdLrpeCosineOptions& options) {
  const SoftmaxAxis axis = CheckCall(x, source, options);
  CheckEncoded("d_out", d_out, x);
  CheckSameShape(kOp, "dx", dx, "x", x);
  CheckSameType(kOp, "dx", dx, "x", x);
  CheckOutput(kOp, "dx", dx);
  CheckApartOrSame(kOp, "dx", dx, "x", x);
  CheckApart(kOp, "dx", dx, "d_out", d_out);
  CheckApart(kOp, "dx", dx, source.Name(), source.View());
  Call call = CallOf(Pass::kBackward, x, source, dx, options, axis);
  call.problem.d_out = RowsOf(d_out);
  position_encoding::Run(call);
}

}  // namespace

void MdLrpeCosineThetaGradient(const ConstTensorView& x, const ConstTensorView& theta,
                               const ConstTensorView& d_out, const TensorView& d_theta,
                               const MdLrpeCosineOptions& options) {
  const Source source{&theta, nullptr};
  const SoftmaxAxis axis = CheckCall(x, source, options);
  CheckEncoded("d_out", d_out, x);
  CheckThetaGradient(kOp, d_theta, theta);
  CheckApart(kOp, "d_theta", d_theta, "x", x);
  CheckApart(kOp, "d_theta", d_theta, "d_out", d_out);
  Call call = CallOf(Pass::kBackward, x, source, {nullptr, x.dtype(), x.shape(), x.strides()},
                     options, axis);
  call.theta = true;
  call.problem.d_out = RowsOf(d_out);
  position_encoding::RunTheta(call, d_theta);
}

void MdLrpeCosine(const ConstTensorView& x, const ConstTensorView& theta, const TensorView& out,
                  const MdLrpeCosineOptions& options) {
  Forward(x, {&theta, nullptr}, out, options);
}

void MdLrpeCosineBackward(const ConstTensorView& x, const ConstTensorView& theta,
                          const ConstTensorView& d_out, const TensorView& dx,
                          const MdLrpeCosineOptions& options) {
  Backward(x, {&theta, nullptr}, d_out, dx, options);
}

void MdLrpeCosineWithTable(const ConstTensorView& x, const ConstTensorView& table,
                           const TensorView& out, const MdLrpeCosineOptions& options) {
  Forward(x, {nullptr, &table}, out, options);
}

void MdLrpeCosineBackwardWithTable(const ConstTensorView& x, const ConstTensorView& table,
                                   const ConstTensorView& d_out, const TensorView& dx,
                                   const MdLrpeCosineOptions& options) {
  Backward(x, {nullptr, &table}, d_out, dx, options);
}

}  // namespace attnops
