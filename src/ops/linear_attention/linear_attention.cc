// linear_attention: checks of the arguments, and the call they make.
#include "attnops/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "src/core/checks.h"
#include "src/core/dtype_switch.h"
#include "src/core/numeric.h"
#include "src/core/precision.h"
#include "src/ops/linear_attention/causal_schedule.h"

namespace attnops {
namespace {

using causal::Call;
using causal::Decay;
using causal::Problem;

constexpr char kOp[] = "linear_attention";

// An output and its name in messages, and what it may be the same as.
struct NamedOutput {
  const char* name;
  const TensorView* view;
};
struct NamedInput {
  const char* name;
  const ConstTensorView* view;
};

struct Sizes {
  std::int64_t B, N, key_heads, heads, D, E, sequences;
};

Sizes CheckInputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  const LinearAttentionOptions& options) {
  CheckRank(kOp, "q", q, 4, "(B,N,H,D)");
  CheckRank(kOp, "k", k, 4, "(B,N,H,D)");
  CheckRank(kOp, "v", v, 4, "(B,N,H,E)");
  CheckSameShape(kOp, "k", k, "q", q);
  CheckAxis(kOp, "v", v, 0, "batches", "q", q.shape(0));
  CheckAxis(kOp, "v", v, 1, "tokens", "q", q.shape(1));
  const std::int64_t key_heads = q.shape(2), heads = v.shape(2);
  if (heads != key_heads && (key_heads == 0 || heads % key_heads != 0)) {
    Fail(kOp, "v has ", heads, " heads; it must be a multiple of the ", key_heads, " of q and k");
  }
  CheckSameType(kOp, "k", k, "q", q);
  CheckSameType(kOp, "v", v, "q", q);
  Sizes sizes{q.shape(0), q.shape(1), key_heads, heads, q.shape(3), v.shape(3), q.shape(0)};
  const std::vector<std::int64_t>& bounds = options.cu_seqlens;
  if (!bounds.empty()) {
    if (sizes.B != 1) Fail(kOp, "cu_seqlens needs a batch of 1; q has ", sizes.B, " batches");
    if (bounds.front() != 0) Fail(kOp, "cu_seqlens must begin with 0; it begins with ", bounds[0]);
    if (bounds.back() != sizes.N) {
      Fail(kOp, "cu_seqlens must end with the ", sizes.N, " tokens of q; it ends with ",
           bounds.back());
    }
    for (std::size_t i = 1; i < bounds.size(); ++i) {
      if (bounds[i] < bounds[i - 1]) {
        Fail(kOp, "cu_seqlens must not decrease; ", bounds[i], " follows ", bounds[i - 1]);
      }
    }
    sizes.sequences = static_cast<std::int64_t>(bounds.size()) - 1;
  }
  return sizes;
}

void CheckDecayType(const char* name, const ConstTensorView& view, DType dtype) {
  if (view.dtype() != dtype && view.dtype() != DType::kFloat32) {
    Fail(kOp, name, " must be float32 or have the type of q, ", Name(dtype), "; it is ",
         Name(view.dtype()));
  }
}

// The same elements with an axis of one feature, where the last axis need not be contiguous.
template <typename View>
View WithFeature(const View& view) {
  Dims shape = view.shape(), strides = view.strides();
  std::int64_t sizes[4] = {}, steps[4] = {};
  const int rank = view.rank();
  for (int i = 0; i < rank; ++i) {
    sizes[i] = shape[i];
    steps[i] = strides[i];
  }
  sizes[rank] = steps[rank] = 1;
  return {view.data(), view.dtype(), Dims(sizes, rank + 1), Dims(steps, rank + 1)};
}

// log_decay: which of its shapes it has.
Decay CheckDecays(const LinearAttentionOptions& options, const Sizes& sizes, DType dtype) {
  Decay decay = Decay::kConstant;
  if (options.log_decay) {
    const ConstTensorView& view = *options.log_decay;
    if (view.rank() != 1 && view.rank() != 3 && view.rank() != 4) {
      Fail(kOp, "log_decay must have the axes (H), (B,N,H) or (B,N,H,D); its shape is ",
           ToString(view.shape()));
    }
    decay =
        view.rank() == 1 ? Decay::kConstant : (view.rank() == 3 ? Decay::kToken : Decay::kFeature);
    if (decay == Decay::kConstant) CheckShape(kOp, "log_decay", view, {sizes.heads});
    if (decay == Decay::kToken) {
      CheckShape(kOp, "log_decay", view, {sizes.B, sizes.N, sizes.heads});
    }
    if (decay == Decay::kFeature) {
      CheckShape(kOp, "log_decay", view, {sizes.B, sizes.N, sizes.heads, sizes.D});
    }
    CheckDecayType("log_decay", view, dtype);
    CheckView(kOp, "log_decay", decay == Decay::kFeature ? view : WithFeature(view));
  }
  if (options.log_decay_v) {
    CheckShape(kOp, "log_decay_v", *options.log_decay_v, {sizes.B, sizes.N, sizes.heads, sizes.E});
    CheckDecayType("log_decay_v", *options.log_decay_v, dtype);
    CheckView(kOp, "log_decay_v", *options.log_decay_v);
  }
  return decay;
}

void CheckState(const char* name, const ConstTensorView& view, const Sizes& sizes) {
  CheckShape(kOp, name, view, {sizes.sequences, sizes.heads, sizes.D, sizes.E});
  if (view.dtype() != DType::kFloat32) {
    Fail(kOp, name, " must be float32; it is ", Name(view.dtype()));
  }
  CheckView(kOp, name, view);
}

void CheckKept(const ConstTensorView& view, const Sizes& sizes) {
  CheckShape(kOp, "kept_states", view,
             {LinearAttentionKeptStates(sizes.B, sizes.N), sizes.heads, sizes.D, sizes.E});
  if (view.dtype() != DType::kFloat32) {
    Fail(kOp, "kept_states must be float32; it is ", Name(view.dtype()));
  }
  CheckView(kOp, "kept_states", view);
}

void CheckLike(const char* name, const TensorView& view, const char* other_name,
               const ConstTensorView& other) {
  CheckSameShape(kOp, name, view, other_name, other);
  CheckSameType(kOp, name, view, other_name, other);
  CheckOutput(kOp, name, view);
}

// No output shares memory with an input or another output; state may be initial_state.
void CheckAllApart(const std::vector<NamedOutput>& outputs, const std::vector<NamedInput>& inputs,
                   const TensorView* state, const ConstTensorView* initial_state) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const NamedInput& input : inputs) {
      if (outputs[i].view == state && input.view == initial_state) {
        CheckApartOrSame(kOp, outputs[i].name, *state, input.name, *initial_state);
      } else {
        CheckApart(kOp, outputs[i].name, *outputs[i].view, input.name, *input.view);
      }
    }
    for (std::size_t j = 0; j < i; ++j) {
      CheckApart(kOp, outputs[i].name, *outputs[i].view, outputs[j].name, *outputs[j].view);
    }
  }
}
std::vector<NamedInput> InputsOf(const ConstTensorView& q, const ConstTensorView& k,
                                 const ConstTensorView& v, const LinearAttentionOptions& options) {
  std::vector<NamedInput> inputs = {{"q", &q}, {"k", &k}, {"v", &v}};
  if (options.log_decay) inputs.push_back({"log_decay", &*options.log_decay});
  if (options.log_decay_v) inputs.push_back({"log_decay_v", &*options.log_decay_v});
  if (options.initial_state) inputs.push_back({"initial_state", &*options.initial_state});
  return inputs;
}

template <typename Tensor, typename View>
Tensor RowsOf(const View& view) {
  return {view.data(), view.stride(0), view.stride(2), view.stride(1)};
}
template <typename Pointer, typename View>
causal::StateTensor<Pointer> StatesOf(const std::optional<View>& view) {
  if (!view) return {};
  return {static_cast<Pointer>(view->data()), view->stride(0), view->stride(1), view->stride(2)};
}

Call CallOf(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
            const LinearAttentionOptions& options, const Sizes& sizes, Decay decay) {
  Call call;
  call.dtype = q.dtype();
  call.precision = PrecisionOf(kOp, options.precision, q.dtype());
  call.heads = sizes.heads;
  call.key_heads = sizes.key_heads;
  Problem& problem = call.problem;
  problem.D = sizes.D;
  problem.E = sizes.E;
  problem.scale = static_cast<float>(
      options.scale ? *options.scale
                    : 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(sizes.D, 1))));
  problem.q = RowsOf<Input>(q);
  problem.k = RowsOf<Input>(k);
  problem.v = RowsOf<Input>(v);
  problem.decay = decay;
  problem.has_decay = options.log_decay.has_value();
  if (options.log_decay) {
    const ConstTensorView& view = *options.log_decay;
    problem.float_decay = view.dtype() == DType::kFloat32;
    if (decay == Decay::kConstant) {
      WithType(view.dtype(), [&](auto tag) {
        const auto* data = static_cast<const typename decltype(tag)::Type*>(view.data());
        for (std::int64_t i = 0; i < sizes.heads; ++i) {
          call.constants.push_back(ToFloat(data[i * view.stride(0)]));
        }
      });
    } else {
      problem.log_decay = RowsOf<Input>(view);
    }
  }
  if (options.log_decay_v) {
    problem.float_decay_v = options.log_decay_v->dtype() == DType::kFloat32;
    problem.log_decay_v = RowsOf<Input>(*options.log_decay_v);
  }
  call.initial_state = StatesOf<const float*>(options.initial_state);
  const std::vector<std::int64_t>& bounds = options.cu_seqlens;
  for (std::int64_t i = 0; i < sizes.sequences; ++i) {
    if (bounds.empty()) {
      call.sequences.push_back({i, 0, sizes.N});
    } else {
      const auto at = static_cast<std::size_t>(i);
      call.sequences.push_back({0, bounds[at], bounds[at + 1] - bounds[at]});
    }
  }
  return call;
}

}  // namespace

std::int64_t LinearAttentionKeptStates(std::int64_t batches, std::int64_t tokens) {
  return batches * (tokens / causal::kSegmentTokens);
}

void LinearAttention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const LinearAttentionOptions& options) {
  const Sizes sizes = CheckInputs(q, k, v, options);
  const Decay decay = CheckDecays(options, sizes, q.dtype());
  if (options.initial_state) CheckState("initial_state", *options.initial_state, sizes);
  CheckLike("out", out, "v", v);
  std::vector<NamedOutput> outputs = {{"out", &out}};
  if (options.state) {
    CheckState("state", *options.state, sizes);
    CheckOutput(kOp, "state", *options.state);
    outputs.push_back({"state", &*options.state});
  }
  if (options.kept_states) {
    CheckKept(*options.kept_states, sizes);
    CheckOutput(kOp, "kept_states", *options.kept_states);
    outputs.push_back({"kept_states", &*options.kept_states});
  }
  CheckAllApart(outputs, InputsOf(q, k, v, options), options.state ? &*options.state : nullptr,
                options.initial_state ? &*options.initial_state : nullptr);
  Call call = CallOf(q, k, v, options, sizes, decay);
  call.problem.constants = call.constants.data();
  call.problem.out = RowsOf<Output>(out);
  call.state = StatesOf<float*>(options.state);
  call.kept = StatesOf<float*>(options.kept_states);
  causal::RunForward(call);
}

void LinearAttentionBackward(const ConstTensorView& q, const ConstTensorView& k,
                             const ConstTensorView& v, const ConstTensorView& d_out,
                             const TensorView& dq, const TensorView& dk, const TensorView& dv,
                             const LinearAttentionOptions& options,
                             const LinearAttentionGradients& gradients) {
  const Sizes sizes = CheckInputs(q, k, v, options);
  const Decay decay = CheckDecays(options, sizes, q.dtype());
  if (options.initial_state) CheckState("initial_state", *options.initial_state, sizes);
  CheckSameShape(kOp, "d_out", d_out, "v", v);
  CheckSameType(kOp, "d_out", d_out, "v", v);
  CheckView(kOp, "d_out", d_out);
  std::vector<NamedInput> inputs = InputsOf(q, k, v, options);
  inputs.push_back({"d_out", &d_out});
  if (gradients.d_state) {
    CheckState("d_state", *gradients.d_state, sizes);
    inputs.push_back({"d_state", &*gradients.d_state});
  }
  if (gradients.kept_states) {
    CheckKept(*gradients.kept_states, sizes);
    inputs.push_back({"kept_states", &*gradients.kept_states});
  }
  CheckLike("dq", dq, "q", q);
  CheckLike("dk", dk, "k", k);
  CheckLike("dv", dv, "v", v);
  std::vector<NamedOutput> outputs = {{"dq", &dq}, {"dk", &dk}, {"dv", &dv}};
  const auto check_decay = [&](const char* name, const std::optional<TensorView>& view,
                               const char* of_name, const std::optional<ConstTensorView>& of) {
    if (!view) return;
    if (!of) Fail(kOp, name, " needs ", of_name);
    CheckSameShape(kOp, name, *view, of_name, *of);
    CheckSameType(kOp, name, *view, of_name, *of);
    CheckOutput(kOp, name, view->rank() == 4 ? *view : WithFeature(*view));
    outputs.push_back({name, &*view});
  };
  check_decay("d_log_decay", gradients.d_log_decay, "log_decay", options.log_decay);
  check_decay("d_log_decay_v", gradients.d_log_decay_v, "log_decay_v", options.log_decay_v);
  if (gradients.d_initial_state) {
    CheckState("d_initial_state", *gradients.d_initial_state, sizes);
    CheckOutput(kOp, "d_initial_state", *gradients.d_initial_state);
    outputs.push_back({"d_initial_state", &*gradients.d_initial_state});
  }
  CheckAllApart(outputs, inputs, nullptr, nullptr);

  Call call = CallOf(q, k, v, options, sizes, decay);
  Problem& problem = call.problem;
  problem.constants = call.constants.data();
  problem.d_out = RowsOf<Input>(d_out);
  problem.dq = RowsOf<Output>(dq);
  problem.dk = RowsOf<Output>(dk);
  problem.dv = RowsOf<Output>(dv);
  call.d_state = StatesOf<const float*>(gradients.d_state);
  call.kept_before = StatesOf<const float*>(gradients.kept_states);
  call.d_initial_state = StatesOf<float*>(gradients.d_initial_state);
  if (gradients.d_log_decay) {
    const TensorView& view = *gradients.d_log_decay;
    problem.d_log_decay = decay == Decay::kConstant ? Output{view.data(), 0, view.stride(0), 0}
                                                    : RowsOf<Output>(view);
  }
  if (gradients.d_log_decay_v) problem.d_log_decay_v = RowsOf<Output>(*gradients.d_log_decay_v);
  problem.wants_decay = gradients.d_log_decay || gradients.d_log_decay_v;
  causal::RunBackward(call);
}

}  // namespace attnops
