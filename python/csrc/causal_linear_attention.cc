// linear_attention as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

constexpr char kOp[] = "linear_attention";

using MaybeTensor = std::optional<Tensor>;
// dq, dk, dv, d_log_decay, d_log_decay_v, d_initial_state; empty if there is no such input.
using CausalGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// (B,N,H,...) as the library has it, of a tensor that may be (B,H,N,...).
TensorView TokensFirst(const Tensor& tensor, bool heads_first) {
  const TensorView view = ViewOf(tensor);
  if (!heads_first || view.rank() < 3) return view;
  Dims shape = view.shape(), strides = view.strides();
  std::swap(shape[1], shape[2]);
  std::swap(strides[1], strides[2]);
  return {view.data(), view.dtype(), shape, strides};
}

std::vector<std::int64_t> BoundsOf(const MaybeTensor& cu_seqlens) {
  if (!cu_seqlens) return {};
  if (cu_seqlens->dim() != 1 || cu_seqlens->size(0) == 0 || !cu_seqlens->is_contiguous() ||
      cu_seqlens->scalar_type() != torch::headeronly::ScalarType::Long) {
    throw Error("linear_attention: cu_seqlens must be a contiguous tensor of int64 with one axis");
  }
  const auto* data = static_cast<const std::int64_t*>(cu_seqlens->const_data_ptr());
  return {data, data + cu_seqlens->size(0)};
}

// The inputs as the operator reads them, and the options they make.
struct CausalInputs {
  CausalInputs(const Tensor& q_given, const Tensor& k_given, const Tensor& v_given,
               const MaybeTensor& log_decay_given, const MaybeTensor& log_decay_v_given,
               std::optional<double> scale, const MaybeTensor& initial_state_given,
               const MaybeTensor& cu_seqlens, bool is_heads_first,
               std::optional<std::int64_t> precision)
      : q(Readable(kOp, "q", q_given)),
        k(Readable(kOp, "k", k_given)),
        v(Readable(kOp, "v", v_given)),
        heads_first(is_heads_first) {
    const auto read = [](const char* name, const MaybeTensor& given, MaybeTensor& tensor) {
      if (given) tensor = Readable(kOp, name, *given);
    };
    read("log_decay", log_decay_given, log_decay);
    read("log_decay_v", log_decay_v_given, log_decay_v);
    read("initial_state", initial_state_given, initial_state);
    if (log_decay) options.log_decay = TokensFirst(*log_decay, heads_first);
    if (log_decay_v) options.log_decay_v = TokensFirst(*log_decay_v, heads_first);
    if (initial_state) options.initial_state = ViewOf(*initial_state);
    options.scale = scale;
    options.cu_seqlens = BoundsOf(cu_seqlens);
    options.precision = PrecisionOf(kOp, precision);
  }

  TensorView View(const Tensor& tensor) const { return TokensFirst(tensor, heads_first); }
  // (sequences, H, D, E); of q's and v's axes, where they have four.
  Dims StateShape() const {
    if (q.dim() != 4 || v.dim() != 4) return {0};
    const std::int64_t sequences = options.cu_seqlens.empty()
                                       ? q.size(0)
                                       : static_cast<std::int64_t>(options.cu_seqlens.size()) - 1;
    return {sequences, v.size(heads_first ? 1 : 2), q.size(3), v.size(3)};
  }

  // The same for what the forward keeps.
  Dims KeptShape() const {
    Dims shape = StateShape();
    if (shape.rank() == 4) {
      shape[0] = LinearAttentionKeptStates(q.size(0), q.size(heads_first ? 2 : 1));
    }
    return shape;
  }

  Tensor q, k, v;
  bool heads_first;
  MaybeTensor log_decay, log_decay_v, initial_state;
  LinearAttentionOptions options;
};

// What a forward keeps: nothing, or states at every 1024th token.
enum class Keep { kNone, kStates };

std::tuple<Tensor, Tensor, Tensor> CausalForward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 MaybeTensor log_decay, MaybeTensor log_decay_v,
                                                 std::optional<double> scale,
                                                 MaybeTensor initial_state, MaybeTensor cu_seqlens,
                                                 bool output_state, bool heads_first,
                                                 std::int64_t keep,
                                                 std::optional<std::int64_t> precision) {
  const bool keeps = ChoiceOf(kOp, "keep", keep, Keep::kStates) == Keep::kStates;
  CausalInputs x(q, k, v, log_decay, log_decay_v, scale, initial_state, cu_seqlens, heads_first,
                 precision);
  const Tensor out = NewTensor(kOp, "out", x.v);
  const Tensor state =
      NewTensor(kOp, "state", x.q, output_state ? x.StateShape() : Dims{0}, ResultType::kFloat32);
  if (output_state && state.dim() == 4) x.options.state = ViewOf(state);
  const Tensor kept =
      NewTensor(kOp, "kept_states", x.q, keeps ? x.KeptShape() : Dims{0}, ResultType::kFloat32);
  if (keeps && kept.dim() == 4) x.options.kept_states = ViewOf(kept);
  attnops::LinearAttention(x.View(x.q), x.View(x.k), x.View(x.v), x.View(out), x.options);
  return {out, state, kept};
}

// The last state in the place of the first one.
Tensor CausalInPlace(const Tensor& q, const Tensor& k, const Tensor& v, Tensor state,
                     MaybeTensor log_decay, MaybeTensor log_decay_v, std::optional<double> scale,
                     MaybeTensor cu_seqlens, bool heads_first,
                     std::optional<std::int64_t> precision) {
  CausalInputs x(q, k, v, log_decay, log_decay_v, scale, {}, cu_seqlens, heads_first, precision);
  const Tensor out = NewTensor(kOp, "out", x.v);
  x.options.initial_state = ViewOf(state);
  x.options.state = ViewOf(state);
  attnops::LinearAttention(x.View(x.q), x.View(x.k), x.View(x.v), x.View(out), x.options);
  return out;
}

CausalGradients CausalBackward(const Tensor& q, const Tensor& k, const Tensor& v,
                               MaybeTensor log_decay, MaybeTensor log_decay_v,
                               std::optional<double> scale, MaybeTensor initial_state,
                               MaybeTensor cu_seqlens, bool heads_first, const Tensor& d_out,
                               MaybeTensor d_state, bool wants_decay, MaybeTensor kept,
                               std::optional<std::int64_t> precision) {
  CausalInputs x(q, k, v, log_decay, log_decay_v, scale, initial_state, cu_seqlens, heads_first,
                 precision);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  LinearAttentionGradients gradients;
  MaybeTensor d_state_read;
  if (d_state) {
    d_state_read = Readable(kOp, "d_state", *d_state);
    gradients.d_state = ViewOf(*d_state_read);
  }
  MaybeTensor kept_read;
  if (kept) {
    kept_read = Readable(kOp, "kept_states", *kept);
    gradients.kept_states = ViewOf(*kept_read);
  }
  const Tensor dq = NewTensor(kOp, "dq", x.q), dk = NewTensor(kOp, "dk", x.k);
  const Tensor dv = NewTensor(kOp, "dv", x.v);
  const auto new_or_empty = [&](const char* name, const MaybeTensor& of, bool wanted) {
    return of && wanted ? NewTensor(kOp, name, *of) : NewTensor(kOp, name, x.q, Dims{0});
  };
  const Tensor d_log_decay = new_or_empty("d_log_decay", x.log_decay, wants_decay);
  const Tensor d_log_decay_v = new_or_empty("d_log_decay_v", x.log_decay_v, wants_decay);
  const Tensor d_initial_state = new_or_empty("d_initial_state", x.initial_state, true);
  if (x.log_decay && wants_decay) gradients.d_log_decay = x.View(d_log_decay);
  if (x.log_decay_v && wants_decay) gradients.d_log_decay_v = x.View(d_log_decay_v);
  if (x.initial_state) gradients.d_initial_state = ViewOf(d_initial_state);
  attnops::LinearAttentionBackward(x.View(x.q), x.View(x.k), x.View(x.v), x.View(d_out_read),
                                   x.View(dq), x.View(dk), x.View(dv), x.options, gradients);
  return {dq, dk, dv, d_log_decay, d_log_decay_v, d_initial_state};
}

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY_FRAGMENT(attnops, m) {
  m.def(
      "linear_attention(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? log_decay_v, "
      "float? scale, Tensor? initial_state, Tensor? cu_seqlens, bool output_state, "
      "bool heads_first, int keep=0, int? precision=None) -> (Tensor out, Tensor state, "
      "Tensor kept)");
  m.def(
      "linear_attention_(Tensor q, Tensor k, Tensor v, Tensor(a!) state, Tensor? log_decay, "
      "Tensor? log_decay_v, float? scale, Tensor? cu_seqlens, bool heads_first, "
      "int? precision=None) -> Tensor out");
  m.def(
      "linear_attention_backward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, "
      "Tensor? log_decay_v, float? scale, Tensor? initial_state, Tensor? cu_seqlens, "
      "bool heads_first, Tensor d_out, Tensor? d_state, bool wants_decay, Tensor? kept=None, "
      "int? precision=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_log_decay, "
      "Tensor d_log_decay_v, Tensor d_initial_state)");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("linear_attention", TORCH_BOX(&attnops::torch_binding::CausalForward));
  m.impl("linear_attention_", TORCH_BOX(&attnops::torch_binding::CausalInPlace));
  m.impl("linear_attention_backward", TORCH_BOX(&attnops::torch_binding::CausalBackward));
}
