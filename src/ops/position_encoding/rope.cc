// rope: checks, then a call of the encoding kRotate for queries and keys together.
#include "attnops/rope.h"

#include <utility>
#include <vector>

#include "src/core/checks.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/ops/position_encoding/rotary.h"
#include "src/positions/grid.h"
#include "src/positions/theta.h"

namespace attnops {
namespace {

using position_encoding::Call;
using position_encoding::Problem;
using position_encoding::RotaryAxes;

constexpr char kOp[] = "rope";

// Queries and keys, or their gradients, and what they become.
struct Tensors {
  const ConstTensorView& q;
  const ConstTensorView& k;
  const char* q_name;
  const char* k_name;
};

// Where the angles come from: theta or cos_sin, the other null.
struct Source {
  const ConstTensorView* theta;
  const ConstTensorView* cos_sin;

  const char* Name() const { return theta != nullptr ? "theta" : "cos_sin"; }
  const ConstTensorView& View() const { return theta != nullptr ? *theta : *cos_sin; }
};

void CheckTensors(const Tensors& in, const RotaryAxes& axes, Layout layout) {
  CheckRank(kOp, in.q_name, in.q, 4, position_encoding::AxesOf(layout));
  CheckRank(kOp, in.k_name, in.k, 4, position_encoding::AxesOf(layout));
  CheckAxis(kOp, in.k_name, in.k, 0, "batches", in.q_name, in.q.shape(0));
  CheckAxis(kOp, in.k_name, in.k, axes.sequence, "tokens", in.q_name, in.q.shape(axes.sequence));
  CheckAxis(kOp, in.k_name, in.k, 3, "features", in.q_name, in.q.shape(3));
  CheckSameType(kOp, in.k_name, in.k, in.q_name, in.q);
}

void CheckCosSin(const ConstTensorView& cos_sin, const Tensors& in, std::int64_t rotated) {
  CheckRank(kOp, "cos_sin", cos_sin, 2, "(positions, rotary_dim)");
  if (cos_sin.dtype() != DType::kFloat32 && cos_sin.dtype() != in.q.dtype()) {
    Fail(kOp, "cos_sin must be float32 or have the type of ", in.q_name, ", ", Name(in.q.dtype()),
         "; it is ", Name(cos_sin.dtype()));
  }
  if (cos_sin.shape(1) != rotated) {
    Fail(kOp, "cos_sin has ", cos_sin.shape(1), " columns; ", rotated,
         " features are rotated (expected ", rotated, ")");
  }
}

// A call for both tensors, without results. `offset` keeps the offset of a call with cos_sin.
Call CheckCall(Pass pass, bool of_theta, const Tensors& in, const Source& source,
               const RopeOptions& options, std::int64_t& offset) {
  const RotaryAxes axes(options.rotary.layout, 4);
  CheckTensors(in, axes, options.rotary.layout);
  const std::int64_t features = in.q.shape(3);
  const std::int64_t rotated =
      position_encoding::CheckRotated(kOp, in.q_name, features, options.rotary);
  std::int64_t angle_count = rotated / 2;
  if (source.theta != nullptr) {
    CheckTheta(kOp, *source.theta, in.q_name, in.q.dtype(), 1);
    angle_count = source.theta->shape(1);
    CheckPairAngles(kOp, angle_count, in.q_name, rotated / 2);
  } else {
    CheckCosSin(*source.cos_sin, in, rotated);
  }
  Call call;
  position_encoding::CheckRotary(
      kOp, in.q.shape(0), in.q.shape(axes.sequence), rotated, options.offset, options.rotary,
      source.cos_sin != nullptr ? source.cos_sin->shape(0) : -1, call.angles);
  call.encoding = Encoding::kRotate;
  call.pass = pass;
  call.theta = of_theta;
  call.dtype = in.q.dtype();
  call.act = Activation::Kind::kNone;
  call.axis = SoftmaxAxis::kNone;
  call.angles.theta = source.theta;
  call.angles.cos_sin = source.cos_sin;
  if (source.cos_sin != nullptr && call.angles.ids.data == nullptr) {
    position_encoding::OffsetAsIds(options.offset, offset, call.angles);
  }
  call.pairs = {options.rotary.interleaved, rotated, features};
  position_encoding::SetProblem(call, axes, in.q, angle_count, call.problem);
  position_encoding::SetProblem(call, axes, in.k, angle_count, call.second);
  return call;
}

// A result has the shape and type of its input, is that input or apart from all.
void CheckResult(const char* name, const TensorView& result, const char* input_name,
                 const ConstTensorView& input, const char* other_name, const ConstTensorView& other,
                 const Source& source) {
  CheckSameShape(kOp, name, result, input_name, input);
  CheckSameType(kOp, name, result, input_name, input);
  CheckOutput(kOp, name, result);
  CheckApartOrSame(kOp, name, result, input_name, input);
  CheckApart(kOp, name, result, other_name, other);
  CheckApart(kOp, name, result, source.Name(), source.View());
}

void Run(Pass pass, const Tensors& in, const Source& source, const TensorView& q_out,
         const TensorView& k_out, const char* q_out_name, const char* k_out_name,
         const RopeOptions& options) {
  std::int64_t offset = 0;
  Call call = CheckCall(pass, false, in, source, options, offset);
  CheckResult(q_out_name, q_out, in.q_name, in.q, in.k_name, in.k, source);
  CheckResult(k_out_name, k_out, in.k_name, in.k, in.q_name, in.q, source);
  CheckApart(kOp, k_out_name, k_out, q_out_name, q_out);
  const RotaryAxes axes(options.rotary.layout, 4);
  call.problem.out = axes.RowsOf(q_out);
  call.second.out = axes.RowsOf(k_out);
  // Either may have no heads.
  call.both = call.second.H > 0;
  if (call.problem.H == 0) {
    std::swap(call.problem, call.second);
    call.both = false;
  }
  position_encoding::Run(call);
}

}  // namespace

void Rope(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& theta,
          const TensorView& q_out, const TensorView& k_out, const RopeOptions& options) {
  Run(Pass::kForward, {q, k, "q", "k"}, {&theta, nullptr}, q_out, k_out, "q_out", "k_out", options);
}

void RopeBackward(const ConstTensorView& dq_out, const ConstTensorView& dk_out,
                  const ConstTensorView& theta, const TensorView& dq, const TensorView& dk,
                  const RopeOptions& options) {
  Run(Pass::kBackward, {dq_out, dk_out, "dq_out", "dk_out"}, {&theta, nullptr}, dq, dk, "dq", "dk",
      options);
}

void RopeThetaGradient(const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& theta, const ConstTensorView& dq_out,
                       const ConstTensorView& dk_out, const TensorView& d_theta,
                       const RopeOptions& options) {
  std::int64_t offset = 0;
  Call call =
      CheckCall(Pass::kBackward, true, {q, k, "q", "k"}, {&theta, nullptr}, options, offset);
  CheckThetaGradient(kOp, d_theta, theta);
  const auto check = [&](const char* name, const ConstTensorView& gradient, const char* of_name,
                         const ConstTensorView& of) {
    CheckSameShape(kOp, name, gradient, of_name, of);
    CheckSameType(kOp, name, gradient, of_name, of);
    CheckView(kOp, name, gradient);
    CheckApart(kOp, "d_theta", d_theta, name, gradient);
    CheckApart(kOp, "d_theta", d_theta, of_name, of);
  };
  check("dq_out", dq_out, "q", q);
  check("dk_out", dk_out, "k", k);
  const RotaryAxes axes(options.rotary.layout, 4);
  call.problem.d_out = axes.RowsOf(dq_out);
  call.second.d_out = axes.RowsOf(dk_out);
  // The sum of both tensors' gradients.
  std::vector<float> of_keys(static_cast<std::size_t>(d_theta.size()));
  position_encoding::RunTheta(call, d_theta);
  call.problem = call.second;
  position_encoding::RunTheta(call, {of_keys.data(), d_theta.shape()});
  auto* sum = static_cast<float*>(d_theta.data());  // of one row
  for (std::size_t i = 0; i < of_keys.size(); ++i) sum[i] += of_keys[i];
}

void RopeWithCosSin(const ConstTensorView& q, const ConstTensorView& k,
                    const ConstTensorView& cos_sin, const TensorView& q_out,
                    const TensorView& k_out, const RopeOptions& options) {
  Run(Pass::kForward, {q, k, "q", "k"}, {nullptr, &cos_sin}, q_out, k_out, "q_out", "k_out",
      options);
}

void RopeBackwardWithCosSin(const ConstTensorView& dq_out, const ConstTensorView& dk_out,
                            const ConstTensorView& cos_sin, const TensorView& dq,
                            const TensorView& dk, const RopeOptions& options) {
  Run(Pass::kBackward, {dq_out, dk_out, "dq_out", "dk_out"}, {nullptr, &cos_sin}, dq, dk, "dq",
      "dk", options);
}

}  // namespace attnops
