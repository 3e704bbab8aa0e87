// The halves of flao and flao_fal: KV of keys and values, and the output of queries and gates.
#include <optional>

#include "attnops/flao.h"
#include "attnops/flao_fal.h"
#include "src/core/checks.h"
#include "src/ops/linear_attention/arguments.h"
#include "src/positions/grid.h"
#include "src/positions/theta.h"

namespace attnops {
namespace {

using linear_attention::Call;
using linear_attention::Half;
using linear_attention::Operand;
using linear_attention::Pair;

// The tokens of a half are within the grid.
void CheckTokens(const char* op, const Pair& inputs, const FlaoFalOptions& options) {
  const std::int64_t tokens = inputs.x.shape(2);
  if (options.start < 0) Fail(op, "start must not be negative; it is ", options.start);
  if (options.l < 0) Fail(op, "l must not be negative; it is ", options.l);
  const Dims& shape = options.shape;
  if (shape.rank() == 0) return;
  CheckGrid(op, shape);
  // Tokens that are left behind the grid, without a product that could overflow.
  std::int64_t last = options.start + tokens - options.l - 1;
  for (int axis = shape.rank() - 1; axis >= 0 && last >= 0; --axis) {
    last = shape[axis] > 0 ? last / shape[axis] : 1;
  }
  if (last > 0) {
    Fail(op, inputs.x_name, " has ", tokens, " tokens from number ", options.start,
         " on; the sequence has l = ", options.l, " and those of shape ", ToString(shape));
  }
}

void CheckLrpe(const char* op, const Pair& inputs, const FlaoFalOptions& options) {
  if (options.lrpe == Lrpe::kNone) {
    if (options.theta) Fail(op, "theta must be absent without an encoding (lrpe)");
    if (options.shape.rank() > 0) {
      Fail(op, "shape must be absent without an encoding; it is ", ToString(options.shape));
    }
    return;
  }
  if (options.lrpe != Lrpe::kCosine && options.lrpe != Lrpe::kRotate) {
    Fail(op, "lrpe is no known encoding (", static_cast<int>(options.lrpe), ")");
  }
  const bool rotate = options.lrpe == Lrpe::kRotate;
  if (!options.theta) Fail(op, "theta is missing; the encoding (lrpe) needs it");
  const ConstTensorView& theta = *options.theta;
  const std::int64_t features = inputs.x.shape(3);
  CheckTheta(op, theta, inputs.x_name, inputs.x.dtype(), inputs.x.shape(1));
  if (rotate && features % 2 != 0) {
    Fail(op, inputs.x_name, " must have an even number of features; it has ", features);
  }
  CheckTokens(op, inputs, options);
  CheckGridOffset(op, options.shape, options.offset);
  if (options.shape.rank() <= 1) CheckOffset(op, options.offset + options.start);
  if (rotate && options.shape.rank() <= 1) {
    CheckPairAngles(op, theta.shape(1), inputs.x_name, features / 2);
  } else {
    CheckAngles(op, "theta", theta.shape(1), options.shape.rank() > 0 ? options.shape : Dims{1},
                inputs.x_name, rotate ? features / 2 : features, rotate ? "pairs" : "features");
  }
}

// A half with its activations.
struct Work {
  const char* op;
  Half half;
  Pair inputs;
  const FlaoFalOptions& options;
  SoftmaxAxis x_axis = SoftmaxAxis::kNone, y_axis = SoftmaxAxis::kNone;

  bool keys() const { return half == Half::kKeys; }
  const Activation& x_act() const { return keys() ? options.k_act : options.q_act; }
  const Activation& y_act() const { return keys() ? options.v_act : options.g_act; }
  std::int64_t inner() const { return (options.lrpe == Lrpe::kCosine ? 2 : 1) * inputs.x.shape(3); }
};

Work WorkOf(const char* op, Half half, const Pair& inputs, const FlaoFalOptions& options) {
  Work work{op, half, inputs, options};
  linear_attention::CheckHalf(op, inputs);
  const bool keys = work.keys();
  work.x_axis =
      CheckActivation(op, keys ? "k_act" : "q_act", keys ? "k_dim" : "q_dim", work.x_act(), 4, 2);
  work.y_axis =
      CheckActivation(op, keys ? "v_act" : "g_act", keys ? "v_dim" : "g_dim", work.y_act(), 4, 2);
  CheckLrpe(op, inputs, options);
  return work;
}

void SetStages(const Work& work, Call& call) {
  linear_attention::Problem& problem = call.problem;
  Operand& x = work.keys() ? problem.k : problem.q;
  Operand& y = work.keys() ? problem.v : problem.g;
  x.stage.act = work.x_act().kind;
  x.stage.axis = work.x_axis;
  y.stage.act = work.y_act().kind;
  y.stage.axis = work.y_axis;
  const FlaoFalOptions& options = work.options;
  if (options.lrpe == Lrpe::kNone) return;
  // The other half, without tokens, is encoded too: the rows of KV are the same.
  Operand& other = work.keys() ? problem.q : problem.k;
  linear_attention::SetEncoding(options, work.inputs.x.shape(2), options.offset, options.start,
                                x.stage);
  linear_attention::SetEncoding(options, 0, 0, options.l, other.stage);
  problem.inner_parts = 2;
  problem.inner_part = x.stage.part;
}

void SetTheta(const Work& work, const std::optional<TensorView>& d_theta, const TensorView& dx,
              const TensorView& dy, const ConstTensorView& d_out, Call& call) {
  if (!d_theta) return;
  if (!work.options.theta) Fail(work.op, "d_theta must be absent without theta");
  CheckThetaGradient(work.op, *d_theta, *work.options.theta);
  CheckApart(work.op, "d_theta", *d_theta, work.inputs.x_name, work.inputs.x);
  CheckApart(work.op, "d_theta", *d_theta, work.inputs.y_name, work.inputs.y);
  CheckApart(work.op, "d_theta", *d_theta, work.keys() ? "d_kv" : "d_out", d_out);
  CheckApart(work.op, "d_theta", *d_theta, work.keys() ? "dk" : "dq", dx);
  CheckApart(work.op, "d_theta", *d_theta, work.keys() ? "dv" : "dg", dy);
  SetZero(*d_theta);
  call.d_theta = d_theta;
}

void Forward(const Work& work, const ConstTensorView* kv, const TensorView& out,
             std::optional<Precision> precision) {
  Call call = linear_attention::HalfForwardCall(work.op, work.half, work.inputs, kv, out, precision,
                                                work.inner());
  SetStages(work, call);
  linear_attention::Forward(call);
}

void Backward(const Work& work, const ConstTensorView* kv, const ConstTensorView& d_out,
              const TensorView& dx, const TensorView& dy, const TensorView* d_kv,
              std::optional<Precision> precision, const std::optional<TensorView>& d_theta) {
  Call call = linear_attention::HalfBackwardCall(work.op, work.half, work.inputs, kv, d_out, dx, dy,
                                                 d_kv, precision, work.inner());
  SetTheta(work, d_theta, dx, dy, d_out, call);
  SetStages(work, call);
  linear_attention::Backward(call);
}

}  // namespace

void FlaoKv(const ConstTensorView& k, const ConstTensorView& v, const TensorView& kv,
            std::optional<Precision> precision) {
  Forward(WorkOf("flao_kv", Half::kKeys, {"k", k, "v", v}, {}), nullptr, kv, precision);
}

void FlaoKvBackward(const ConstTensorView& k, const ConstTensorView& v, const ConstTensorView& d_kv,
                    const TensorView& dk, const TensorView& dv,
                    std::optional<Precision> precision) {
  Backward(WorkOf("flao_kv", Half::kKeys, {"k", k, "v", v}, {}), nullptr, d_kv, dk, dv, nullptr,
           precision, {});
}

void FlaoOut(const ConstTensorView& q, const ConstTensorView& kv, const ConstTensorView& g,
             const TensorView& out, std::optional<Precision> precision) {
  Forward(WorkOf("flao_out", Half::kQueries, {"q", q, "g", g}, {}), &kv, out, precision);
}

void FlaoOutBackward(const ConstTensorView& q, const ConstTensorView& kv, const ConstTensorView& g,
                     const ConstTensorView& d_out, const TensorView& dq, const TensorView& d_kv,
                     const TensorView& dg, std::optional<Precision> precision) {
  Backward(WorkOf("flao_out", Half::kQueries, {"q", q, "g", g}, {}), &kv, d_out, dq, dg, &d_kv,
           precision, {});
}

void FlaoFalKv(const ConstTensorView& k, const ConstTensorView& v, const TensorView& kv,
               const FlaoFalOptions& options, std::optional<Precision> precision) {
  Forward(WorkOf("flao_fal_kv", Half::kKeys, {"k", k, "v", v}, options), nullptr, kv, precision);
}

void FlaoFalKvBackward(const ConstTensorView& k, const ConstTensorView& v,
                       const ConstTensorView& d_kv, const TensorView& dk, const TensorView& dv,
                       const FlaoFalOptions& options, std::optional<Precision> precision,
                       const std::optional<TensorView>& d_theta) {
  Backward(WorkOf("flao_fal_kv", Half::kKeys, {"k", k, "v", v}, options), nullptr, d_kv, dk, dv,
           nullptr, precision, d_theta);
}

void FlaoFalOut(const ConstTensorView& q, const ConstTensorView& kv, const ConstTensorView& g,
                const TensorView& out, const FlaoFalOptions& options,
                std::optional<Precision> precision) {
  Forward(WorkOf("flao_fal_out", Half::kQueries, {"q", q, "g", g}, options), &kv, out, precision);
}

void FlaoFalOutBackward(const ConstTensorView& q, const ConstTensorView& kv,
                        const ConstTensorView& g, const ConstTensorView& d_out,
                        const TensorView& dq, const TensorView& d_kv, const TensorView& dg,
                        const FlaoFalOptions& options, std::optional<Precision> precision,
                        const std::optional<TensorView>& d_theta) {
  Backward(WorkOf("flao_fal_out", Half::kQueries, {"q", q, "g", g}, options), &kv, d_out, dq, dg,
           &d_kv, precision, d_theta);
}

}  // namespace attnops
