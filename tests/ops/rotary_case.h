// One problem of rotary encoding with positions and pairs of any kind, for lrpe_rotate and rope.
#ifndef ATTNOPS_TESTS_OPS_ROTARY_CASE_H_
#define ATTNOPS_TESTS_OPS_ROTARY_CASE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attnops/lrpe_rotate.h"
#include "attnops/rope.h"
#include "tests/ops/case.h"
#include "tests/reference/rotary.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

// How positions are given. A line is 0, 1, …, shifted for each batch; others are drawn.
enum class PositionForm { kOffset, kOffsets, kOfTokens, kOfBatches, kPacked, kSections };

struct RotarySpec {
  DType dtype = DType::kFloat32;
  DType theta_dtype = DType::kFloat32;
  std::int64_t batch = 2, length = 37, heads = 3, features = 16;
  std::int64_t rotated = 16;
  bool interleaved = false;
  PositionForm form = PositionForm::kOffset;
  bool wide = true;  // 64-bit positions
  bool sections_interleaved = false;
  std::int64_t first = 5;  // the offset, or what is added to every position
  float scale = 1.0f;
  Layout layout = Layout::kBnhd;
  std::int64_t theta_heads = 1;
  std::int64_t theta_features = 0;  // 0 for one for each pair
  Activation act = {};

  std::string Describe() const;
};

// Positions as a call takes them, and as numbers.
class RotaryPositions {
 public:
  explicit RotaryPositions(const RotarySpec& spec);

  // The offset of a call, and the options that say the rest.
  std::int64_t Offset() const { return spec_.form == PositionForm::kOffset ? spec_.first : 0; }
  RotaryOptions Options() const;
  const std::vector<std::int64_t>& values() const { return values_; }
  std::vector<std::int64_t> sections() const { return sections_; }

 private:
  RotarySpec spec_;
  std::vector<std::int64_t> values_;  // (sections or 1, B, N)
  std::vector<std::int64_t> sections_;
  std::vector<std::int64_t> wide_;  // what the call is given
  std::vector<std::int32_t> narrow_;
};

class RotaryCase {
 public:
  explicit RotaryCase(const RotarySpec& spec);

  GuardedTensor x, theta, d_out, out, d_theta;

  const RotarySpec& spec() const { return spec_; }
  reference::Rotary Reference() const;
  LrpeRotateOptions Options() const;

  void Forward();
  void Backward();
  void ThetaGradient();

  // Runs the library and compares with the reference.
  void CheckForward();
  void CheckBackward();
  void CheckThetaGradient();
  void CheckAll() {
    CheckForward();
    CheckBackward();
    CheckThetaGradient();
  }
  Expected ExpectedForward() const;
  Expected ExpectedBackward() const;

  // A tensor's values in the order (B,N,H,D), or values of that order in the tensor's.
  std::vector<double> InOrder(const std::vector<double>& values, bool to_tensor) const;

 private:
  RotarySpec spec_;
  RotaryPositions positions_;
};

// rope as two problems of lrpe_rotate with the same positions.
struct RopeCase {
  RopeCase(RotarySpec spec, std::int64_t key_heads);

  RotaryCase q, k;

  RopeOptions Options() const { return {q.Options().offset, q.Options().rotary}; }
  void Forward();
  void Backward();
};

// Every kind of pairs × rotated features × form of positions × layout.
void ForEachRotaryForm(const std::function<void(RotarySpec)>& body);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_ROTARY_CASE_H_
