// Checks of the tensors of gated linear attention, and the call they make. All throw Error.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_ARGUMENTS_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_ARGUMENTS_H_

#include <cstdint>
#include <optional>

#include "attnops/flao.h"
#include "attnops/flao_fal.h"
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

// Two tensors of a half: k and v, or q and g.
struct Pair {
  const char* x_name;
  const ConstTensorView& x;
  const char* y_name;
  const ConstTensorView& y;
};

void CheckInputs(const char* op, const Inputs& inputs);
void CheckHalf(const char* op, const Pair& inputs);

// Check the tensors beside the inputs and make the call, still without stages. kv has `inner` rows.
Call ForwardCall(const char* op, const Inputs& inputs, const TensorView& out,
                 const FlaoOptions& keep, std::int64_t inner);
Call BackwardCall(const char* op, const Inputs& inputs, const ConstTensorView& d_out,
                  const Gradients& gradients, const FlaoKept& kept, std::int64_t inner);

// The calls of a half, still without stages; its `inputs` are those of `half`.
Call HalfForwardCall(const char* op, Half half, const Pair& inputs, const ConstTensorView* kv,
                     const TensorView& out, std::optional<Precision> precision, std::int64_t inner);
// d_out is dKV of the keys, or dO. dx and dy are the gradients of the inputs, d_kv of the queries.
Call HalfBackwardCall(const char* op, Half half, const Pair& inputs, const ConstTensorView* kv,
                      const ConstTensorView& d_out, const TensorView& dx, const TensorView& dy,
                      const TensorView* d_kv, std::optional<Precision> precision,
                      std::int64_t inner);

// The position encoding of a stage for `tokens` tokens, the first of which is number `start` of a
// sequence; on a line positions begin with `offset`.
void SetEncoding(const FlaoFalOptions& options, std::int64_t tokens, std::int64_t offset,
                 std::int64_t start, Stage& stage);

}  // namespace attnops::linear_attention

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_ARGUMENTS_H_
