// A call of causal linear attention over checked tensors.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_SCHEDULE_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "attnops/precision.h"
#include "attnops/types.h"
#include "src/ops/linear_attention/causal_kernels.h"

namespace attnops::causal {

// States of all sequences and heads, (D, E) each. Strides in elements; no data if there are none.
template <typename Pointer>
struct StateTensor {
  Pointer data = nullptr;
  std::int64_t sequence = 0, head = 0, row = 0;

  Pointer At(std::int64_t i, std::int64_t h) const {
    return data == nullptr ? nullptr : data + i * sequence + h * head;
  }
};

struct Sequence {
  std::int64_t batch, first, tokens;
};

struct Call {
  DType dtype = DType::kFloat32;
  Precision precision = Precision::kHighest;  // kHighest, kHigh or kMedium
  Problem problem;
  std::int64_t heads = 0, key_heads = 0;
  std::vector<Sequence> sequences;
  std::vector<float> constants;  // log_decay of each head, if it is constant
  StateTensor<const float*> initial_state, d_state;
  StateTensor<float*> state, d_initial_state;
  // States at the starts of segments, but for the first of a sequence, one sequence after the
  // other: written by the forward, read by the backward.
  StateTensor<float*> kept;
  StateTensor<const float*> kept_before;
};

// Tokens of a segment, the unit in which sequences are cut for tasks and memory: blocks end with
// it, and the state at its start may be kept for the backward. A multiple of kBlockTokens.
constexpr std::int64_t kSegmentTokens = 1024;

void RunForward(const Call& call);
void RunBackward(const Call& call);

}  // namespace attnops::causal

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_SCHEDULE_H_
