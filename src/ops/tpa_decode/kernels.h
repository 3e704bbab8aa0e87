// What the schedule of tpa_decode asks of its kernels.
#ifndef ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_H_
#define ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_H_

#include <cstdint>

#include "src/simd/panels.h"
#include "src/simd/target.h"

namespace attnops::tpa_decode {

// Tokens whose scores and weights are computed at a time. Their weights and a tile's columns of bv
// stay in half of L1, and the sums of p·V in registers for so many steps. A multiple of a chunk of
// any target.
constexpr std::int64_t kBlock = 64;
// Features of bk that are transposed at a time, for the same reason.
constexpr std::int64_t kFeatures = 64;

// A (B,rows,features) tensor. Strides in elements.
template <typename Pointer>
struct Tensor {
  Pointer data = nullptr;
  std::int64_t batch = 0, row = 0;
};
using Input = Tensor<const void*>;
using Output = Tensor<void*>;

struct Problem {
  std::int64_t B, M, H, R, D, E;
  Input aq, ak, av, bq, bk, bv;
  Output out;
  float score_scale;  // scale · scale_q · scale_k
  float value_scale;  // scale_v
  // Scores as aq·(bq·bkᵀ) instead of (aq·bq)·bkᵀ.
  bool through_rank;
};

// Tokens, or heads, [begin, end).
struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
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

// On a SIMD target.
Kernels Float32Kernels(TargetIndex target);
Kernels Float16Kernels(TargetIndex target);
Kernels BFloat16Kernels(TargetIndex target);

}  // namespace attnops::tpa_decode

#endif  // ATTNOPS_SRC_OPS_TPA_DECODE_KERNELS_H_
