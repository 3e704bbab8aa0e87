// The operators as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "flao.h"
#include "pool.h"
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

// Where the angles of md_lrpe_cosine come from: a table if there is one, else theta.
struct AngleSource {
  Tensor tensor;
  bool is_table;
};

AngleSource AnglesOf(const char* op, const std::optional<Tensor>& theta,
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
  const AngleSource angles = AnglesOf(kOp, theta, table);
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
  const AngleSource angles = AnglesOf(kOp, theta, table);
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

Tensor TpaDecode(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                 const Tensor& bk, const Tensor& bv, std::optional<double> scale,
                 std::optional<double> scale_q, double scale_k, double scale_v,
                 std::int64_t split) {
  constexpr char kOp[] = "tpa_decode";
  const TpaDecodeOptions options{scale, scale_q, scale_k, scale_v,
                                 ChoiceOf(kOp, "split", split, TpaSplit::kBN)};
  const Tensor aq_read = Readable(kOp, "aq", aq);
  const Tensor ak_read = Readable(kOp, "ak", ak);
  const Tensor av_read = Readable(kOp, "av", av);
  const Tensor bq_read = Readable(kOp, "bq", bq);
  const Tensor bk_read = Readable(kOp, "bk", bk);
  const Tensor bv_read = Readable(kOp, "bv", bv);
  const bool has_axes = aq.dim() == 4 && bv.dim() == 3;  // else the call below is an error
  const Tensor out =
      NewTensor(kOp, "out", aq, has_axes ? Dims{aq.size(0), 1, aq.size(2), bv.size(2)} : Dims{0});
  attnops::TpaDecode(ViewOf(aq_read), ViewOf(ak_read), ViewOf(av_read), ViewOf(bq_read),
                     ViewOf(bk_read), ViewOf(bv_read), ViewOf(out), options);
  return out;
}

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : " ") + name;
  return joined;
}

void EmptyCache() { PoolEmpty(); }
std::string GetTargetName() { return GetTarget(); }
void SetTargetName(std::string name) { SetTarget(name); }
std::string SupportedTargetNames() { return Join(SupportedTargets()); }
std::string CompiledTargetNames() { return Join(CompiledTargets()); }
double CopyBandwidth(double seconds) { return MeasureCopyBandwidth(seconds); }
double FmaPeak(double seconds) { return MeasureFmaPeak(seconds); }

// One pool of threads in the process: torch's.
const bool uses_torch_threads = [] {
  SetParallelFor([](std::int64_t n,
                    const ParallelForBody& body) { torch::stable::parallel_for(0, n, 1, body); },
                 [] { return static_cast<int>(torch::stable::get_num_threads()); });
  return true;
}();

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY(attnops, m) {
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
  m.def(
      "flao(Tensor q, Tensor k, Tensor v, Tensor g, int keep) -> (Tensor out, Tensor kv, "
      "Tensor qkv)");
  m.def(
      "flao_backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor d_out, Tensor? kv, "
      "Tensor? qkv) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg)");
  m.def(
      "flao_fal(Tensor q, Tensor k, Tensor v, Tensor g, Tensor? theta, int q_act, int? q_dim, "
      "int k_act, int? k_dim, int v_act, int? v_dim, int g_act, int? g_dim, int lrpe, "
      "SymInt[]? shape, SymInt offset, SymInt l, int keep) -> (Tensor out, Tensor kv, Tensor qkv)");
  m.def(
      "flao_fal_backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor d_out, Tensor? kv, "
      "Tensor? qkv, Tensor? theta, int q_act, int? q_dim, int k_act, int? k_dim, int v_act, "
      "int? v_dim, int g_act, int? g_dim, int lrpe, SymInt[]? shape, SymInt offset, SymInt l) -> "
      "(Tensor dq, Tensor dk, Tensor dv, Tensor dg)");
  m.def(
      "tpa_decode(Tensor aq, Tensor ak, Tensor av, Tensor bq, Tensor bk, Tensor bv, float? scale, "
      "float? scale_q, float scale_k, float scale_v, int split) -> Tensor");
  m.def("empty_cache() -> ()");
  m.def("get_target() -> str");
  m.def("set_target(str name) -> ()");
  m.def("supported_targets() -> str");
  m.def("compiled_targets() -> str");
  m.def("copy_bandwidth(float seconds) -> float");
  m.def("fma_peak(float seconds) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("flao", TORCH_BOX(&attnops::torch_binding::Flao));
  m.impl("flao_backward", TORCH_BOX(&attnops::torch_binding::FlaoBackward));
  m.impl("flao_fal", TORCH_BOX(&attnops::torch_binding::FlaoFal));
  m.impl("flao_fal_backward", TORCH_BOX(&attnops::torch_binding::FlaoFalBackward));
  m.impl("lrpe_rotate", TORCH_BOX(&attnops::torch_binding::LrpeRotate));
  m.impl("tpa_decode", TORCH_BOX(&attnops::torch_binding::TpaDecode));
  m.impl("lrpe_rotate_backward", TORCH_BOX(&attnops::torch_binding::LrpeRotateBackward));
  m.impl("md_lrpe_cosine", TORCH_BOX(&attnops::torch_binding::MdLrpeCosine));
  m.impl("md_lrpe_cosine_backward", TORCH_BOX(&attnops::torch_binding::MdLrpeCosineBackward));
  m.impl("lrpe_table", TORCH_BOX(&attnops::torch_binding::LrpeTable));
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CompositeExplicitAutograd, m) {
  m.impl("empty_cache", TORCH_BOX(&attnops::torch_binding::EmptyCache));
  m.impl("get_target", TORCH_BOX(&attnops::torch_binding::GetTargetName));
  m.impl("set_target", TORCH_BOX(&attnops::torch_binding::SetTargetName));
  m.impl("supported_targets", TORCH_BOX(&attnops::torch_binding::SupportedTargetNames));
  m.impl("compiled_targets", TORCH_BOX(&attnops::torch_binding::CompiledTargetNames));
  m.impl("copy_bandwidth", TORCH_BOX(&attnops::torch_binding::CopyBandwidth));
  m.impl("fma_peak", TORCH_BOX(&attnops::torch_binding::FmaPeak));
}
