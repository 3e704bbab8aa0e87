// flao_fal: gated linear attention with a stage for each tensor.
#include "attnops/flao_fal.h"

#include <utility>

#include "src/core/checks.h"
#include "src/ops/linear_attention/arguments.h"
#include "src/positions/grid.h"
#include "src/positions/theta.h"

namespace attnops {
namespace {

using linear_attention::Call;
using linear_attention::Inputs;
using linear_attention::Stage;

constexpr char kOp[] = "flao_fal";

// Without an encoding its arguments have no meaning.
void CheckNoLrpe(const FlaoFalOptions& options) {
  if (options.theta) Fail(kOp, "theta must be absent without an encoding (lrpe)");
  if (options.shape.rank() > 0) {
    Fail(kOp, "shape must be absent without an encoding; it is ", ToString(options.shape));
  }
  if (options.offset != 0) {
    Fail(kOp, "offset must be 0 without an encoding; it is ", options.offset);
  }
  if (options.l != 0) Fail(kOp, "l must be 0 without an encoding; it is ", options.l);
}

void CheckLrpe(const Inputs& inputs, const FlaoFalOptions& options) {
  if (options.lrpe == Lrpe::kNone) return CheckNoLrpe(options);
  if (options.lrpe != Lrpe::kCosine && options.lrpe != Lrpe::kRotate) {
    Fail(kOp, "lrpe is no known encoding (", static_cast<int>(options.lrpe), ")");
  }
  const ConstTensorView& q = inputs.q;
  const bool rotate = options.lrpe == Lrpe::kRotate;
  if (!options.theta) Fail(kOp, "theta is missing; the encoding (lrpe) needs it");
  const ConstTensorView& theta = *options.theta;
  CheckTheta(kOp, theta, "q", q.dtype(), q.shape(1));
  if (rotate && q.shape(3) % 2 != 0) {
    Fail(kOp, "q must have an even number of features; it has ", q.shape(3));
  }
  if (options.shape.rank() > 0) {
    CheckGrid(kOp, options.shape);
    CheckGridTokens(kOp, "q", q.shape(2), options.shape, options.l);
    CheckGridTokens(kOp, "k", inputs.k.shape(2), options.shape, options.l);
  } else if (options.l < 0 || options.l > q.shape(2) || options.l > inputs.k.shape(2)) {
    Fail(kOp, "l must be from 0 to the number of tokens; it is ", options.l, ", q has ", q.shape(2),
         " tokens, k has ", inputs.k.shape(2));
  }
  CheckGridOffset(kOp, options.shape, options.offset);
  if (rotate && options.shape.rank() <= 1) {
    CheckPairAngles(kOp, theta.shape(1), "q", q.shape(3) / 2);
  } else {
    CheckAngles(kOp, "theta", theta.shape(1), options.shape.rank() > 0 ? options.shape : Dims{1},
                "q", rotate ? q.shape(3) / 2 : q.shape(3), rotate ? "pairs" : "features");
  }
}

struct Axes {
  SoftmaxAxis q, k, v, g;
};

// All arguments that flao does not have, after CheckInputs.
Axes CheckOptions(const Inputs& inputs, const FlaoFalOptions& options) {
  const Axes axes{CheckActivation(kOp, "q_act", "q_dim", options.q_act, 4, 2),
                  CheckActivation(kOp, "k_act", "k_dim", options.k_act, 4, 2),
                  CheckActivation(kOp, "v_act", "v_dim", options.v_act, 4, 2),
                  CheckActivation(kOp, "g_act", "g_dim", options.g_act, 4, 2)};
  CheckLrpe(inputs, options);
  if (options.start != 0) Fail(kOp, "start must be 0; it is ", options.start);
  return axes;
}

// Features of an encoded row.
std::int64_t InnerOf(const ConstTensorView& q, const FlaoFalOptions& options) {
  return options.lrpe == Lrpe::kCosine ? 2 * q.shape(3) : q.shape(3);
}

void SetStages(const FlaoFalOptions& options, const Axes& axes, Call& call) {
  linear_attention::Problem& problem = call.problem;
  const auto activate = [](const Activation& act, SoftmaxAxis axis, Stage& stage) {
    stage.act = act.kind;
    stage.axis = axis;
  };
  activate(options.q_act, axes.q, problem.q.stage);
  activate(options.k_act, axes.k, problem.k.stage);
  activate(options.v_act, axes.v, problem.v.stage);
  activate(options.g_act, axes.g, problem.g.stage);
  if (options.lrpe == Lrpe::kNone) return;
  linear_attention::SetEncoding(options, problem.N, options.offset, 0, problem.q.stage);
  linear_attention::SetEncoding(options, problem.M, 0, 0, problem.k.stage);
  problem.inner_parts = 2;
  problem.inner_part = problem.q.stage.part;
}

}  // namespace

void FlaoFal(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const ConstTensorView& g, const TensorView& out, const FlaoFalOptions& options,
             const FlaoOptions& keep) {
  const Inputs inputs{q, k, v, g, options.theta ? &*options.theta : nullptr};
  linear_attention::CheckInputs(kOp, inputs);
  const Axes axes = CheckOptions(inputs, options);
  Call call = linear_attention::ForwardCall(kOp, inputs, out, keep, InnerOf(q, options));
  SetStages(options, axes, call);
  linear_attention::Forward(call);
}

void FlaoFalBackward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const ConstTensorView& g, const ConstTensorView& d_out, const TensorView& dq,
                     const TensorView& dk, const TensorView& dv, const TensorView& dg,
                     const FlaoFalOptions& options, const FlaoKept& kept,
                     const std::optional<TensorView>& d_theta) {
  const Inputs inputs{q, k, v, g, options.theta ? &*options.theta : nullptr};
  linear_attention::CheckInputs(kOp, inputs);
  const Axes axes = CheckOptions(inputs, options);
  Call call = linear_attention::BackwardCall(kOp, inputs, d_out, {dq, dk, dv, dg}, kept,
                                             InnerOf(q, options));
  if (d_theta) {
    if (!options.theta) Fail(kOp, "d_theta must be absent without theta");
    CheckThetaGradient(kOp, *d_theta, *options.theta);
    const std::pair<const char*, ConstTensorView> others[] = {
        {"q", q},   {"k", k},   {"v", v},   {"g", g},  {"d_out", d_out},
        {"dq", dq}, {"dk", dk}, {"dv", dv}, {"dg", dg}};
    for (const auto& other : others) {
      CheckApart(kOp, "d_theta", *d_theta, other.first, other.second);
    }
    SetZero(*d_theta);
    call.d_theta = d_theta;
  }
  SetStages(options, axes, call);
  linear_attention::Backward(call);
}

}  // namespace attnops
