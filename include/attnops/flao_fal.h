// Linear attention with an output gate, its activations and its position encoding fused in.
#ifndef ATTNOPS_FLAO_FAL_H_
#define ATTNOPS_FLAO_FAL_H_

#include <cstdint>
#include <optional>

#include "attnops/flao.h"
#include "attnops/types.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

// The position encoding of q and k.
enum class Lrpe { kNone, kCosine, kRotate };

struct FlaoFalOptions {
  // Softmax over the features (-1) or the sequence (2).
  Activation q_act = {};
  Activation k_act = {};
  Activation v_act = {};
  Activation g_act = {};

  Lrpe lrpe = Lrpe::kNone;
  // Given with an encoding only; of q's type or float32. Here E is the number of angles of a head
  // and axis, not the features of v. kCosine: (H,E) or (1,E), E·k ≥ D for k axes. kRotate, D even:
  // (H,E), (1,E) or (H,1), E ≤ D/2, in 1-d; (H,E) or (1,E), E·k ≥ D/2, on more axes.
  std::optional<ConstTensorView> theta = {};
  // n_1 … n_k, with N = M = l + n_1·…·n_k. If it has no axes, the positions are 1-d: those of q
  // from `offset` on, those of k from 0 on.
  Dims shape = {};
  std::int64_t offset = 0;  // of q's tokens in 1-d, within ±2^31; else 0
  std::int64_t l = 0;       // tokens in front that carry no position
  // Of the halves below, else 0: the number, in its sequence, of the first token that is given.
  std::int64_t start = 0;
};

// With the encoding and the activations as in LrpeRotate and MdLrpeCosine,
//   Q̄ = lrpe(q_act(Q))    K̄ = lrpe(k_act(K))    V̄ = v_act(V)    Ḡ = g_act(G)
//   KV = K̄ᵀ·V̄            out = Ḡ ⊙ (Q̄·KV)
// q (B,H,N,D), k (B,H,M,D), v (B,H,M,E), g and out (B,H,N,E), all of one type. `keep` is as for
// Flao, but kv is (B,H,2D,E) with kCosine. Outputs share no memory with inputs or each other.
void FlaoFal(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const ConstTensorView& g, const TensorView& out, const FlaoFalOptions& options,
             const FlaoOptions& keep = {});

// The gradients of q, k, v and g, with their shapes and type, from that of out; and of theta, if
// d_theta is given: float32, of theta's shape (see LrpeRotateThetaGradient).
void FlaoFalBackward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const ConstTensorView& g, const ConstTensorView& d_out, const TensorView& dq,
                     const TensorView& dk, const TensorView& dv, const TensorView& dg,
                     const FlaoFalOptions& options, const FlaoKept& kept = {},
                     const std::optional<TensorView>& d_theta = {});

// The halves of FlaoFal, as those of Flao: kv = K̄ᵀ·V̄ (inner,E), and out = Ḡ ⊙ (Q̄·KV). The tokens
// are the numbers `start`, start + 1, … of a sequence that has the options' l and shape; on a line
// they have the positions offset + number − l, of keys too. Softmax over the sequence is over the
// given tokens. A half uses the activations of its own tensors; d_theta is its share of theta's
// gradient.
void FlaoFalKv(const ConstTensorView& k, const ConstTensorView& v, const TensorView& kv,
               const FlaoFalOptions& options, std::optional<Precision> precision = {});
void FlaoFalKvBackward(const ConstTensorView& k, const ConstTensorView& v,
                       const ConstTensorView& d_kv, const TensorView& dk, const TensorView& dv,
                       const FlaoFalOptions& options, std::optional<Precision> precision = {},
                       const std::optional<TensorView>& d_theta = {});
void FlaoFalOut(const ConstTensorView& q, const ConstTensorView& kv, const ConstTensorView& g,
                const TensorView& out, const FlaoFalOptions& options,
                std::optional<Precision> precision = {});
void FlaoFalOutBackward(const ConstTensorView& q, const ConstTensorView& kv,
                        const ConstTensorView& g, const ConstTensorView& d_out,
                        const TensorView& dq, const TensorView& d_kv, const TensorView& dg,
                        const FlaoFalOptions& options, std::optional<Precision> precision = {},
                        const std::optional<TensorView>& d_theta = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_FLAO_FAL_H_
