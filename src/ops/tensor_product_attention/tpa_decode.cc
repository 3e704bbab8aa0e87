// Checks of tpa_decode.
#include "attnops/tpa_decode.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "src/core/checks.h"
#include "src/core/precision.h"
#include "src/ops/tensor_product_attention/kernels.h"

namespace attnops {
namespace {

using tensor_product_attention::Problem;

constexpr char kOp[] = "tpa_decode";

void CheckInputs(const ConstTensorView& aq, const ConstTensorView& ak, const ConstTensorView& av,
                 const ConstTensorView& bq, const ConstTensorView& bk, const ConstTensorView& bv) {
  CheckRank(kOp, "aq", aq, 4, "(B,1,H,R)");
  CheckRank(kOp, "ak", ak, 3, "(B,M,H)");
  CheckRank(kOp, "av", av, 3, "(B,M,H)");
  CheckRank(kOp, "bq", bq, 4, "(B,1,R,D)");
  CheckRank(kOp, "bk", bk, 3, "(B,M,D)");
  CheckRank(kOp, "bv", bv, 3, "(B,M,E)");
  const std::pair<const char*, const ConstTensorView&> queries[] = {{"aq", aq}, {"bq", bq}};
  for (const auto& [name, view] : queries) {
    if (view.shape(1) != 1) {
      Fail(kOp, name, " must have 1 token (axis 1); it has ", view.shape(1));
    }
  }
  const std::pair<const char*, const ConstTensorView&> others[] = {
      {"ak", ak}, {"av", av}, {"bq", bq}, {"bk", bk}, {"bv", bv}};
  for (const auto& [name, view] : others) {
    CheckAxis(kOp, name, view, 0, "batches", "aq", aq.shape(0));
  }
  CheckAxis(kOp, "ak", ak, 2, "heads", "aq", aq.shape(2));
  CheckAxis(kOp, "av", av, 2, "heads", "aq", aq.shape(2));
  CheckAxis(kOp, "bq", bq, 2, "ranks", "aq", aq.shape(3));
  CheckAxis(kOp, "bk", bk, 2, "features", "bq", bq.shape(3));
  CheckAxis(kOp, "av", av, 1, "tokens", "ak", ak.shape(1));
  CheckAxis(kOp, "bk", bk, 1, "tokens", "ak", ak.shape(1));
  CheckAxis(kOp, "bv", bv, 1, "tokens", "ak", ak.shape(1));
  for (const auto& [name, view] : others) CheckSameType(kOp, name, view, "aq", aq);
}

void CheckOptions(const TpaDecodeOptions& options) {
  const int split = static_cast<int>(options.split);
  if (split < 0 || split > static_cast<int>(TpaSplit::kBN)) {
    Fail(kOp, "split is no known way to divide the work (", split, ")");
  }
}

void CheckOut(const TensorView& out, const ConstTensorView& aq, const ConstTensorView& bv) {
  CheckShape(kOp, "out", out, {aq.shape(0), 1, aq.shape(2), bv.shape(2)});
  CheckSameType(kOp, "out", out, "aq", aq);
  CheckOutput(kOp, "out", out);
}

// A tensor with the strides of its heads and tokens. An empty tensor needs no data pointer: all its
// rows are at one address that exists.
Input InputOf(const ConstTensorView& view, std::int64_t head, std::int64_t token) {
  static constexpr float kNothing = 0;
  if (view.size() == 0) return {&kNothing, 0, 0, 0};
  return {view.data(), view.stride(0), head, token};
}
Input CacheOf(const ConstTensorView& view) { return InputOf(view, 0, view.stride(1)); }

void SetZero(const TensorView& out) {
  const std::int64_t size = SizeOf(out.dtype());
  for (std::int64_t b = 0; b < out.shape(0); ++b) {
    for (std::int64_t h = 0; h < out.shape(2); ++h) {
      char* row = static_cast<char*>(out.data()) + (b * out.stride(0) + h * out.stride(2)) * size;
      std::memset(row, 0, static_cast<std::size_t>(out.shape(3) * size));
    }
  }
}

// 1/√n or 1/n; nothing to scale if n is 0.
double InverseRoot(std::int64_t n) { return n == 0 ? 1 : 1 / std::sqrt(static_cast<double>(n)); }
double Inverse(std::int64_t n) { return n == 0 ? 1 : 1 / static_cast<double>(n); }

}  // namespace

void TpaDecode(const ConstTensorView& aq, const ConstTensorView& ak, const ConstTensorView& av,
               const ConstTensorView& bq, const ConstTensorView& bk, const ConstTensorView& bv,
               const TensorView& out, const TpaDecodeOptions& options) {
  CheckInputs(aq, ak, av, bq, bk, bv);
  CheckOptions(options);
  const Precision precision = PrecisionOf(kOp, options.precision, aq.dtype());
  CheckOut(out, aq, bv);
  CheckApart(kOp, "out", out, "aq", aq);
  CheckApart(kOp, "out", out, "ak", ak);
  CheckApart(kOp, "out", out, "av", av);
  CheckApart(kOp, "out", out, "bq", bq);
  CheckApart(kOp, "out", out, "bk", bk);
  CheckApart(kOp, "out", out, "bv", bv);
  if (out.size() == 0) return;
  if (ak.shape(1) == 0) return SetZero(out);
  const std::int64_t H = aq.shape(2), R = aq.shape(3), D = bq.shape(3);
  const double scale =
      options.scale.value_or(InverseRoot(D)) * options.scale_q.value_or(Inverse(R));
  const Problem problem{aq.shape(0),
                        ak.shape(1),
                        H,
                        R,
                        D,
                        bv.shape(2),
                        InputOf(aq, aq.stride(2), 0),
                        CacheOf(ak),
                        CacheOf(av),
                        InputOf(bq, 0, bq.stride(2)),
                        CacheOf(bk),
                        CacheOf(bv),
                        {out.data(), out.stride(0), out.stride(2), 0},
                        static_cast<float>(scale * options.scale_k),
                        static_cast<float>(options.scale_v),
                        R * (D + H) < H * D};
  Run(problem, aq.dtype(), precision, options.split);
}

}  // namespace attnops
