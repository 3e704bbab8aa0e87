// Linear attention, causal, with decay and state.
#ifndef ATTNOPS_LINEAR_ATTENTION_H_
#define ATTNOPS_LINEAR_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "attnops/precision.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

struct LinearAttentionOptions {
  // (H): a constant for each head; (B,N,H): a number for each token; (B,N,H,D): one for each of its
  // features. float32 or of the tensors' type. Without it nothing decays.
  std::optional<ConstTensorView> log_decay;
  // (B,N,H,E), on the side of the values.
  std::optional<ConstTensorView> log_decay_v;
  std::optional<double> scale;  // D^−½ if not given
  // (B,H,D,E), or (sequences,H,D,E) with cu_seqlens, float32; 0 if not given.
  std::optional<ConstTensorView> initial_state;
  // The state behind the last token is written to it, if given; it may be initial_state itself.
  std::optional<TensorView> state;
  // Sequences packed into one (B = 1): sequence i has the tokens [cu_seqlens[i], cu_seqlens[i+1]).
  // Begins with 0, ends with N. Empty: each batch is a sequence.
  std::vector<std::int64_t> cu_seqlens;
  // (LinearAttentionKeptStates(B, N),H,D,E), float32: states that the forward keeps for the
  // backward, which computes them anew if they are not given. What is left over is not written.
  std::optional<TensorView> kept_states;
  std::optional<Precision> precision = {};  // GetPrecision() if not given
};

// How many states of each head the forward may keep: those at every 1024th token of a sequence, for
// D = E = 128 a twelfth of the bytes of q, k and v in bfloat16.
std::int64_t LinearAttentionKeptStates(std::int64_t batches, std::int64_t tokens);

// For each head, with λ = exp(log_decay) and μ = exp(log_decay_v):
//   S_t = diag(λ_t)·S_{t−1}·diag(μ_t) + k_t·v_tᵀ      out_t = scale · q_tᵀ·S_t
// q, k (B,N,Hk,D), v and out (B,N,H,E), all of one type; Hk divides H. Other orders of the axes are
// strides. States and all sums are float32. Outputs share no memory with inputs or each other.
void LinearAttention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const LinearAttentionOptions& options = {});

// What the backward takes and gives beside d_out, dq, dk and dv, each with the shape and type of
// what it is the gradient of.
struct LinearAttentionGradients {
  std::optional<ConstTensorView> d_state;  // of the last state; 0 if not given
  std::optional<TensorView> d_log_decay, d_log_decay_v, d_initial_state;  // written if given
  std::optional<ConstTensorView> kept_states;  // as the forward wrote them for the same inputs
};

// The gradients; options.state and options.kept_states are not used. States that were not kept are
// computed anew, with the same bits.
void LinearAttentionBackward(const ConstTensorView& q, const ConstTensorView& k,
                             const ConstTensorView& v, const ConstTensorView& d_out,
                             const TensorView& dq, const TensorView& dk, const TensorView& dv,
                             const LinearAttentionOptions& options = {},
                             const LinearAttentionGradients& gradients = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_LINEAR_ATTENTION_H_
