// lrpe_rotate, md_lrpe_cosine and lrpe_table as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

Tensor LrpeRotate(const Tensor& x, const Tensor& theta, std::int64_t offset, std::int64_t act,
                  std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "lrpe_rotate";
  const LrpeRotateOptions options{offset, ActivationOf(kOp, "act", act, "dim", dim)};
  const Tensor x_read = Readable(kOp, "x", x);
  const Tensor theta_read = Readable(kOp, "theta", theta);
  const Tensor out = NewTensor(kOp, "out", x);
  attnops::LrpeRotate(ViewOf(x_read), ViewOf(theta_read), ViewOf(out), options);
  return out;
}

Tensor LrpeRotateBackward(const Tensor& x, const Tensor& theta, const Tensor& d_out,
                          std::int64_t offset, std::int64_t act, std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "lrpe_rotate";
  const LrpeRotateOptions options{offset, ActivationOf(kOp, "act", act, "dim", dim)};
  const Tensor x_read = Readable(kOp, "x", x);
  const Tensor theta_read = Readable(kOp, "theta", theta);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const Tensor dx = NewTensor(kOp, "dx", x);
  attnops::LrpeRotateBackward(ViewOf(x_read), ViewOf(theta_read), ViewOf(d_out_read), ViewOf(dx),
                              options);
  return dx;
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
  m.def("lrpe_rotate(Tensor x, Tensor theta, SymInt offset, int act, int? dim) -> Tensor");
  m.def(
      "lrpe_rotate_backward(Tensor x, Tensor theta, Tensor d_out, SymInt offset, int act, "
      "int? dim) -> Tensor");
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
  m.impl("md_lrpe_cosine", TORCH_BOX(&attnops::torch_binding::MdLrpeCosine));
  m.impl("md_lrpe_cosine_backward", TORCH_BOX(&attnops::torch_binding::MdLrpeCosineBackward));
  m.impl("lrpe_table", TORCH_BOX(&attnops::torch_binding::LrpeTable));
}
