// Checks of tpa, both passes.
#include "attnops/tpa.h"

#include <array>
#include <cstring>
#include <utility>

#include "src/core/checks.h"
#include "src/core/precision.h"
#include "src/ops/tensor_product_attention/ranks.h"
#include "src/ops/tensor_product_attention/tpa_arguments.h"

namespace attnops {
namespace {

using namespace tensor_product_attention;  // NOLINT(google-build-using-namespace)

constexpr char kOp[] = "tpa";

TpaSizes CheckCall(const TpaQuery& query, const TpaKeys& keys, const TpaOptions& options,
                   const std::int64_t* lengths) {
  const TpaSizes sizes = CheckFactors(kOp, query, keys);
  if (options.causal && sizes.M < sizes.N) {
    Fail(kOp, "ak has ", sizes.M, " tokens; with causal it must have at least as many as ",
         query.full ? "q" : "aq", ", ", sizes.N);
  }
  CheckSequences(kOp, {lengths}, sizes.B, sizes.B, sizes.M);
  return sizes;
}

PrefillProblem ProblemOf(const TpaSizes& sizes, const TpaQuery& query, const TpaKeys& keys,
                         const TpaOptions& options, const std::int64_t* lengths) {
  const TpaScales scales = ScalesOf(sizes, options);
  PrefillProblem problem{};
  problem.B = sizes.B;
  problem.N = sizes.N;
  problem.M = sizes.M;
  problem.H = sizes.H;
  problem.Rq = sizes.Rq;
  problem.Rk = sizes.Rk;
  problem.Rv = sizes.Rv;
  problem.D = sizes.D;
  problem.E = sizes.E;
  problem.dtype = sizes.dtype;
  problem.causal = options.causal;
  problem.lengths = lengths;
  problem.aq = RowsOf(query.a);
  problem.bq = RowsOf(query.b);
  problem.q = RowsOf(query.full);
  problem.ak = RowsOf(keys.ak);
  problem.bk = RowsOf(keys.bk);
  problem.av = RowsOf(keys.av);
  problem.bv = RowsOf(keys.bv);
  problem.score_scale = static_cast<float>(scales.of_scores);
  problem.value_scale = static_cast<float>(scales.of_values);
  return problem;
}

// An argument that may be missing, and its gradient.
struct Pair {
  const char* name;
  const char* gradient_name;
  const ConstTensorView* input;
  const TensorView* gradient;
};

template <typename View>
const View* PointerTo(const std::optional<View>& view) {
  return view ? &*view : nullptr;
}

// A tensor of four axes, the last contiguous.
void SetZero(const TensorView& view) {
  if (view.size() == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(view.shape(3)) * SizeOf(view.dtype());
  for (std::int64_t i = 0; i < view.shape(0); ++i) {
    for (std::int64_t j = 0; j < view.shape(1); ++j) {
      for (std::int64_t k = 0; k < view.shape(2); ++k) {
        const std::int64_t at = i * view.stride(0) + j * view.stride(1) + k * view.stride(2);
        std::memset(
            static_cast<char*>(view.data()) + at * static_cast<std::int64_t>(SizeOf(view.dtype())),
            0, bytes);
      }
    }
  }
}

}  // namespace

void Tpa(const TpaQuery& query, const TpaKeys& keys, const TensorView& out,
         const std::optional<TensorView>& lse, const TpaOptions& options,
         const std::int64_t* lengths) {
  const TpaSizes sizes = CheckCall(query, keys, options, lengths);
  const Precision precision = PrecisionOf(kOp, options.precision, sizes.dtype);
  CheckResults(kOp, sizes, query, out, lse);
  const std::pair<const char*, const ConstTensorView&> inputs[] = {
      {"ak", keys.ak}, {"av", keys.av}, {"bk", keys.bk}, {"bv", keys.bv}};
  for (const auto& [name, view] : inputs) {
    CheckApart(kOp, "out", out, name, view);
    if (lse) CheckApart(kOp, "lse", *lse, name, view);
  }
  if (sizes.B * sizes.N * sizes.H == 0) return;
  PrefillProblem problem = ProblemOf(sizes, query, keys, options, lengths);
  problem.out = RowsOf(out);
  if (lse) problem.lse = {lse->data(), lse->stride(0), lse->stride(1), lse->stride(2)};
  RunPrefill(problem, precision);
}

void TpaBackward(const TpaQuery& query, const TpaKeys& keys, const ConstTensorView& out,
                 const ConstTensorView& lse, const ConstTensorView& d_out,
                 const TpaGradients& gradients, const TpaOptions& options,
                 const std::int64_t* lengths) {
  const TpaSizes sizes = CheckCall(query, keys, options, lengths);
  const Precision precision = PrecisionOf(kOp, options.precision, sizes.dtype);
  const std::pair<const char*, const ConstTensorView&> outputs[] = {{"out", out}, {"d_out", d_out}};
  for (const auto& [name, view] : outputs) {
    CheckView(kOp, name, view);
    CheckShape(kOp, name, view, {sizes.B, sizes.N, sizes.H, sizes.E});
    CheckSameType(kOp, name, view, "ak", keys.ak);
  }
  CheckLse(kOp, sizes, lse);
  const std::array<Pair, 7> pairs = {{
      {"aq", "d_aq", PointerTo(query.a), PointerTo(gradients.aq)},
      {"bq", "d_bq", PointerTo(query.b), PointerTo(gradients.bq)},
      {"q", "d_q", PointerTo(query.full), PointerTo(gradients.q)},
      {"ak", "d_ak", &keys.ak, &gradients.ak},
      {"av", "d_av", &keys.av, &gradients.av},
      {"bk", "d_bk", &keys.bk, &gradients.bk},
      {"bv", "d_bv", &keys.bv, &gradients.bv},
  }};
  for (const Pair& pair : pairs) {
    if ((pair.input == nullptr) != (pair.gradient == nullptr)) {
      Fail(kOp, pair.gradient_name, " must be given where ", pair.name, " is, and only there");
    }
    if (pair.input == nullptr) continue;
    CheckSameShape(kOp, pair.gradient_name, *pair.gradient, pair.name, *pair.input);
    CheckSameType(kOp, pair.gradient_name, *pair.gradient, pair.name, *pair.input);
    CheckOutput(kOp, pair.gradient_name, *pair.gradient);
    for (const Pair& other : pairs) {
      if (other.input == nullptr) continue;
      CheckApart(kOp, pair.gradient_name, *pair.gradient, other.name, *other.input);
      if (&other < &pair) {
        CheckApart(kOp, pair.gradient_name, *pair.gradient, other.gradient_name, *other.gradient);
      }
    }
    CheckApart(kOp, pair.gradient_name, *pair.gradient, "out", out);
    CheckApart(kOp, pair.gradient_name, *pair.gradient, "lse", lse);
    CheckApart(kOp, pair.gradient_name, *pair.gradient, "d_out", d_out);
  }
  if (sizes.B * sizes.H == 0 || sizes.N + sizes.M == 0) {
    // Without heads the gradients of what heads share are sums of nothing.
    for (const Pair& pair : pairs) {
      if (pair.gradient != nullptr) SetZero(*pair.gradient);
    }
    return;
  }
  PrefillGradients to{};
  to.out = RowsOf(out);
  to.d_out = RowsOf(d_out);
  if (lse.size() > 0) to.lse = {lse.data(), lse.stride(0), lse.stride(1), lse.stride(2)};
  to.aq = RowsOf(gradients.aq);
  to.bq = RowsOf(gradients.bq);
  to.q = RowsOf(gradients.q);
  to.ak = RowsOf(gradients.ak);
  to.bk = RowsOf(gradients.bk);
  to.av = RowsOf(gradients.av);
  to.bv = RowsOf(gradients.bv);
  RunPrefillBackward(ProblemOf(sizes, query, keys, options, lengths), to, precision);
}

}  // namespace attnops
