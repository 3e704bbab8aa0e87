// One linear_attention problem: inputs, the expected results, and checks of the library.
#ifndef ATTNOPS_TESTS_OPS_LINEAR_ATTENTION_CASE_H_
#define ATTNOPS_TESTS_OPS_LINEAR_ATTENTION_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnops/linear_attention.h"
#include "attnops/precision.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

using DecayKind = reference::LinearAttention::Decay;
inline constexpr DecayKind kAllDecays[] = {DecayKind::kNone, DecayKind::kConstant,
                                           DecayKind::kToken, DecayKind::kFeature};

struct LinearAttentionSpec {
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, n = 5, key_heads = 2, heads = 2, d = 8, e = 8;
  DecayKind decay = DecayKind::kNone;
  bool on_values = false;
  bool states = true;  // initial_state, state and their gradients
  std::vector<std::int64_t> cu_seqlens = {};
  std::optional<double> scale = {};
  bool heads_first = false;  // (B,H,N,D) in memory, with gaps
  bool float_decay = true;   // else of the tensors' type
  bool keep = false;         // the forward keeps states for the backward
  double decay_size = -0.1;  // log_decay is normal with this deviation, of this sign

  std::string Describe() const;
};

class LinearAttentionCase {
 public:
  // Normal random inputs, which may be changed before the first check.
  explicit LinearAttentionCase(const LinearAttentionSpec& spec);

  GuardedTensor q, k, v, d_out, log_decay, log_decay_v, initial_state, d_state;
  GuardedTensor out, state, kept_states;
  GuardedTensor dq, dk, dv, d_log_decay, d_log_decay_v, d_initial_state;
  Precision precision = Precision::kHighest;  // of Forward and Backward

  const LinearAttentionSpec& spec() const { return spec_; }

  // Run the library; its outputs start as NaN.
  void Forward();
  void Backward();
  // Run in every precision and compare: everything written and nothing beside it, within the
  // bounds, and the inputs as they were.
  void CheckForward();
  void CompareForward();  // without running
  void CheckBackward();
  void CheckBoth() {
    CheckForward();
    CheckBackward();
  }

  // The bits of all results of both passes, in every precision.
  std::vector<std::vector<std::uint32_t>> Bits();

  reference::LinearAttention Reference() const;
  reference::LinearAttention::Inputs ReferenceInputs() const;

 private:
  using Values = std::vector<double>;
  LinearAttentionOptions Options();
  void CheckForwardNow();
  void CheckBackwardNow();
  std::vector<std::vector<std::uint8_t>> InputMemory() const;
  // Decays of single features are multiplied in float32 always.
  bool HasBf16Products() const { return spec_.decay != DecayKind::kFeature && !spec_.on_values; }
  double Arithmetic(std::int64_t features, int rounded) const;
  Values DecayScale(const reference::LinearAttention::Backward& scale,
                    const reference::LinearAttention::Inputs& inputs, bool of_values) const;

  // The inputs with all terms positive.
  reference::LinearAttention::Inputs Magnitudes() const;

  LinearAttentionSpec spec_;
  // What the reference gives, and the same with all terms positive.
  template <typename Results>
  using Expected = std::optional<std::pair<Results, Results>>;
  Expected<reference::LinearAttention::Forward> forward_;
  Expected<reference::LinearAttention::Backward> backward_;
};

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_LINEAR_ATTENTION_CASE_H_
