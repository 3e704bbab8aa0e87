// The halves of flao and flao_fal as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

using Int = std::int64_t;
using OptionalInt = std::optional<Int>;
using Shape = std::optional<std::vector<Int>>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr char kKv[] = "flao_kv";
constexpr char kOut[] = "flao_out";
constexpr char kFalKv[] = "flao_fal_kv";
constexpr char kFalOut[] = "flao_fal_out";

// Room for KV; one axis without elements if the call is an error anyway.
Tensor NewKv(const char* op, const Tensor& k, const Tensor& v, Int parts) {
  const bool has_axes = k.dim() == 4 && v.dim() == 4;
  return NewTensor(op, "kv", k,
                   has_axes ? Dims{k.size(0), k.size(1), parts * k.size(3), v.size(3)} : Dims{0},
                   ResultType::kFloat32);
}

// The options of a half of flao_fal; they point to its theta.
struct HalfOptions {
  HalfOptions(const char* op, const std::optional<Tensor>& given, Int lrpe, const Shape& shape,
              Int offset, Int l, Int start) {
    if (given) {
      theta = Readable(op, "theta", *given);
      options.theta = ViewOf(*theta);
    }
    options.lrpe = ChoiceOf(op, "lrpe", lrpe, Lrpe::kRotate);
    if (shape && !shape->empty()) options.shape = DimsOf(op, "shape", *shape);
    options.offset = offset;
    options.l = l;
    options.start = start;
  }

  void SetKeys(Int k_act, OptionalInt k_dim, Int v_act, OptionalInt v_dim) {
    options.k_act = ActivationOf(kFalKv, "k_act", k_act, "k_dim", k_dim);
    options.v_act = ActivationOf(kFalKv, "v_act", v_act, "v_dim", v_dim);
  }
  void SetQueries(Int q_act, OptionalInt q_dim, Int g_act, OptionalInt g_dim) {
    options.q_act = ActivationOf(kFalOut, "q_act", q_act, "q_dim", q_dim);
    options.g_act = ActivationOf(kFalOut, "g_act", g_act, "g_dim", g_dim);
  }
  Int parts() const { return options.lrpe == Lrpe::kCosine ? 2 : 1; }

  std::optional<Tensor> theta;
  FlaoFalOptions options;
};

// Room for theta's gradient, empty if it is not wanted.
struct ThetaGradient {
  ThetaGradient(const char* op, const std::optional<Tensor>& theta, const Tensor& x, bool wanted)
      : tensor(wanted && theta
                   ? NewTensor(op, "d_theta", *theta, theta->sizes(), ResultType::kFloat32)
                   : NewTensor(op, "d_theta", x, Dims{0}, ResultType::kFloat32)) {
    if (wanted && theta) view = ViewOf(tensor);
  }

  Tensor tensor;
  std::optional<TensorView> view;
};

Tensor Kv(const Tensor& k_given, const Tensor& v_given, OptionalInt precision) {
  const Tensor k = Readable(kKv, "k", k_given), v = Readable(kKv, "v", v_given);
  const Tensor kv = NewKv(kKv, k, v, 1);
  FlaoKv(ViewOf(k), ViewOf(v), ViewOf(kv), PrecisionOf(kKv, precision));
  return kv;
}

Two KvBackward(const Tensor& k_given, const Tensor& v_given, const Tensor& d_kv_given,
               OptionalInt precision) {
  const Tensor k = Readable(kKv, "k", k_given), v = Readable(kKv, "v", v_given);
  const Tensor d_kv = Readable(kKv, "d_kv", d_kv_given);
  const Tensor dk = NewTensor(kKv, "dk", k), dv = NewTensor(kKv, "dv", v);
  FlaoKvBackward(ViewOf(k), ViewOf(v), ViewOf(d_kv), ViewOf(dk), ViewOf(dv),
                 PrecisionOf(kKv, precision));
  return {dk, dv};
}

Tensor Out(const Tensor& q_given, const Tensor& kv_given, const Tensor& g_given,
           OptionalInt precision) {
  const Tensor q = Readable(kOut, "q", q_given), kv = Readable(kOut, "kv", kv_given);
  const Tensor g = Readable(kOut, "g", g_given), out = NewTensor(kOut, "out", g);
  FlaoOut(ViewOf(q), ViewOf(kv), ViewOf(g), ViewOf(out), PrecisionOf(kOut, precision));
  return out;
}

Three OutBackward(const Tensor& q_given, const Tensor& kv_given, const Tensor& g_given,
                  const Tensor& d_out_given, OptionalInt precision) {
  const Tensor q = Readable(kOut, "q", q_given), kv = Readable(kOut, "kv", kv_given);
  const Tensor g = Readable(kOut, "g", g_given), d_out = Readable(kOut, "d_out", d_out_given);
  const Tensor dq = NewTensor(kOut, "dq", q), dg = NewTensor(kOut, "dg", g);
  const Tensor d_kv = NewTensor(kOut, "d_kv", kv);
  FlaoOutBackward(ViewOf(q), ViewOf(kv), ViewOf(g), ViewOf(d_out), ViewOf(dq), ViewOf(d_kv),
                  ViewOf(dg), PrecisionOf(kOut, precision));
  return {dq, d_kv, dg};
}

Tensor FalKv(const Tensor& k_given, const Tensor& v_given, std::optional<Tensor> theta, Int k_act,
             OptionalInt k_dim, Int v_act, OptionalInt v_dim, Int lrpe, Shape shape, Int offset,
             Int l, Int start, OptionalInt precision) {
  HalfOptions half(kFalKv, theta, lrpe, shape, offset, l, start);
  half.SetKeys(k_act, k_dim, v_act, v_dim);
  const Tensor k = Readable(kFalKv, "k", k_given), v = Readable(kFalKv, "v", v_given);
  const Tensor kv = NewKv(kFalKv, k, v, half.parts());
  FlaoFalKv(ViewOf(k), ViewOf(v), ViewOf(kv), half.options, PrecisionOf(kFalKv, precision));
  return kv;
}

Three FalKvBackward(const Tensor& k_given, const Tensor& v_given, const Tensor& d_kv_given,
                    std::optional<Tensor> theta, Int k_act, OptionalInt k_dim, Int v_act,
                    OptionalInt v_dim, Int lrpe, Shape shape, Int offset, Int l, Int start,
                    OptionalInt precision, bool wants_theta) {
  HalfOptions half(kFalKv, theta, lrpe, shape, offset, l, start);
  half.SetKeys(k_act, k_dim, v_act, v_dim);
  const Tensor k = Readable(kFalKv, "k", k_given), v = Readable(kFalKv, "v", v_given);
  const Tensor d_kv = Readable(kFalKv, "d_kv", d_kv_given);
  const Tensor dk = NewTensor(kFalKv, "dk", k), dv = NewTensor(kFalKv, "dv", v);
  const ThetaGradient d_theta(kFalKv, theta, k, wants_theta);
  FlaoFalKvBackward(ViewOf(k), ViewOf(v), ViewOf(d_kv), ViewOf(dk), ViewOf(dv), half.options,
                    PrecisionOf(kFalKv, precision), d_theta.view);
  return {dk, dv, d_theta.tensor};
}

Tensor FalOut(const Tensor& q_given, const Tensor& kv_given, const Tensor& g_given,
              std::optional<Tensor> theta, Int q_act, OptionalInt q_dim, Int g_act,
              OptionalInt g_dim, Int lrpe, Shape shape, Int offset, Int l, Int start,
              OptionalInt precision) {
  HalfOptions half(kFalOut, theta, lrpe, shape, offset, l, start);
  half.SetQueries(q_act, q_dim, g_act, g_dim);
  const Tensor q = Readable(kFalOut, "q", q_given), kv = Readable(kFalOut, "kv", kv_given);
  const Tensor g = Readable(kFalOut, "g", g_given), out = NewTensor(kFalOut, "out", g);
  FlaoFalOut(ViewOf(q), ViewOf(kv), ViewOf(g), ViewOf(out), half.options,
             PrecisionOf(kFalOut, precision));
  return out;
}

Four FalOutBackward(const Tensor& q_given, const Tensor& kv_given, const Tensor& g_given,
                    const Tensor& d_out_given, std::optional<Tensor> theta, Int q_act,
                    OptionalInt q_dim, Int g_act, OptionalInt g_dim, Int lrpe, Shape shape,
                    Int offset, Int l, Int start, OptionalInt precision, bool wants_theta) {
  HalfOptions half(kFalOut, theta, lrpe, shape, offset, l, start);
  half.SetQueries(q_act, q_dim, g_act, g_dim);
  const Tensor q = Readable(kFalOut, "q", q_given), kv = Readable(kFalOut, "kv", kv_given);
  const Tensor g = Readable(kFalOut, "g", g_given);
  const Tensor d_out = Readable(kFalOut, "d_out", d_out_given);
  const Tensor dq = NewTensor(kFalOut, "dq", q), dg = NewTensor(kFalOut, "dg", g);
  const Tensor d_kv = NewTensor(kFalOut, "d_kv", kv);
  const ThetaGradient d_theta(kFalOut, theta, q, wants_theta);
  FlaoFalOutBackward(ViewOf(q), ViewOf(kv), ViewOf(g), ViewOf(d_out), ViewOf(dq), ViewOf(d_kv),
                     ViewOf(dg), half.options, PrecisionOf(kFalOut, precision), d_theta.view);
  return {dq, d_kv, dg, d_theta.tensor};
}

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY_FRAGMENT(attnops, m) {
  m.def("flao_kv(Tensor k, Tensor v, int? precision) -> Tensor kv");
  m.def(
      "flao_kv_backward(Tensor k, Tensor v, Tensor d_kv, int? precision) -> (Tensor dk, Tensor "
      "dv)");
  m.def("flao_out(Tensor q, Tensor kv, Tensor g, int? precision) -> Tensor out");
  m.def(
      "flao_out_backward(Tensor q, Tensor kv, Tensor g, Tensor d_out, int? precision) -> "
      "(Tensor dq, Tensor d_kv, Tensor dg)");
  m.def(
      "flao_fal_kv(Tensor k, Tensor v, Tensor? theta, int k_act, int? k_dim, int v_act, "
      "int? v_dim, int lrpe, SymInt[]? shape, SymInt offset, SymInt l, SymInt start, "
      "int? precision) -> Tensor kv");
  m.def(
      "flao_fal_kv_backward(Tensor k, Tensor v, Tensor d_kv, Tensor? theta, int k_act, int? k_dim, "
      "int v_act, int? v_dim, int lrpe, SymInt[]? shape, SymInt offset, SymInt l, SymInt start, "
      "int? precision, bool wants_theta) -> (Tensor dk, Tensor dv, Tensor d_theta)");
  m.def(
      "flao_fal_out(Tensor q, Tensor kv, Tensor g, Tensor? theta, int q_act, int? q_dim, "
      "int g_act, int? g_dim, int lrpe, SymInt[]? shape, SymInt offset, SymInt l, SymInt start, "
      "int? precision) -> Tensor out");
  m.def(
      "flao_fal_out_backward(Tensor q, Tensor kv, Tensor g, Tensor d_out, Tensor? theta, "
      "int q_act, int? q_dim, int g_act, int? g_dim, int lrpe, SymInt[]? shape, SymInt offset, "
      "SymInt l, SymInt start, int? precision, bool wants_theta) -> (Tensor dq, Tensor d_kv, "
      "Tensor dg, Tensor d_theta)");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("flao_kv", TORCH_BOX(&attnops::torch_binding::Kv));
  m.impl("flao_kv_backward", TORCH_BOX(&attnops::torch_binding::KvBackward));
  m.impl("flao_out", TORCH_BOX(&attnops::torch_binding::Out));
  m.impl("flao_out_backward", TORCH_BOX(&attnops::torch_binding::OutBackward));
  m.impl("flao_fal_kv", TORCH_BOX(&attnops::torch_binding::FalKv));
  m.impl("flao_fal_kv_backward", TORCH_BOX(&attnops::torch_binding::FalKvBackward));
  m.impl("flao_fal_out", TORCH_BOX(&attnops::torch_binding::FalOut));
  m.impl("flao_fal_out_backward", TORCH_BOX(&attnops::torch_binding::FalOutBackward));
}
