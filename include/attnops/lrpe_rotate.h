// Rotary position encoding with a fused activation.
#ifndef ATTNOPS_LRPE_ROTATE_H_
#define ATTNOPS_LRPE_ROTATE_H_

#include <cstdint>

#include "attnops/rotary_options.h"
#include "attnops/types.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

struct LrpeRotateOptions {
  std::int64_t offset = 0;    // the position of the first token, within ±2^31
  Activation act = {};        // softmax over the features (-1) or the sequence (1; 2 with kBhnd)
  RotaryOptions rotary = {};  // positions and pairs of other kinds
};

// With y = act(x), pairs (j, j+r/2) of r = D features and the angle a = (offset+t)·theta[h,j]:
//   out[j]     = y[j]·cos a − y[j+r/2]·sin a
//   out[j+r/2] = y[j]·sin a + y[j+r/2]·cos a
// x (B,N,H,D) or (B,N,D), D even; theta (H,E), (1,E) or (H,1), E ≤ r/2, of x's
// type or float32. E = 1 serves all pairs; for 1 < E < r/2 the pairs j ≥ E are
// not rotated. out has x's shape and type; it is x itself or apart from the inputs in memory.
void LrpeRotate(const ConstTensorView& x, const ConstTensorView& theta, const TensorView& out,
                const LrpeRotateOptions& options = {});

// dx from the gradient of out: d_out rotated by −a, then the backward of act.
// dx is d_out or x itself, or apart from the inputs in memory.
void LrpeRotateBackward(const ConstTensorView& x, const ConstTensorView& theta,
                        const ConstTensorView& d_out, const TensorView& dx,
                        const LrpeRotateOptions& options = {});

// The gradient of theta, with its shape, in float32, from that of out: with p the position and j'
// the other of a pair, Σ p·(out_j·d_out_j' − out_j'·d_out_j) over what a theta is shared by.
void LrpeRotateThetaGradient(const ConstTensorView& x, const ConstTensorView& theta,
                             const ConstTensorView& d_out, const TensorView& d_theta,
                             const LrpeRotateOptions& options = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_LRPE_ROTATE_H_
