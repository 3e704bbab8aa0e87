// lrpe_rotate, rope, md_lrpe_cosine and lrpe_table as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

// The arguments of lrpe_rotate and rope that say positions and pairs; the tensors they point to are
// the caller's.
struct Rotary {
  std::optional<Tensor> positions, offsets;
  std::optional<std::int64_t> rotary_dim;
  bool interleaved;
  std::optional<std::vector<std::int64_t>> sections;
  bool sections_interleaved;
  double scale;
  std::int64_t layout;

  RotaryOptions Options(const char* op) const {
    RotaryOptions options;
    if (positions) options.positions = IntegersOf(op, "positions", *positions);
    if (offsets) options.offsets = IntegersOf(op, "offset", *offsets);
    options.rotary_dim = rotary_dim;
    options.interleaved = interleaved;
    if (sections) options.sections = DimsOf(op, "sections", *sections);
    options.sections_interleaved = sections_interleaved;
    options.scale = static_cast<float>(scale);
    options.layout = ChoiceOf(op, "layout", layout, Layout::kBhnd);
    return options;
  }
};

constexpr char kRotate[] = "lrpe_rotate";

Tensor LrpeRotate(const Tensor& x, const Tensor& theta, std::int64_t offset, std::int64_t act,
                  std::optional<std::int64_t> dim, std::optional<Tensor> positions,
                  std::optional<Tensor> offsets, std::optional<std::int64_t> rotary_dim,
                  bool interleaved, std::optional<std::vector<std::int64_t>> sections,
                  bool sections_interleaved, double scale, std::int64_t layout) {
  const Activation activation = ActivationOf(kRotate, "act", act, "dim", dim);
  const Tensor x_read = Readable(kRotate, "x", x);
  const Tensor theta_read = Readable(kRotate, "theta", theta);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const LrpeRotateOptions options{offset, activation, rotary.Options(kRotate)};
  const Tensor out = NewTensor(kRotate, "out", x);
  attnops::LrpeRotate(ViewOf(x_read), ViewOf(theta_read), ViewOf(out), options);
  return out;
}

Tensor LrpeRotateBackward(const Tensor& x, const Tensor& theta, const Tensor& d_out,
                          std::int64_t offset, std::int64_t act, std::optional<std::int64_t> dim,
                          std::optional<Tensor> positions, std::optional<Tensor> offsets,
                          std::optional<std::int64_t> rotary_dim, bool interleaved,
                          std::optional<std::vector<std::int64_t>> sections,
                          bool sections_interleaved, double scale, std::int64_t layout) {
  const Activation activation = ActivationOf(kRotate, "act", act, "dim", dim);
  const Tensor x_read = Readable(kRotate, "x", x);
  const Tensor theta_read = Readable(kRotate, "theta", theta);
  const Tensor d_out_read = Readable(kRotate, "d_out", d_out);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const LrpeRotateOptions options{offset, activation, rotary.Options(kRotate)};
  const Tensor dx = NewTensor(kRotate, "dx", x);
  attnops::LrpeRotateBackward(ViewOf(x_read), ViewOf(theta_read), ViewOf(d_out_read), ViewOf(dx),
                              options);
  return dx;
}

Tensor LrpeRotateDtheta(const Tensor& x, const Tensor& theta, const Tensor& d_out,
                        std::int64_t offset, std::int64_t act, std::optional<std::int64_t> dim,
                        std::optional<Tensor> positions, std::optional<Tensor> offsets,
                        std::optional<std::int64_t> rotary_dim, bool interleaved,
                        std::optional<std::vector<std::int64_t>> sections,
                        bool sections_interleaved, double scale, std::int64_t layout) {
  const Activation activation = ActivationOf(kRotate, "act", act, "dim", dim);
  const Tensor x_read = Readable(kRotate, "x", x);
  const Tensor theta_read = Readable(kRotate, "theta", theta);
  const Tensor d_out_read = Readable(kRotate, "d_out", d_out);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const LrpeRotateOptions options{offset, activation, rotary.Options(kRotate)};
  const Tensor d_theta = NewTensor(kRotate, "d_theta", theta, theta.sizes(), ResultType::kFloat32);
  attnops::LrpeRotateThetaGradient(ViewOf(x_read), ViewOf(theta_read), ViewOf(d_out_read),
                                   ViewOf(d_theta), options);
  return d_theta;
}

constexpr char kRope[] = "rope";

// theta or cos_sin, as the call has it.
struct RopeAngles {
  Tensor tensor;
  bool is_cos_sin;

  RopeAngles(const std::optional<Tensor>& theta, const std::optional<Tensor>& cos_sin)
      : is_cos_sin(cos_sin.has_value()) {
    if (theta.has_value() == cos_sin.has_value()) {
      throw Error(std::string(kRope) + ": exactly one of theta and cos_sin must be given; " +
                  (theta ? "both are" : "neither is"));
    }
    tensor = theta ? Readable(kRope, "theta", *theta) : Readable(kRope, "cos_sin", *cos_sin);
  }

  // A theta of one axis is that of all heads.
  ConstTensorView View() const {
    if (is_cos_sin || tensor.dim() != 1) return ViewOf(tensor);
    return ConstTensorView(tensor.data_ptr(), ViewOf(tensor).dtype(), {1, tensor.size(0)},
                           {tensor.size(0), 1});
  }
};

using RopePass = void (*)(const ConstTensorView&, const ConstTensorView&, const ConstTensorView&,
                          const TensorView&, const TensorView&, const RopeOptions&);

// One pass from the tensors `from` to `to`, which may be the same ones.
struct RopeTensors {
  Tensor q, k;
};
void RunRope(RopePass with_theta, RopePass with_cos_sin, const RopeTensors& from,
             const RopeAngles& angles, const RopeTensors& to, std::int64_t offset,
             const RotaryOptions& rotary) {
  (angles.is_cos_sin ? with_cos_sin : with_theta)(ViewOf(from.q), ViewOf(from.k), angles.View(),
                                                  ViewOf(to.q), ViewOf(to.k), {offset, rotary});
}

std::tuple<Tensor, Tensor> Rope(const Tensor& q, const Tensor& k, std::optional<Tensor> theta,
                                std::optional<Tensor> cos_sin, std::optional<Tensor> positions,
                                std::optional<Tensor> offsets, std::int64_t offset,
                                std::optional<std::int64_t> rotary_dim, bool interleaved,
                                std::optional<std::vector<std::int64_t>> sections,
                                bool sections_interleaved, double scale, std::int64_t layout) {
  const RopeTensors from{Readable(kRope, "q", q), Readable(kRope, "k", k)};
  const RopeAngles angles(theta, cos_sin);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const RotaryOptions options = rotary.Options(kRope);
  const RopeTensors to{NewTensor(kRope, "q_out", q), NewTensor(kRope, "k_out", k)};
  RunRope(attnops::Rope, attnops::RopeWithCosSin, from, angles, to, offset, options);
  return {to.q, to.k};
}

std::tuple<Tensor, Tensor> RopeBackward(const Tensor& dq_out, const Tensor& dk_out,
                                        std::optional<Tensor> theta, std::optional<Tensor> cos_sin,
                                        std::optional<Tensor> positions,
                                        std::optional<Tensor> offsets, std::int64_t offset,
                                        std::optional<std::int64_t> rotary_dim, bool interleaved,
                                        std::optional<std::vector<std::int64_t>> sections,
                                        bool sections_interleaved, double scale,
                                        std::int64_t layout) {
  const RopeTensors from{Readable(kRope, "dq_out", dq_out), Readable(kRope, "dk_out", dk_out)};
  const RopeAngles angles(theta, cos_sin);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const RotaryOptions options = rotary.Options(kRope);
  const RopeTensors to{NewTensor(kRope, "dq", dq_out), NewTensor(kRope, "dk", dk_out)};
  RunRope(attnops::RopeBackward, attnops::RopeBackwardWithCosSin, from, angles, to, offset,
          options);
  return {to.q, to.k};
}

// Writes into q and k. A last axis that is not contiguous is an error: there is no copy to write
// to.
void RopeInPlace(Tensor q, Tensor k, std::optional<Tensor> theta, std::optional<Tensor> cos_sin,
                 std::optional<Tensor> positions, std::optional<Tensor> offsets,
                 std::int64_t offset, std::optional<std::int64_t> rotary_dim, bool interleaved,
                 std::optional<std::vector<std::int64_t>> sections, bool sections_interleaved,
                 double scale, std::int64_t layout) {
  const RopeTensors from{Readable(kRope, "q", q), Readable(kRope, "k", k)};
  const RopeAngles angles(theta, cos_sin);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const RotaryOptions options = rotary.Options(kRope);
  if (from.q.data_ptr() != q.data_ptr() || from.k.data_ptr() != k.data_ptr()) {
    throw Error(std::string(kRope) + ": the last axis of q and k must be contiguous with inplace");
  }
  RunRope(attnops::Rope, attnops::RopeWithCosSin, from, angles, from, offset, options);
}

Tensor RopeDtheta(const Tensor& q, const Tensor& k, const Tensor& dq_out, const Tensor& dk_out,
                  const Tensor& theta, std::optional<Tensor> positions,
                  std::optional<Tensor> offsets, std::int64_t offset,
                  std::optional<std::int64_t> rotary_dim, bool interleaved,
                  std::optional<std::vector<std::int64_t>> sections, bool sections_interleaved,
                  double scale, std::int64_t layout) {
  const Tensor q_read = Readable(kRope, "q", q), k_read = Readable(kRope, "k", k);
  const Tensor dq_read = Readable(kRope, "dq_out", dq_out);
  const Tensor dk_read = Readable(kRope, "dk_out", dk_out);
  const Tensor theta_read = Readable(kRope, "theta", theta);
  const Rotary rotary{positions, offsets, rotary_dim, interleaved, sections, sections_interleaved,
                      scale,     layout};
  const RotaryOptions options = rotary.Options(kRope);
  const Tensor d_theta = NewTensor(kRope, "d_theta", theta, theta.sizes(), ResultType::kFloat32);
  attnops::RopeThetaGradient(ViewOf(q_read), ViewOf(k_read), ViewOf(theta_read), ViewOf(dq_read),
                             ViewOf(dk_read), ViewOf(d_theta), {offset, options});
  return d_theta;
}

// x's shape with the last axis twice as long.
Dims Widened(const Tensor& x) {
  Dims shape = x.sizes();
  shape[shape.rank() - 1] *= 2;
  return shape;
}

// The tensor that the angles of md_lrpe_cosine come from: a table if there is one, else theta.
struct ThetaOrTable {
  Tensor tensor;
  bool is_table;
};

ThetaOrTable AnglesOf(const char* op, const std::optional<Tensor>& theta,
                      const std::optional<Tensor>& table) {
  if (table) return {Readable(op, "table", *table), true};
  if (!theta) throw Error(std::string(op) + ": theta is required without a table");
  return {Readable(op, "theta", *theta), false};
}

Tensor MdLrpeCosine(const Tensor& x, std::optional<Tensor> theta, std::optional<Tensor> table,
                    std::vector<std::int64_t> shape, std::int64_t l, std::int64_t offset,
                    std::int64_t act, std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "md_lrpe_cosine";
  const Activation activation = ActivationOf(kOp, "act", act, "dim", dim);
  const Tensor x_read = Readable(kOp, "x", x);
  const ThetaOrTable angles = AnglesOf(kOp, theta, table);
  const MdLrpeCosineOptions options{DimsOf(kOp, "shape", shape), l, offset, activation};
  const Tensor out = NewTensor(kOp, "out", x, Widened(x));
  const auto run = angles.is_table ? attnops::MdLrpeCosineWithTable : attnops::MdLrpeCosine;
  run(ViewOf(x_read), ViewOf(angles.tensor), ViewOf(out), options);
  return out;
}

// x may be missing without an activation, where its values do not matter.
Tensor MdLrpeCosineBackward(std::optional<Tensor> x, std::optional<Tensor> theta,
                            std::optional<Tensor> table, const Tensor& d_out,
                            std::vector<std::int64_t> shape, std::int64_t l, std::int64_t offset,
                            std::int64_t act, std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "md_lrpe_cosine";
  const Activation activation = ActivationOf(kOp, "act", act, "dim", dim);
  if (!x && activation.kind != Activation::Kind::kNone) {
    throw Error(std::string(kOp) + ": x is required when act is " + Name(activation.kind));
  }
  Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const std::int64_t last = d_out.dim() - 1;
  const Tensor x_read =
      x ? Readable(kOp, "x", *x) : torch::stable::narrow(d_out_read, last, 0, d_out.size(last) / 2);
  const ThetaOrTable angles = AnglesOf(kOp, theta, table);
  const MdLrpeCosineOptions options{DimsOf(kOp, "shape", shape), l, offset, activation};
  const Tensor dx = NewTensor(kOp, "dx", x_read);
  const auto run =
      angles.is_table ? attnops::MdLrpeCosineBackwardWithTable : attnops::MdLrpeCosineBackward;
  run(ViewOf(x_read), ViewOf(angles.tensor), ViewOf(d_out_read), ViewOf(dx), options);
  return dx;
}

Tensor MdLrpeCosineDtheta(const Tensor& x, const Tensor& theta, const Tensor& d_out,
                          std::vector<std::int64_t> shape, std::int64_t l, std::int64_t offset,
                          std::int64_t act, std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "md_lrpe_cosine";
  const Activation activation = ActivationOf(kOp, "act", act, "dim", dim);
  const Tensor x_read = Readable(kOp, "x", x);
  const Tensor theta_read = Readable(kOp, "theta", theta);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const MdLrpeCosineOptions options{DimsOf(kOp, "shape", shape), l, offset, activation};
  const Tensor d_theta = NewTensor(kOp, "d_theta", theta, theta.sizes(), ResultType::kFloat32);
  attnops::MdLrpeCosineThetaGradient(ViewOf(x_read), ViewOf(theta_read), ViewOf(d_out_read),
                                     ViewOf(d_theta), options);
  return d_theta;
}

Tensor LrpeTable(const Tensor& theta, std::vector<std::int64_t> shape, std::int64_t d,
                 std::int64_t offset) {
  constexpr char kOp[] = "lrpe_table";
  const Tensor theta_read = Readable(kOp, "theta", theta);
  const Dims grid = DimsOf(kOp, "shape", shape);
  const std::int64_t positions = std::accumulate(shape.begin(), shape.end(), std::int64_t{0});
  // A theta without two axes is refused below, before the table's shape matters.
  const Tensor table =
      NewTensor(kOp, "the table", theta, {theta.size(0), positions, theta.size(theta.dim() - 1), 2},
                ResultType::kFloat32);
  attnops::LrpeTable(ViewOf(theta_read), grid, d, ViewOf(table), offset);
  return table;
}

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY_FRAGMENT(attnops, m) {
#define ATTNOPS_ROTARY                                                                 \
  "Tensor? positions=None, Tensor? offsets=None, SymInt? rotary_dim=None, "            \
  "bool interleaved=False, SymInt[]? sections=None, bool sections_interleaved=False, " \
  "float scale=1.0, int layout=0)"
#define ATTNOPS_ROPE                                                                          \
  "Tensor? positions, Tensor? offsets, SymInt offset, SymInt? rotary_dim, bool interleaved, " \
  "SymInt[]? sections, bool sections_interleaved, float scale, int layout)"
  m.def("lrpe_rotate(Tensor x, Tensor theta, SymInt offset, int act, int? dim, " ATTNOPS_ROTARY
        " -> Tensor");
  m.def(
      "lrpe_rotate_backward(Tensor x, Tensor theta, Tensor d_out, SymInt offset, int act, "
      "int? dim, " ATTNOPS_ROTARY " -> Tensor");
  m.def(
      "lrpe_rotate_dtheta(Tensor x, Tensor theta, Tensor d_out, SymInt offset, int act, "
      "int? dim, " ATTNOPS_ROTARY " -> Tensor");
  m.def("rope(Tensor q, Tensor k, Tensor? theta, Tensor? cos_sin, " ATTNOPS_ROPE
        " -> (Tensor, Tensor)");
  // rope for tensors of which none needs a gradient: without the cost of autograd's Python.
  m.def("rope_forward(Tensor q, Tensor k, Tensor? theta, Tensor? cos_sin, " ATTNOPS_ROPE
        " -> (Tensor, Tensor)");
  m.def("rope_(Tensor(a!) q, Tensor(b!) k, Tensor? theta, Tensor? cos_sin, " ATTNOPS_ROPE " -> ()");
  m.def("rope_backward(Tensor dq_out, Tensor dk_out, Tensor? theta, Tensor? cos_sin, " ATTNOPS_ROPE
        " -> (Tensor, Tensor)");
  m.def("rope_dtheta(Tensor q, Tensor k, Tensor dq_out, Tensor dk_out, Tensor theta, " ATTNOPS_ROPE
        " -> Tensor");
#undef ATTNOPS_ROTARY
#undef ATTNOPS_ROPE
  m.def(
      "md_lrpe_cosine_dtheta(Tensor x, Tensor theta, Tensor d_out, SymInt[] shape, SymInt l, "
      "SymInt offset, int act, int? dim) -> Tensor");
  m.def(
      "md_lrpe_cosine(Tensor x, Tensor? theta, Tensor? table, SymInt[] shape, SymInt l, "
      "SymInt offset, int act, int? dim) -> Tensor");
  m.def(
      "md_lrpe_cosine_backward(Tensor? x, Tensor? theta, Tensor? table, Tensor d_out, "
      "SymInt[] shape, SymInt l, SymInt offset, int act, int? dim) -> Tensor");
  m.def("lrpe_table(Tensor theta, SymInt[] shape, SymInt d, SymInt offset) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("lrpe_rotate", TORCH_BOX(&attnops::torch_binding::LrpeRotate));
  m.impl("lrpe_rotate_backward", TORCH_BOX(&attnops::torch_binding::LrpeRotateBackward));
  m.impl("lrpe_rotate_dtheta", TORCH_BOX(&attnops::torch_binding::LrpeRotateDtheta));
  m.impl("rope", TORCH_BOX(&attnops::torch_binding::Rope));
  m.impl("rope_forward", TORCH_BOX(&attnops::torch_binding::Rope));
  m.impl("rope_", TORCH_BOX(&attnops::torch_binding::RopeInPlace));
  m.impl("rope_backward", TORCH_BOX(&attnops::torch_binding::RopeBackward));
  m.impl("rope_dtheta", TORCH_BOX(&attnops::torch_binding::RopeDtheta));
  m.impl("md_lrpe_cosine_dtheta", TORCH_BOX(&attnops::torch_binding::MdLrpeCosineDtheta));
  m.impl("md_lrpe_cosine", TORCH_BOX(&attnops::torch_binding::MdLrpeCosine));
  m.impl("md_lrpe_cosine_backward", TORCH_BOX(&attnops::torch_binding::MdLrpeCosineBackward));
  m.impl("lrpe_table", TORCH_BOX(&attnops::torch_binding::LrpeTable));
}
