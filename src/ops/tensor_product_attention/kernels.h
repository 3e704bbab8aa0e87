// What the schedule of tpa_decode asks of its kernels.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_H_

#include <cstdint>

#include "attnops/tpa_decode.h"
#include "attnops/types.h"
#include "src/core/kernel_list.h"
#include "src/core/tensor.h"
#include "src/gemm/panels.h"

namespace attnops::tensor_product_attention {

// Tokens whose scores and weights are computed at a time. Their weights and a tile's columns of bv
// stay in half of L1, and the sums of p·V in registers for so many steps. A multiple of a chunk of
// any target.
constexpr std::int64_t kBlockTokens = 64;
// Features of bk that are transposed at a time, for the same reason.
constexpr std::int64_t kFeatures = 64;

struct Problem {
  std::int64_t B, M, H, R, D, E;
  // Rows of a cache are tokens; those of aq and out are heads, those of bq ranks.
  Input aq, ak, av, bq, bk, bv;
  Output out;
  float score_scale;  // scale · scale_q · scale_k
  float value_scale;  // scale_v
  // Scores as aq·(bq·bkᵀ) instead of (aq·bq)·bkᵀ.
  bool through_rank;
};

// A worker's matrices: float32, columns of bq, q and bv, and heads, in the type's storage order.
struct Workspace {
  Panels aq;      // (R, heads), scaled, or (heads, R) if not through the rank
  Panels bq;      // (R, D)
  Panels q;       // (heads, D), if not through the rank
  Panels t;       // (R or heads, block): bq·bkᵀ or q·bkᵀ
  Panels s;       // (block, heads): scores, then weights
  Panels right;   // (features of bk, tokens) or (block, columns of bv), as many as a tile has
  float* factor;  // of each head: what the sums before a block are multiplied by
};

// The softmax of some tokens, not divided by its sum: for each head, in storage order, the maximum
// m of the scores, Σ exp(s−m), and Σ exp(s−m)·av·bv.
struct Partial {
  float* max;
  float* sum;
  Panels out;  // (heads, E), columns in storage order
};

struct Kernels {
  std::int64_t chunk;         // elements of two vectors
  std::int64_t tile_columns;  // columns of bv, or tokens of bk, that a tile has

  // Converts what all tokens of a batch share, for these heads.
  void (*prepare)(const Problem& problem, std::int64_t batch, Range heads, const Workspace& work);
  // The softmax of these tokens.
  void (*attend)(const Problem& problem, std::int64_t batch, Range heads, Range tokens,
                 const Workspace& work, const Partial& to);
  // Rows are places of heads in storage order, of which some may be without one.

  // Adds the heads `rows`, of `heads`, of one set of tokens to those of another.
  void (*merge)(const Problem& problem, std::int64_t heads, Range rows, const Partial& from,
                const Partial& to);
  // Sets the heads `rows` of one partial result to those of another.
  void (*copy)(const Problem& problem, Range rows, const Partial& from, const Partial& to);
  // Writes those of `heads`, which the partial result is of, that have places `rows` to the output.
  void (*finish)(const Problem& problem, std::int64_t batch, Range heads, Range rows,
                 const Partial& from);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

// One step over tensors that were checked and are not empty.
void Run(const Problem& problem, DType dtype, TpaSplit split);

}  // namespace attnops::tensor_product_attention

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_H_
