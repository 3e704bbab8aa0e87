// flao and flao_fal, which adds activations and a position encoding, as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

// out, kv and qkv; kv and qkv are empty tensors of one axis if they are not kept.
using ForwardTensors = std::tuple<Tensor, Tensor, Tensor>;
// Sizes of a grid, or none.
using Shape = std::optional<std::vector<std::int64_t>>;
// dq, dk, dv and dg.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using GradientsAndTheta = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// What a forward keeps: nothing, KV, or KV and QKV.
enum class Keep { kNone, kKv, kKvQkv };

Keep KeepOf(const char* op, std::int64_t keep) { return ChoiceOf(op, "keep", keep, Keep::kKvQkv); }

// q, k, v and g as the operators read them.
struct Readables {
  Readables(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g)
      : q(Readable(op, "q", q)),
        k(Readable(op, "k", k)),
        v(Readable(op, "v", v)),
        g(Readable(op, "g", g)) {}

  Tensor q, k, v, g;
};

// Room for the results of a forward; kv has `rows` rows for each of q's features.
struct Results {
  Results(const char* op, const Readables& x, Keep keep, std::int64_t rows)
      : out(NewTensor(op, "out", x.g)),
        has_axes(x.q.dim() == 4 && x.v.dim() == 4),
        keeps_kv(keep != Keep::kNone && has_axes),
        keeps_qkv(keep == Keep::kKvQkv && has_axes),
        kv(NewTensor(
            op, "kv", x.q,
            keeps_kv ? Dims{x.q.size(0), x.q.size(1), rows * x.q.size(3), x.v.size(3)} : Dims{0},
            ResultType::kFloat32)),
        qkv(NewTensor(op, "qkv", x.q, keeps_qkv ? Dims(x.g.sizes()) : Dims{0},
                      x.q.scalar_type() == torch::headeronly::ScalarType::Half
                          ? ResultType::kFloat32
                          : ResultType::kSame)) {}

  FlaoOptions kept(std::optional<Precision> precision) const {
    FlaoOptions options;
    options.precision = precision;
    if (keeps_kv) options.kv = ViewOf(kv);
    if (keeps_qkv) options.qkv = ViewOf(qkv);
    return options;
  }

  Tensor out;
  bool has_axes;  // else the call is an error
  bool keeps_kv, keeps_qkv;
  Tensor kv, qkv;
};

// The tensors that a forward kept, if it did.
struct Kept {
  Kept(const char* op, const std::optional<Tensor>& given_kv,
       const std::optional<Tensor>& given_qkv) {
    if (given_kv) kv = Readable(op, "kv", *given_kv);
    if (given_qkv) qkv = Readable(op, "qkv", *given_qkv);
  }

  FlaoKept views(std::optional<Precision> precision) const {
    FlaoKept views;
    views.precision = precision;
    if (kv) views.kv = ViewOf(*kv);
    if (qkv) views.qkv = ViewOf(*qkv);
    return views;
  }

  std::optional<Tensor> kv, qkv;
};

constexpr char kFalOp[] = "flao_fal";

Lrpe LrpeOf(std::int64_t lrpe) { return ChoiceOf(kFalOp, "lrpe", lrpe, Lrpe::kRotate); }

Activation ActOf(char tensor, std::int64_t act, std::optional<std::int64_t> dim) {
  const std::string act_name = std::string(1, tensor) + "_act";
  const std::string dim_name = std::string(1, tensor) + "_dim";
  return ActivationOf(kFalOp, act_name.c_str(), act, dim_name.c_str(), dim);
}

// Sets the options of the encoding. `theta` becomes readable, and the options point to it.
void SetPositions(FlaoFalOptions& options, std::optional<Tensor>& theta, const Shape& shape,
                  std::int64_t offset, std::int64_t l) {
  if (theta) {
    theta = Readable(kFalOp, "theta", *theta);
    options.theta = ViewOf(*theta);
  }
  if (shape && !shape->empty()) options.shape = DimsOf(kFalOp, "shape", *shape);
  options.offset = offset;
  options.l = l;
}

ForwardTensors Flao(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                    std::int64_t keep, std::optional<std::int64_t> precision) {
  constexpr char kOp[] = "flao";
  const Keep kept = KeepOf(kOp, keep);
  const Readables x(kOp, q, k, v, g);
  const Results results(kOp, x, kept, 1);
  attnops::Flao(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(results.out),
                results.kept(PrecisionOf(kOp, precision)));
  return {results.out, results.kv, results.qkv};
}

Gradients FlaoBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       const Tensor& d_out, std::optional<Tensor> kv, std::optional<Tensor> qkv,
                       std::optional<std::int64_t> precision) {
  constexpr char kOp[] = "flao";
  const Readables x(kOp, q, k, v, g);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const Kept kept(kOp, kv, qkv);
  const Tensor dq = NewTensor(kOp, "dq", q), dk = NewTensor(kOp, "dk", k);
  const Tensor dv = NewTensor(kOp, "dv", v), dg = NewTensor(kOp, "dg", g);
  attnops::FlaoBackward(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(d_out_read),
                        ViewOf(dq), ViewOf(dk), ViewOf(dv), ViewOf(dg),
                        kept.views(PrecisionOf(kOp, precision)));
  return {dq, dk, dv, dg};
}

// A missing shape and an empty one are the same: an exported program does not tell them apart.
ForwardTensors FlaoFal(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       std::optional<Tensor> theta, std::int64_t q_act,
                       std::optional<std::int64_t> q_dim, std::int64_t k_act,
                       std::optional<std::int64_t> k_dim, std::int64_t v_act,
                       std::optional<std::int64_t> v_dim, std::int64_t g_act,
                       std::optional<std::int64_t> g_dim, std::int64_t lrpe, Shape shape,
                       std::int64_t offset, std::int64_t l, std::int64_t keep,
                       std::optional<std::int64_t> precision) {
  FlaoFalOptions options{ActOf('q', q_act, q_dim), ActOf('k', k_act, k_dim),
                         ActOf('v', v_act, v_dim), ActOf('g', g_act, g_dim), LrpeOf(lrpe)};
  const Keep kept = KeepOf(kFalOp, keep);
  const Readables x(kFalOp, q, k, v, g);
  SetPositions(options, theta, shape, offset, l);
  const Results results(kFalOp, x, kept, options.lrpe == Lrpe::kCosine ? 2 : 1);
  attnops::FlaoFal(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(results.out), options,
                   results.kept(PrecisionOf(kFalOp, precision)));
  return {results.out, results.kv, results.qkv};
}

// The gradients of q, k, v and g and, if d_theta is given, of theta.
Gradients FalGradients(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       const Tensor& d_out, const std::optional<Tensor>& kv,
                       const std::optional<Tensor>& qkv, std::optional<std::int64_t> precision,
                       const FlaoFalOptions& options, const Tensor* d_theta) {
  const Readables x(kFalOp, q, k, v, g);
  const Tensor d_out_read = Readable(kFalOp, "d_out", d_out);
  const Kept kept(kFalOp, kv, qkv);
  const Tensor dq = NewTensor(kFalOp, "dq", q), dk = NewTensor(kFalOp, "dk", k);
  const Tensor dv = NewTensor(kFalOp, "dv", v), dg = NewTensor(kFalOp, "dg", g);
  std::optional<TensorView> theta_view;
  if (d_theta != nullptr) theta_view = ViewOf(*d_theta);
  attnops::FlaoFalBackward(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(d_out_read),
                           ViewOf(dq), ViewOf(dk), ViewOf(dv), ViewOf(dg), options,
                           kept.views(PrecisionOf(kFalOp, precision)), theta_view);
  return {dq, dk, dv, dg};
}

Gradients FlaoFalBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                          const Tensor& d_out, std::optional<Tensor> kv, std::optional<Tensor> qkv,
                          std::optional<Tensor> theta, std::int64_t q_act,
                          std::optional<std::int64_t> q_dim, std::int64_t k_act,
                          std::optional<std::int64_t> k_dim, std::int64_t v_act,
                          std::optional<std::int64_t> v_dim, std::int64_t g_act,
                          std::optional<std::int64_t> g_dim, std::int64_t lrpe, Shape shape,
                          std::int64_t offset, std::int64_t l,
                          std::optional<std::int64_t> precision) {
  FlaoFalOptions options{ActOf('q', q_act, q_dim), ActOf('k', k_act, k_dim),
                         ActOf('v', v_act, v_dim), ActOf('g', g_act, g_dim), LrpeOf(lrpe)};
  SetPositions(options, theta, shape, offset, l);
  return FalGradients(q, k, v, g, d_out, kv, qkv, precision, options, nullptr);
}

GradientsAndTheta FlaoFalBackwardTheta(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& d_out,
    std::optional<Tensor> kv, std::optional<Tensor> qkv, const Tensor& theta, std::int64_t q_act,
    std::optional<std::int64_t> q_dim, std::int64_t k_act, std::optional<std::int64_t> k_dim,
    std::int64_t v_act, std::optional<std::int64_t> v_dim, std::int64_t g_act,
    std::optional<std::int64_t> g_dim, std::int64_t lrpe, Shape shape, std::int64_t offset,
    std::int64_t l, std::optional<std::int64_t> precision) {
  FlaoFalOptions options{ActOf('q', q_act, q_dim), ActOf('k', k_act, k_dim),
                         ActOf('v', v_act, v_dim), ActOf('g', g_act, g_dim), LrpeOf(lrpe)};
  std::optional<Tensor> given = theta;
  SetPositions(options, given, shape, offset, l);
  const Tensor d_theta = NewTensor(kFalOp, "d_theta", theta, theta.sizes(), ResultType::kFloat32);
  const Gradients gradients =
      FalGradients(q, k, v, g, d_out, kv, qkv, precision, options, &d_theta);
  return std::tuple_cat(gradients, std::make_tuple(d_theta));
}

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY_FRAGMENT(attnops, m) {
  m.def(
      "flao(Tensor q, Tensor k, Tensor v, Tensor g, int keep, int? precision=None) -> "
      "(Tensor out, "
      "Tensor kv, "
      "Tensor qkv)");
  m.def(
      "flao_backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor d_out, Tensor? kv, "
      "Tensor? qkv, int? precision=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg)");
  m.def(
      "flao_fal(Tensor q, Tensor k, Tensor v, Tensor g, Tensor? theta, int q_act, int? q_dim, "
      "int k_act, int? k_dim, int v_act, int? v_dim, int g_act, int? g_dim, int lrpe, "
      "SymInt[]? shape, SymInt offset, SymInt l, int keep, int? precision=None) -> "
      "(Tensor out, Tensor kv, Tensor qkv)");
  m.def(
      "flao_fal_backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor d_out, Tensor? kv, "
      "Tensor? qkv, Tensor? theta, int q_act, int? q_dim, int k_act, int? k_dim, int v_act, "
      "int? v_dim, int g_act, int? g_dim, int lrpe, SymInt[]? shape, SymInt offset, SymInt l, "
      "int? precision=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg)");
  m.def(
      "flao_fal_backward_theta(Tensor q, Tensor k, Tensor v, Tensor g, Tensor d_out, Tensor? kv, "
      "Tensor? qkv, Tensor theta, int q_act, int? q_dim, int k_act, int? k_dim, int v_act, "
      "int? v_dim, int g_act, int? g_dim, int lrpe, SymInt[]? shape, SymInt offset, SymInt l, "
      "int? precision=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor d_theta)");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("flao", TORCH_BOX(&attnops::torch_binding::Flao));
  m.impl("flao_backward", TORCH_BOX(&attnops::torch_binding::FlaoBackward));
  m.impl("flao_fal", TORCH_BOX(&attnops::torch_binding::FlaoFal));
  m.impl("flao_fal_backward", TORCH_BOX(&attnops::torch_binding::FlaoFalBackward));
  m.impl("flao_fal_backward_theta", TORCH_BOX(&attnops::torch_binding::FlaoFalBackwardTheta));
}
