#include "src/ops/linear_attention/arguments.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/core/checks.h"
#include "src/core/precision.h"

namespace attnops::linear_attention {
namespace {

// A kept tensor: its shape and type.
void CheckKept(const char* op, const char* name, const ConstTensorView& view, const Dims& shape,
               DType dtype) {
  CheckShape(op, name, view, shape);
  if (view.dtype() != dtype) {
    Fail(op, name, " must be ", Name(dtype), "; it is ", Name(view.dtype()));
  }
  CheckView(op, name, view);
}

Dims KvShape(const Inputs& inputs, std::int64_t inner) {
  return {inputs.q.shape(0), inputs.q.shape(1), inner, inputs.v.shape(3)};
}
DType QkvType(const Inputs& inputs) {
  const DType dtype = inputs.q.dtype();
  return dtype == DType::kFloat16 ? DType::kFloat32 : dtype;
}

void CheckLike(const char* op, const char* name, const TensorView& view, const char* other_name,
               const ConstTensorView& other) {
  CheckSameShape(op, name, view, other_name, other);
  CheckSameType(op, name, view, other_name, other);
  CheckOutput(op, name, view);
}

// A tensor and its name in messages.
template <typename View>
struct Named {
  Named(const char* its_name, const View& its_view) : name(its_name), view(&its_view) {}

  const char* name;
  const View* view;
};

// No output shares memory with an input, with `others` that are read, or with another output.
void CheckAllApart(const char* op, const std::vector<Named<TensorView>>& outputs,
                   const Inputs& inputs, std::vector<Named<ConstTensorView>> others = {}) {
  others.emplace_back("q", inputs.q);
  others.emplace_back("k", inputs.k);
  others.emplace_back("v", inputs.v);
  others.emplace_back("g", inputs.g);
  if (inputs.theta != nullptr) others.emplace_back("theta", *inputs.theta);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView& view = *outputs[i].view;
    for (const auto& other : others) {
      CheckApart(op, outputs[i].name, view, other.name, *other.view);
    }
    for (std::size_t j = 0; j < i; ++j) {
      CheckApart(op, outputs[i].name, view, outputs[j].name, *outputs[j].view);
    }
  }
}

Input InputOf(const ConstTensorView& view) {
  return {view.data(), view.stride(0), view.stride(1), view.stride(2)};
}
Output OutputOf(const TensorView& view) {
  return {view.data(), view.stride(0), view.stride(1), view.stride(2)};
}

Operand OperandOf(const ConstTensorView& view, int index) {
  Operand operand{InputOf(view), {}, {}, index};
  operand.stage.part = view.shape(3);
  return operand;
}

Call CallOf(const Inputs& inputs, Precision precision) {
  Call call;
  call.precision = precision;
  call.dtype = inputs.q.dtype();
  Problem& problem = call.problem;
  problem.B = inputs.q.shape(0);
  problem.H = inputs.q.shape(1);
  problem.N = inputs.q.shape(2);
  problem.M = inputs.k.shape(2);
  problem.D = inputs.q.shape(3);
  problem.E = inputs.v.shape(3);
  problem.inner_part = problem.D;
  problem.q = OperandOf(inputs.q, 0);
  problem.k = OperandOf(inputs.k, 1);
  problem.v = OperandOf(inputs.v, 2);
  problem.g = OperandOf(inputs.g, 3);
  return call;
}

}  // namespace

void CheckInputs(const char* op, const Inputs& inputs) {
  const ConstTensorView &q = inputs.q, &k = inputs.k, &v = inputs.v, &g = inputs.g;
  CheckRank(op, "q", q, 4, "(B,H,N,D)");
  CheckRank(op, "k", k, 4, "(B,H,M,D)");
  CheckRank(op, "v", v, 4, "(B,H,M,E)");
  CheckRank(op, "g", g, 4, "(B,H,N,E)");
  const std::pair<const char*, const ConstTensorView&> others[] = {{"k", k}, {"v", v}, {"g", g}};
  for (const auto& [name, view] : others) {
    CheckAxis(op, name, view, 0, "batches", "q", q.shape(0));
    CheckAxis(op, name, view, 1, "heads", "q", q.shape(1));
  }
  CheckAxis(op, "k", k, 3, "features", "q", q.shape(3));
  CheckAxis(op, "v", v, 2, "tokens", "k", k.shape(2));
  CheckAxis(op, "g", g, 2, "tokens", "q", q.shape(2));
  CheckAxis(op, "g", g, 3, "features", "v", v.shape(3));
  for (const auto& [name, view] : others) CheckSameType(op, name, view, "q", q);
}

Call ForwardCall(const char* op, const Inputs& inputs, const TensorView& out,
                 const FlaoOptions& keep, std::int64_t inner) {
  const Precision precision = PrecisionOf(op, keep.precision, inputs.q.dtype());
  CheckLike(op, "out", out, "g", inputs.g);
  std::vector<Named<TensorView>> outputs = {{"out", out}};
  Call call = CallOf(inputs, precision);
  call.problem.out = OutputOf(out);
  if (keep.kv) {
    CheckKept(op, "kv", *keep.kv, KvShape(inputs, inner), DType::kFloat32);
    CheckOutput(op, "kv", *keep.kv);
    outputs.emplace_back("kv", *keep.kv);
    call.problem.kv = OutputOf(*keep.kv);
  }
  if (keep.qkv) {
    CheckKept(op, "qkv", *keep.qkv, inputs.g.shape(), QkvType(inputs));
    CheckOutput(op, "qkv", *keep.qkv);
    outputs.emplace_back("qkv", *keep.qkv);
    call.problem.qkv = OutputOf(*keep.qkv);
  }
  CheckAllApart(op, outputs, inputs);
  return call;
}

Call BackwardCall(const char* op, const Inputs& inputs, const ConstTensorView& d_out,
                  const Gradients& gradients, const FlaoKept& kept, std::int64_t inner) {
  const Precision precision = PrecisionOf(op, kept.precision, inputs.q.dtype());
  CheckSameShape(op, "d_out", d_out, "g", inputs.g);
  CheckSameType(op, "d_out", d_out, "g", inputs.g);
  CheckView(op, "d_out", d_out);
  CheckLike(op, "dq", gradients.dq, "q", inputs.q);
  CheckLike(op, "dk", gradients.dk, "k", inputs.k);
  CheckLike(op, "dv", gradients.dv, "v", inputs.v);
  CheckLike(op, "dg", gradients.dg, "g", inputs.g);
  std::vector<Named<ConstTensorView>> others = {{"d_out", d_out}};
  Call call = CallOf(inputs, precision);
  Problem& problem = call.problem;
  problem.d_out = InputOf(d_out);
  problem.q.dx = OutputOf(gradients.dq);
  problem.k.dx = OutputOf(gradients.dk);
  problem.v.dx = OutputOf(gradients.dv);
  problem.g.dx = OutputOf(gradients.dg);
  if (kept.kv) {
    CheckKept(op, "kv", *kept.kv, KvShape(inputs, inner), DType::kFloat32);
    others.emplace_back("kv", *kept.kv);
    problem.kept_kv = InputOf(*kept.kv);
  }
  if (kept.qkv) {
    CheckKept(op, "qkv", *kept.qkv, inputs.g.shape(), QkvType(inputs));
    others.emplace_back("qkv", *kept.qkv);
    problem.kept_qkv = InputOf(*kept.qkv);
  }
  CheckAllApart(
      op, {{"dq", gradients.dq}, {"dk", gradients.dk}, {"dv", gradients.dv}, {"dg", gradients.dg}},
      inputs, std::move(others));
  return call;
}

namespace {

// The views of a call in which the other half has no tokens.
struct HalfViews {
  HalfViews(Half half, const Pair& inputs)
      : no_x(nullptr, inputs.x.dtype(),
             {inputs.x.shape(0), inputs.x.shape(1), 0, inputs.x.shape(3)}),
        no_y(nullptr, inputs.y.dtype(),
             {inputs.y.shape(0), inputs.y.shape(1), 0, inputs.y.shape(3)}),
        views(half == Half::kKeys ? Inputs{no_x, inputs.x, inputs.y, no_y}
                                  : Inputs{inputs.x, no_x, no_y, inputs.y}) {}

  ConstTensorView no_x, no_y;
  Inputs views;
};

void CheckPairApart(const char* op, const std::vector<Named<TensorView>>& outputs,
                    const std::vector<Named<ConstTensorView>>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const auto& input : inputs) {
      CheckApart(op, outputs[i].name, *outputs[i].view, input.name, *input.view);
    }
    for (std::size_t j = 0; j < i; ++j) {
      CheckApart(op, outputs[i].name, *outputs[i].view, outputs[j].name, *outputs[j].view);
    }
  }
}

}  // namespace

void CheckHalf(const char* op, const Pair& inputs) {
  CheckRank(op, inputs.x_name, inputs.x, 4, "(B,H,tokens,D)");
  CheckRank(op, inputs.y_name, inputs.y, 4, "(B,H,tokens,E)");
  CheckAxis(op, inputs.y_name, inputs.y, 0, "batches", inputs.x_name, inputs.x.shape(0));
  CheckAxis(op, inputs.y_name, inputs.y, 1, "heads", inputs.x_name, inputs.x.shape(1));
  CheckAxis(op, inputs.y_name, inputs.y, 2, "tokens", inputs.x_name, inputs.x.shape(2));
  CheckSameType(op, inputs.y_name, inputs.y, inputs.x_name, inputs.x);
}

Call HalfForwardCall(const char* op, Half half, const Pair& inputs, const ConstTensorView* kv,
                     const TensorView& out, std::optional<Precision> precision,
                     std::int64_t inner) {
  const HalfViews half_views(half, inputs);
  const Inputs& views = half_views.views;
  Call call = CallOf(views, PrecisionOf(op, precision, inputs.x.dtype()));
  call.half = half;
  std::vector<Named<ConstTensorView>> read = {{inputs.x_name, inputs.x}, {inputs.y_name, inputs.y}};
  const Dims kv_shape = KvShape(views, inner);
  if (half == Half::kKeys) {
    CheckKept(op, "kv", out, kv_shape, DType::kFloat32);
    CheckOutput(op, "kv", out);
    call.problem.kv = OutputOf(out);
    CheckPairApart(op, {{"kv", out}}, read);
    return call;
  }
  CheckKept(op, "kv", *kv, kv_shape, DType::kFloat32);
  CheckLike(op, "out", out, inputs.y_name, inputs.y);
  read.emplace_back("kv", *kv);
  call.problem.kept_kv = InputOf(*kv);
  call.problem.out = OutputOf(out);
  CheckPairApart(op, {{"out", out}}, read);
  return call;
}

Call HalfBackwardCall(const char* op, Half half, const Pair& inputs, const ConstTensorView* kv,
                      const ConstTensorView& d_out, const TensorView& dx, const TensorView& dy,
                      const TensorView* d_kv, std::optional<Precision> precision,
                      std::int64_t inner) {
  const HalfViews half_views(half, inputs);
  const Inputs& views = half_views.views;
  const bool keys = half == Half::kKeys;
  const char* dx_name = keys ? "dk" : "dq";
  const char* dy_name = keys ? "dv" : "dg";
  Call call = CallOf(views, PrecisionOf(op, precision, inputs.x.dtype()));
  call.half = half;
  const Dims kv_shape = KvShape(views, inner);
  std::vector<Named<ConstTensorView>> read = {{inputs.x_name, inputs.x}, {inputs.y_name, inputs.y}};
  std::vector<Named<TensorView>> written = {{dx_name, dx}, {dy_name, dy}};
  Problem& problem = call.problem;
  if (keys) {
    CheckKept(op, "d_kv", d_out, kv_shape, DType::kFloat32);
    read.emplace_back("d_kv", d_out);
    problem.kept_kv = InputOf(d_out);
  } else {
    CheckKept(op, "kv", *kv, kv_shape, DType::kFloat32);
    CheckSameShape(op, "d_out", d_out, inputs.y_name, inputs.y);
    CheckSameType(op, "d_out", d_out, inputs.y_name, inputs.y);
    CheckView(op, "d_out", d_out);
    CheckKept(op, "d_kv", *d_kv, kv_shape, DType::kFloat32);
    CheckOutput(op, "d_kv", *d_kv);
    read.emplace_back("kv", *kv);
    read.emplace_back("d_out", d_out);
    written.emplace_back("d_kv", *d_kv);
    problem.kept_kv = InputOf(*kv);
    problem.d_out = InputOf(d_out);
    problem.kv = OutputOf(*d_kv);
  }
  CheckLike(op, dx_name, dx, inputs.x_name, inputs.x);
  CheckLike(op, dy_name, dy, inputs.y_name, inputs.y);
  (keys ? problem.k : problem.q).dx = OutputOf(dx);
  (keys ? problem.v : problem.g).dx = OutputOf(dy);
  CheckPairApart(op, written, read);
  return call;
}

void SetEncoding(const FlaoFalOptions& options, std::int64_t tokens, std::int64_t offset,
                 std::int64_t start, Stage& stage) {
  const ConstTensorView& theta = *options.theta;
  const bool rotate = options.lrpe == Lrpe::kRotate;
  const bool grid = options.shape.rank() > 1;
  stage.encodes = true;
  stage.encoding = rotate ? Encoding::kRotate : Encoding::kCosine;
  if (rotate) {
    stage.parts = 2;
    stage.part /= 2;
  }
  const bool shared = rotate && !grid && theta.shape(1) == 1;
  stage.encoded = rotate && !grid && !shared ? theta.shape(1) : stage.part;
  // A negative prefix in a grid: the first token is not the grid's first.
  stage.prefix =
      std::min(grid ? options.l - start : std::max<std::int64_t>(options.l - start, 0), tokens);
  stage.source.theta = &theta;
  stage.source.shape = grid ? options.shape : Dims{tokens - stage.prefix};
  stage.source.offset = grid ? offset : offset + std::max<std::int64_t>(start - options.l, 0);
  stage.source.per_axis = grid ? theta.shape(1) : stage.part;
}

}  // namespace attnops::linear_attention
