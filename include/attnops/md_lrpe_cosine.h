// Position encoding in several dimensions, as the product with cosine and sine, with a fused
// activation.
#ifndef ATTNOPS_MD_LRPE_COSINE_H_
#define ATTNOPS_MD_LRPE_COSINE_H_

#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

struct MdLrpeCosineOptions {
  Dims shape;               // n_1 … n_k, 1 to Dims::kMaxRank axes
  std::int64_t l = 0;       // tokens in front that carry no position
  std::int64_t offset = 0;  // added to the index in 1-d, within ±2^31; else 0
  Activation act = {};      // softmax over the features (-1) or the sequence (2)
};

// Token l+i has the index (s_1, …, s_k) of i in the grid, the last axis fastest. Feature c
// uses axis j = ⌊c/E⌋+1 and the angle a = s_j·theta[h, c mod E]. With y = act(x):
//   out = [ y·cos a , y·sin a ], for the first l tokens [ y , 0 ]
// x (B,H,L,D), L = l + n_1·…·n_k; theta (H,E) or (1,E), E·k ≥ D, of x's type or float32;
// out (B,H,L,2D) of x's type, apart from the inputs in memory.
void MdLrpeCosine(const ConstTensorView& x, const ConstTensorView& theta, const TensorView& out,
                  const MdLrpeCosineOptions& options);

// dx (B,H,L,D) from the gradient of out: with dy = d_out[:D]·cos a + d_out[D:]·sin a, the
// backward of act. dx is x itself or apart from it in memory, and apart from d_out.
void MdLrpeCosineBackward(const ConstTensorView& x, const ConstTensorView& theta,
                          const ConstTensorView& d_out, const TensorView& dx,
                          const MdLrpeCosineOptions& options);

// The gradient of theta, with its shape, in float32, from that of out: with p the index on the
// axis of feature c, Σ p·(out_c·d_out_{D+c} − out_{D+c}·d_out_c) over what a theta is shared by.
void MdLrpeCosineThetaGradient(const ConstTensorView& x, const ConstTensorView& theta,
                               const ConstTensorView& d_out, const TensorView& d_theta,
                               const MdLrpeCosineOptions& options);

// Cosines and sines for MdLrpeCosineWithTable, built once: table (H or 1, n_1+…+n_k, E, 2),
// float32, one row for each index of each axis, where theta is (H or 1, E), float32 or a 16-bit
// type, and d ≤ E·k the features of x. The offset, in 1-d, is in the table.
void LrpeTable(const ConstTensorView& theta, const Dims& shape, std::int64_t d,
               const TensorView& table, std::int64_t offset = 0);

// MdLrpeCosine and its backward with the angles of a table; options.offset must be 0.
void MdLrpeCosineWithTable(const ConstTensorView& x, const ConstTensorView& table,
                           const TensorView& out, const MdLrpeCosineOptions& options);
void MdLrpeCosineBackwardWithTable(const ConstTensorView& x, const ConstTensorView& table,
                                   const ConstTensorView& d_out, const TensorView& dx,
                                   const MdLrpeCosineOptions& options);

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_MD_LRPE_COSINE_H_
