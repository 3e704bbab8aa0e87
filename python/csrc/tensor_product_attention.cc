// tpa_decode as torch.ops.attnops.tpa_decode
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

Tensor TpaDecode(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                 const Tensor& bk, const Tensor& bv, std::optional<double> scale,
                 std::optional<double> scale_q, double scale_k, double scale_v, std::int64_t split,
                 std::optional<std::int64_t> precision) {
  constexpr char kOp[] = "tpa_decode";
  const TpaDecodeOptions options{scale,
                                 scale_q,
                                 scale_k,
                                 scale_v,
                                 ChoiceOf(kOp, "split", split, TpaSplit::kBN),
                                 PrecisionOf(kOp, precision)};
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

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY_FRAGMENT(attnops, m) {
  m.def(
      "tpa_decode(Tensor aq, Tensor ak, Tensor av, Tensor bq, Tensor bk, Tensor bv, float? scale, "
      "float? scale_q, float scale_k, float scale_v, int split, int? precision=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("tpa_decode", TORCH_BOX(&attnops::torch_binding::TpaDecode));
}
