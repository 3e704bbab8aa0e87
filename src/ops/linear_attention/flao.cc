// flao: gated linear attention without stages.
#include "attnops/flao.h"

#include "src/ops/linear_attention/arguments.h"

namespace attnops {
namespace {

constexpr char kOp[] = "flao";

}  // namespace

void Flao(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
          const ConstTensorView& g, const TensorView& out, const FlaoOptions& options) {
  const linear_attention::Inputs inputs{q, k, v, g};
  linear_attention::CheckInputs(kOp, inputs);
  linear_attention::Forward(linear_attention::ForwardCall(kOp, inputs, out, options, q.shape(3)));
}

void FlaoBackward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  const ConstTensorView& g, const ConstTensorView& d_out, const TensorView& dq,
                  const TensorView& dk, const TensorView& dv, const TensorView& dg,
                  const FlaoKept& kept) {
  const linear_attention::Inputs inputs{q, k, v, g};
  linear_attention::CheckInputs(kOp, inputs);
  linear_attention::Backward(
      linear_attention::BackwardCall(kOp, inputs, d_out, {dq, dk, dv, dg}, kept, q.shape(3)));
}

}  // namespace attnops
