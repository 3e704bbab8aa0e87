// Rotary position encoding of queries and keys in one call.
#ifndef ATTNOPS_ROPE_H_
#define ATTNOPS_ROPE_H_

#include <cstdint>

#include "attnops/rotary_options.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

struct RopeOptions {
  std::int64_t offset = 0;  // the position of the first token, within ±2^31
  RotaryOptions rotary = {};
};

// Rotates q (B,N,H,D) and k (B,N,H',D), of one type, as LrpeRotate without an activation does.
// theta (1,E), of their type or float32, serves all heads. Each result is its input or apart from
// all inputs in memory.
void Rope(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& theta,
          const TensorView& q_out, const TensorView& k_out, const RopeOptions& options = {});

// dq and dk from the gradients of the results, which are rotated back. Each is its gradient or
// apart from all inputs.
void RopeBackward(const ConstTensorView& dq_out, const ConstTensorView& dk_out,
                  const ConstTensorView& theta, const TensorView& dq, const TensorView& dk,
                  const RopeOptions& options = {});

// The gradient of theta, with its shape, in float32: see LrpeRotateThetaGradient.
void RopeThetaGradient(const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& theta, const ConstTensorView& dq_out,
                       const ConstTensorView& dk_out, const TensorView& d_theta,
                       const RopeOptions& options = {});

// The same with the caller's cosines and sines: cos_sin (P,r), float32 or of q's type, has the row
// [cos | sin] of position p at p. Every position must be from 0 to P−1.
void RopeWithCosSin(const ConstTensorView& q, const ConstTensorView& k,
                    const ConstTensorView& cos_sin, const TensorView& q_out,
                    const TensorView& k_out, const RopeOptions& options = {});
void RopeBackwardWithCosSin(const ConstTensorView& dq_out, const ConstTensorView& dk_out,
                            const ConstTensorView& cos_sin, const TensorView& dq,
                            const TensorView& dk, const RopeOptions& options = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_ROPE_H_
