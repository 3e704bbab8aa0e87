// TpaDecode with ranks, from tensors.
#include "attnops/tpa.h"
#include "src/core/checks.h"
#include "src/core/precision.h"
#include "src/ops/tensor_product_attention/ranks.h"
#include "src/ops/tensor_product_attention/tpa_arguments.h"

namespace attnops {
namespace {

using namespace tensor_product_attention;  // NOLINT(google-build-using-namespace)

constexpr char kOp[] = "tpa_decode";

CacheFactor FactorOf(const ConstTensorView& view) {
  const Input rows = RowsOf(view);
  return {rows.data, rows.batch, rows.token, rows.head};
}

}  // namespace

void TpaDecode(const TpaQuery& query, const TpaKeys& keys, const TensorView& out,
               const TpaSequences& sequences, const std::optional<TensorView>& lse,
               const TpaOptions& options, TpaSplit split) {
  const bool paged = sequences.page_table != nullptr;
  const TpaSizes sizes = CheckFactors(kOp, query, keys, paged);
  if (sizes.N != 1) {
    Fail(kOp, query.full ? "q" : "aq", " must have 1 token (axis 1); it has ", sizes.N);
  }
  CheckSplit(kOp, split);
  const Precision precision = PrecisionOf(kOp, options.precision, sizes.dtype);
  CheckSequences(kOp, sequences, sizes.B, keys.ak.shape(0), sizes.M);
  CheckResults(kOp, sizes, query, out, lse);
  CheckApart(kOp, "out", out, "ak", keys.ak);
  CheckApart(kOp, "out", out, "av", keys.av);
  CheckApart(kOp, "out", out, "bk", keys.bk);
  CheckApart(kOp, "out", out, "bv", keys.bv);
  if (sizes.B * sizes.H == 0) return;
  DecodeProblem problem = DecodeProblemOf(sizes, query, out, lse, options);
  problem.storage = StorageOf(sizes.dtype);
  problem.ak = FactorOf(keys.ak);
  problem.av = FactorOf(keys.av);
  problem.bk = FactorOf(keys.bk);
  problem.bv = FactorOf(keys.bv);
  problem.sequences = sequences;
  RunDecode(problem, precision, split);
}

}  // namespace attnops
