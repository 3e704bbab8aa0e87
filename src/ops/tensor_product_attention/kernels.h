// tpa_decode on blocks of tokens: what its schedule and its kernels agree on.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_H_

#include <cstdint>

#include "attnops/precision.h"
#include "attnops/tpa_decode.h"
#include "attnops/types.h"
#include "src/core/kernel_list.h"
#include "src/core/tensor.h"
#include "src/gemm/dot_tile.h"
#include "src/gemm/panels.h"

namespace attnops::tensor_product_attention {

// Tokens whose scores and weights are computed at a time. Their weights and a tile's columns of bv
// stay in half of L1, and sums over tokens stay in registers for a whole block. A multiple of a
// chunk of any target.
constexpr std::int64_t kBlockTokens = 64;
// Features of bk that are transposed at a time: they too stay in half of L1.
constexpr std::int64_t kTransposedFeatures = 64;

struct Problem {
  std::int64_t B, M, H, R, D, E;
  // Rows of a cache are tokens; those of aq and out are heads, those of bq ranks.
  Input aq, ak, av, bq, bk, bv;
  Output out;
  float score_scale;  // scale · scale_q · scale_k
  float value_scale;  // scale_v
  // Scores as aq·(bq·bkᵀ) instead of (aq·bq)·bkᵀ.
  bool through_rank;
  // The microkernels of bfloat16 products with bk and with bv; null for float32 products.
  DotTile score_dot = nullptr;
  DotTile value_dot = nullptr;

  // Whether bfloat16 scores have a lane for each rank: rows of bk are then the left operand as they
  // are, instead of being transposed.
  bool HasRankLanes(std::int64_t lanes) const {
    return score_dot != nullptr && through_rank && R <= lanes && D % 2 == 0;
  }
};

// A worker's matrices, float32. Heads and the columns of bq, q and bv are in the type's storage
// order.
struct Workspace {
  Panels aq;     // (R, heads), scaled, or (heads, R) if not through the rank
  Panels bq;     // (R, D)
  Panels q;      // (heads, D), if not through the rank
  Panels t;      // (R or heads, block): bq·bkᵀ or q·bkᵀ; with a lane for each rank (block, R)
  Panels s;      // (block, heads): scores, then weights
  Panels right;  // (features of bk, tokens) or (block, columns of bv), tile_columns of them
  // For bfloat16 products: rows of bq, or of q, and the pairs of tokens of weights and of bv.
  Rows<BFloat16> left16;
  Panels s_pairs, v_pairs;
  Panels bq_pairs;  // (D/2, R), with a lane for each rank
  float* factor;    // of each head: multiplies the sums of the blocks before
};

// The result of some tokens, not divided by the softmax's sum: for each head, in storage order, the
// maximum m of the scores, Σ exp(s−m), and Σ exp(s−m)·av·bv.
struct Partial {
  float* max;
  float* sum;
  Panels out;  // (heads, E), columns in storage order
};

struct Kernels {
  std::int64_t chunk;         // elements of two vectors
  std::int64_t tile_columns;  // columns of a register tile

  // Converts aq and bq, or computes q, of a batch for these heads.
  void (*prepare)(const Problem& problem, std::int64_t batch, Range heads, const Workspace& work);
  // Sets `to` to the partial result of these tokens.
  void (*attend)(const Problem& problem, std::int64_t batch, Range heads, Range tokens,
                 const Workspace& work, const Partial& to);
  // Below, `rows` are places of heads in storage order. The last chunk may have places without a
  // head.

  // Merges the partial result `from` of other tokens into `to`; both have `heads` heads.
  void (*merge)(std::int64_t columns, std::int64_t heads, Range rows, const Partial& from,
                const Partial& to);
  // Copies the partial result `from` to `to`.
  void (*copy)(std::int64_t columns, Range rows, const Partial& from, const Partial& to);
  // Divides the partial result `from` of `heads` by its sums and writes it to the output.
  void (*finish)(const Problem& problem, std::int64_t batch, Range heads, Range rows,
                 const Partial& from);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

// One decoding step over checked tensors; out and M are not empty.
void Run(const Problem& problem, DType dtype, Precision precision, TpaSplit split);

}  // namespace attnops::tensor_product_attention

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_KERNELS_H_
