// Checks of the arguments of tensor product attention of any rank.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_TPA_ARGUMENTS_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_TPA_ARGUMENTS_H_

#include <cmath>
#include <cstdint>

#include "attnops/tpa.h"
#include "src/core/checks.h"
#include "src/core/tensor.h"
#include "src/ops/tensor_product_attention/ranks.h"

namespace attnops::tensor_product_attention {

// The sizes of a call.
struct TpaSizes {
  std::int64_t B, N, M, H, Rq, Rk, Rv, D, E;
  DType dtype;
};

// Checks the queries; M, R_k, R_v and E are left open. R_q is 0 for full ones.
TpaSizes CheckQuery(const char* op, const TpaQuery& query);
// Checks the factors of keys and values against the queries. `paged` ones are pages, with any
// number of them and M tokens each.
TpaSizes CheckFactors(const char* op, const TpaQuery& query, const TpaKeys& keys,
                      bool paged = false);
// out (B,N,H,E) and, if given, lse (B,H,N) in float32; both apart from the queries.
void CheckResults(const char* op, const TpaSizes& sizes, const TpaQuery& query,
                  const TensorView& out, const std::optional<TensorView>& lse);
void CheckLse(const char* op, const TpaSizes& sizes, const ConstTensorView& lse);
void CheckSplit(const char* op, TpaSplit split);
// Lengths within the capacity, and pages within the pool for all tokens of a sequence.
void CheckSequences(const char* op, const TpaSequences& sequences, std::int64_t batches,
                    std::int64_t pages, std::int64_t page_size);

// scale · scale_q · scale_k, and scale_v.
struct TpaScales {
  double of_scores, of_values;
};
TpaScales ScalesOf(const TpaSizes& sizes, const TpaOptions& options);

// A (batch, token, row, column) view as rows. An empty tensor needs no data pointer: all its rows
// are at one address that exists.
Input RowsOf(const ConstTensorView& view);
Output RowsOf(const TensorView& view);
// A tensor that may be missing.
Input RowsOf(const std::optional<ConstTensorView>& view);
Output RowsOf(const std::optional<TensorView>& view);

// A decoding step, without its cache.
DecodeProblem DecodeProblemOf(const TpaSizes& sizes, const TpaQuery& query, const TensorView& out,
                              const std::optional<TensorView>& lse, const TpaOptions& options);

}  // namespace attnops::tensor_product_attention

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_TPA_ARGUMENTS_H_
