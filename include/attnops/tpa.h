// Tensor product attention of any rank: prefill, training, and decoding from a cache of factors.
#ifndef ATTNOPS_TPA_H_
#define ATTNOPS_TPA_H_

#include <cstdint>
#include <optional>

#include "attnops/precision.h"
#include "attnops/tpa_decode.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

// The queries: the factors a (B,N,H,R_q) and b (B,N,R_q,D), or whole ones, full (B,N,H,D).
struct TpaQuery {
  std::optional<ConstTensorView> a, b, full;

  static TpaQuery Factors(const ConstTensorView& a, const ConstTensorView& b) {
    return {a, b, std::nullopt};
  }
  static TpaQuery Full(const ConstTensorView& q) { return {std::nullopt, std::nullopt, q}; }
};

// The factors of keys and values: ak (B,M,H,R_k), bk (B,M,R_k,D), av (B,M,H,R_v), bv (B,M,R_v,E).
struct TpaKeys {
  ConstTensorView ak, av, bk, bv;
};

struct TpaOptions {
  bool causal = true;             // query n sees the keys up to n + (M − N); TpaDecode sees all
  std::optional<double> scale;    // D^-1/2 if not given
  std::optional<double> scale_q;  // 1/R_q if not given, 1 for full queries
  std::optional<double> scale_k;  // 1/R_k if not given
  std::optional<double> scale_v;  // 1/R_v if not given
  std::optional<Precision> precision = {};  // GetPrecision() if not given
};

//   q[n,h] = scale_q · Σ_r aq[n,h,r]·bq[n,r]      k and v likewise
//   s[n,m] = scale · q[n,h]·k[m,h]
//   out[n,h] = Σ_m softmax_m(s[n])[m] · v[m,h]    lse[h,n] = log Σ_m exp(s[n,m])
// out (B,N,H,E) has the type of all factors and shares no memory with them; lse (B,H,N) is float32
// and may be left out. K and V of a few keys of one head exist at a time. Causal calls have M ≥ N.
// lengths (B) says how many of the M keys a sequence has; those behind are not read. Without keys
// out is 0 and lse −Inf.
void Tpa(const TpaQuery& query, const TpaKeys& keys, const TensorView& out,
         const std::optional<TensorView>& lse = {}, const TpaOptions& options = {},
         const std::int64_t* lengths = nullptr);

// The gradients of what Tpa was given, in the shapes of its arguments.
struct TpaGradients {
  std::optional<TensorView> aq, bq, q;
  TensorView ak, av, bk, bv;
};
// out and lse are Tpa's, or TpaDecode's. The gradients of keys that a sequence does not have are 0.
void TpaBackward(const TpaQuery& query, const TpaKeys& keys, const ConstTensorView& out,
                 const ConstTensorView& lse, const ConstTensorView& d_out,
                 const TpaGradients& gradients, const TpaOptions& options = {},
                 const std::int64_t* lengths = nullptr);

// Which tokens the sequences of a cache have. Without lengths all of them, M. With a page table the
// factors are pages, ak (P,page_size,H,R_k) and so on, and token t of sequence b is in page
// table[b·table_stride + t / page_size]; sequences may share pages.
struct TpaSequences {
  const std::int64_t* lengths = nullptr;     // (B)
  const std::int64_t* page_table = nullptr;  // (B, table_pages)
  std::int64_t table_pages = 0;
  std::int64_t table_stride = 0;
};

// One decoding step: queries of one token, N = 1, to all tokens of their sequence. out is (B,1,H,E)
// and lse (B,H,1). A sequence of length 0 has out 0 and lse −Inf. The bits of a sequence's result
// depend on nothing but its tokens: not on the split, the pages, or the other sequences.
void TpaDecode(const TpaQuery& query, const TpaKeys& keys, const TensorView& out,
               const TpaSequences& sequences = {}, const std::optional<TensorView>& lse = {},
               const TpaOptions& options = {}, TpaSplit split = TpaSplit::kAuto);

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_TPA_H_
