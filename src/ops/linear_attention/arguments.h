// Checks of the tensors of gated linear attention, and the call they make. All throw Error.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_ARGUMENTS_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_ARGUMENTS_H_

#include <cstdint>

#include "attnops/flao.h"
#include "attnops/view.h"
#include "src/ops/linear_attention/kernels.h"

namespace attnops::linear_attention {

// q, k, v, g of an operator, and theta if it has one.
struct Inputs {
  const ConstTensorView& q;
  const ConstTensorView& k;
  const ConstTensorView& v;
  const ConstTensorView& g;
  const ConstTensorView* theta = nullptr;
};
struct Gradients {
  const TensorView& dq;
  const TensorView& dk;
  const TensorView& dv;
  const TensorView& dg;
};

void CheckInputs(const char* op, const Inputs& inputs);

// Check the tensors beside the inputs and make the call, still without stages. kv has `inner` rows.
Call ForwardCall(const char* op, const Inputs& inputs, const TensorView& out,
                 const FlaoOptions& keep, std::int64_t inner);
Call BackwardCall(const char* op, const Inputs& inputs, const ConstTensorView& d_out,
                  const Gradients& gradients, const FlaoKept& kept, std::int64_t inner);

}  // namespace attnops::linear_attention

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_ARGUMENTS_H_
