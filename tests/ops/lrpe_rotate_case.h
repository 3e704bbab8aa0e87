// One lrpe_rotate problem: inputs, the expected results, and checks of the library against them.
#ifndef ATTNOPS_TESTS_OPS_LRPE_ROTATE_CASE_H_
#define ATTNOPS_TESTS_OPS_LRPE_ROTATE_CASE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attnops/lrpe_rotate.h"
#include "tests/ops/case.h"
#include "tests/ops/lrpe_rotate_bounds.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

struct RotateSpec {
  DType dtype = DType::kFloat32;
  DType theta_dtype = DType::kFloat32;
  std::int64_t batch = 1;
  std::int64_t length = 33;
  std::int64_t heads = 1;
  std::int64_t features = 6;
  std::int64_t theta_heads = 1;
  std::int64_t theta_features = 3;
  std::int64_t offset = 0;
  Activation act = {};
  bool three_axes = false;  // x is (B,N,D); heads is 1

  // Contiguous unless given. `shift` misaligns x, d_out and the result.
  std::optional<Dims> x_strides = {};
  std::optional<Dims> theta_strides = {};
  std::optional<Dims> d_out_strides = {};
  std::optional<Dims> out_strides = {};
  int shift = 0;

  Dims Shape() const;
  LrpeRotateOptions Options() const { return {offset, act}; }
  std::string Describe() const;
};

class RotateCase {
 public:
  // Random inputs: x and d_out normal, theta uniform in ±2. They may be changed before the first
  // check.
  explicit RotateCase(const RotateSpec& spec);

  GuardedTensor x;
  GuardedTensor theta;
  GuardedTensor d_out;
  GuardedTensor out;  // of the forward or the backward

  const RotateSpec& spec() const { return spec_; }
  reference::LrpeRotate Reference() const;

  // Runs the library and leaves the result in `out`, which starts as NaN.
  void Forward();
  void Backward();

  // Runs the library and compares: guards intact, everything written, within the bounds, and the
  // inputs as they were. Failures carry the description of the spec.
  void CheckForward();
  void CheckBackward();
  void CheckBoth() {
    CheckForward();
    CheckBackward();
  }

  // The same with the result in place of x or d_out, whose strides it then has.
  void CheckForwardInPlace();
  void CheckBackwardInPlaceOfX();
  void CheckBackwardInPlaceOfDOut();

  // What is expected; computed once.
  const Expected& ForwardExpected();
  const Expected& BackwardExpected();

 private:
  RotateSpec spec_;
  std::optional<Expected> forward_;
  std::optional<Expected> backward_;
};

// All activations for an x of four axes; softmax both with positive and with negative `dim`.
inline const std::vector<Activation> kAllActivations = ActivationsWithSoftmax({-1, 3, 1, -3});

// One of each, where the sign of `dim` does not matter.
inline const std::vector<Activation> kDistinctActivations = ActivationsWithSoftmax({-1, 1});

// Every activation × type × theta form × awkward feature size × a few shapes, and common feature
// sizes with one theta form; offsets and alignments vary.
void ForEachSpec(const std::function<void(const RotateSpec&)>& body);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_LRPE_ROTATE_CASE_H_
