// Tensor product attention, one decoding step.
#ifndef ATTNOPS_TPA_DECODE_H_
#define ATTNOPS_TPA_DECODE_H_

#include <optional>

#include "attnops/precision.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

// How the work is divided among threads: by batch, by batch and heads, or by batch and pieces of
// the sequence. The result has the same bits with each.
enum class TpaSplit { kAuto, kB, kBH, kBN };

struct TpaDecodeOptions {
  std::optional<double> scale;    // D^-1/2 if not given
  std::optional<double> scale_q;  // 1/R if not given
  double scale_k = 1;
  double scale_v = 1;
  TpaSplit split = TpaSplit::kAuto;
  std::optional<Precision> precision = {};  // GetPrecision() if not given
};

//   q[h]   = scale_q · Σ_r aq[h,r]·bq[r]
//   s[h,m] = scale · scale_k · ak[m,h] · (q[h] · bk[m])
//   out[h] = scale_v · Σ_m softmax_m(s[h])[m] · av[m,h] · bv[m]
// aq (B,1,H,R), bq (B,1,R,D), ak and av (B,M,H), bk (B,M,D), bv (B,M,E), out (B,1,H,E), all of one
// type; out shares no memory with the inputs. With M = 0 out is 0. A cache may be a slice of
// a larger one: the strides of all axes but the last are free.
void TpaDecode(const ConstTensorView& aq, const ConstTensorView& ak, const ConstTensorView& av,
               const ConstTensorView& bq, const ConstTensorView& bk, const ConstTensorView& bv,
               const TensorView& out, const TpaDecodeOptions& options = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_TPA_DECODE_H_
