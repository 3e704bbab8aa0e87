// linear_attention in double precision: the recurrence over tokens of contiguous (B,N,H,D) arrays,
// straight from the formulas.
#ifndef ATTNOPS_TESTS_REFERENCE_LINEAR_ATTENTION_H_
#define ATTNOPS_TESTS_REFERENCE_LINEAR_ATTENTION_H_

#include <cstdint>
#include <vector>

namespace attnops::reference {

struct LinearAttention {
  std::int64_t batch, tokens, key_heads, heads, d, e;
  std::vector<std::int64_t> cu_seqlens;  // empty: each batch is a sequence
  double scale;

  using Values = std::vector<double>;
  enum class Decay { kNone, kConstant, kToken, kFeature };
  Decay decay = Decay::kNone;

  // log_decay is empty, (H), (B,N,H) or (B,N,H,D) as `decay` says, log_decay_v empty or (B,N,H,E),
  // the state empty or (sequences,H,D,E).
  struct Inputs {
    Values q, k, v, log_decay, log_decay_v, initial_state;
  };
  struct Forward {
    Values out, state;
  };
  struct Backward {
    Values dq, dk, dv, d_log_decay, d_log_decay_v, d_initial_state;
  };

  Forward Run(const Inputs& inputs) const;
  // d_state may be empty.
  Backward RunBackward(const Inputs& inputs, const Values& d_out, const Values& d_state) const;
  std::int64_t Sequences() const;
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_LINEAR_ATTENTION_H_
