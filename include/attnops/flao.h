// Linear attention with an output gate, not causal.
#ifndef ATTNOPS_FLAO_H_
#define ATTNOPS_FLAO_H_

#include <optional>

#include "attnops/precision.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

// Tensors that the forward keeps for the backward; those that are given are written.
struct FlaoOptions {
  std::optional<TensorView> kv;   // (B,H,D,E), float32
  std::optional<TensorView> qkv;  // (B,H,N,E), of q's type, but float32 if that is float16
  std::optional<Precision> precision = {};  // GetPrecision() if not given
};

// The tensors that the forward kept. The backward computes the missing ones anew.
struct FlaoKept {
  std::optional<ConstTensorView> kv;
  std::optional<ConstTensorView> qkv;
  std::optional<Precision> precision = {};  // GetPrecision() if not given
};

//   KV = Kᵀ·V    QKV = Q·KV    out = G ⊙ QKV
// q (B,H,N,D), k (B,H,M,D), v (B,H,M,E), g and out (B,H,N,E), all of one type. KV and all sums
// are float32. Outputs share no memory with inputs or each other.
void Flao(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
          const ConstTensorView& g, const TensorView& out, const FlaoOptions& options = {});

// The gradients of the inputs from that of out, with their shapes and type:
//   dG = dO ⊙ QKV      dQKV = dO ⊙ G
//   dQ = dQKV·KVᵀ      dKV = Qᵀ·dQKV      dK = V·dKVᵀ      dV = K·dKV
void FlaoBackward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  const ConstTensorView& g, const ConstTensorView& d_out, const TensorView& dq,
                  const TensorView& dk, const TensorView& dv, const TensorView& dg,
                  const FlaoKept& kept = {});

// Flao in two halves, to use KV again and for sequences that are spread over machines.
//   kv = Kᵀ·V
// k (B,H,M,D), v (B,H,M,E); kv (B,H,D,E), float32. The KVs of parts of a sequence add up.
void FlaoKv(const ConstTensorView& k, const ConstTensorView& v, const TensorView& kv,
            std::optional<Precision> precision = {});
//   dK = V·dKVᵀ      dV = K·dKV
void FlaoKvBackward(const ConstTensorView& k, const ConstTensorView& v, const ConstTensorView& d_kv,
                    const TensorView& dk, const TensorView& dv,
                    std::optional<Precision> precision = {});
//   out = G ⊙ (Q·KV)
void FlaoOut(const ConstTensorView& q, const ConstTensorView& kv, const ConstTensorView& g,
             const TensorView& out, std::optional<Precision> precision = {});
// dq, dg and, in float32, d_kv.
void FlaoOutBackward(const ConstTensorView& q, const ConstTensorView& kv, const ConstTensorView& g,
                     const ConstTensorView& d_out, const TensorView& dq, const TensorView& d_kv,
                     const TensorView& dg, std::optional<Precision> precision = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_FLAO_H_
