// One md_lrpe_cosine problem: inputs, the expected results, and checks of the library against them.
#ifndef ATTNOPS_TESTS_OPS_MD_LRPE_COSINE_CASE_H_
#define ATTNOPS_TESTS_OPS_MD_LRPE_COSINE_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attnops/md_lrpe_cosine.h"
#include "tests/ops/case.h"
#include "tests/ops/md_lrpe_cosine_bounds.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

struct CosineSpec {
  DType dtype = DType::kFloat32;
  DType theta_dtype = DType::kFloat32;
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  Dims shape = {33};
  std::int64_t l = 0;
  std::int64_t features = 6;
  std::int64_t theta_heads = 1;
  std::int64_t extra = 0;   // E is ⌈D/k⌉ and this much more
  std::int64_t offset = 0;  // in 1-d
  Activation act = {};

  // Contiguous unless given. `shift` misaligns x, d_out, out and dx.
  std::optional<Dims> x_strides = {};
  std::optional<Dims> theta_strides = {};
  std::optional<Dims> table_strides = {};
  std::optional<Dims> d_out_strides = {};
  std::optional<Dims> out_strides = {};
  std::optional<Dims> dx_strides = {};
  int shift = 0;

  std::int64_t ThetaFeatures() const;  // E
  std::int64_t Length() const;         // L
  Dims XShape() const;
  Dims OutShape() const;
  Dims TableShape() const;
  MdLrpeCosineOptions Options() const { return {shape, l, offset, act}; }
  // With a table, which holds the offset.
  MdLrpeCosineOptions TableOptions() const { return {shape, l, 0, act}; }
  std::string Describe() const;
};

// Where the angles come from.
enum class Angles { kOnTheFly, kTable };
inline constexpr Angles kBothAngles[] = {Angles::kOnTheFly, Angles::kTable};

class CosineCase {
 public:
  // Random inputs: x and d_out normal, theta uniform in ±2. They may be changed before the first
  // check.
  explicit CosineCase(const CosineSpec& spec);

  GuardedTensor x;
  GuardedTensor theta;
  GuardedTensor d_out;
  GuardedTensor table;
  GuardedTensor out;
  GuardedTensor dx;

  const CosineSpec& spec() const { return spec_; }
  reference::MdLrpeCosine Reference() const;

  // Runs the library and leaves the result in `table`, `out` or `dx`, which starts as NaN. With
  // Angles::kTable the forward and the backward use `table` as it is.
  void BuildTable();
  void Forward(Angles angles = Angles::kOnTheFly);
  void Backward(Angles angles = Angles::kOnTheFly);

  // Runs the library and compares: guards intact, everything written, within the bounds, and the
  // inputs as they were. Failures carry the description of the spec.
  void CheckTable();
  void CheckForward(Angles angles = Angles::kOnTheFly);
  void CheckBackward(Angles angles = Angles::kOnTheFly);
  void CheckBoth() {
    CheckForward();
    CheckBackward();
  }
  // The same with dx in place of x, whose strides it then has.
  void CheckBackwardInPlace(Angles angles = Angles::kOnTheFly);
  // The forward and the backward on the fly, the table, and both with it.
  void CheckAll();

  // What is expected; computed once.
  const Expected& ForwardExpected();
  const Expected& BackwardExpected();

 private:
  std::string Trace(const char* what, Angles angles) const;

  CosineSpec spec_;
  std::optional<Expected> forward_;
  std::optional<Expected> backward_;
  std::optional<Expected> table_;
};

// All activations; softmax both with positive and with negative `dim`.
inline const std::vector<Activation> kAllCosineActivations = ActivationsWithSoftmax({-1, 3, 2, -2});

// One of each, where the sign of `dim` does not matter.
inline const std::vector<Activation> kCosineActivations = ActivationsWithSoftmax({-1, 2});

// One activation for each way through a kernel.
inline const std::vector<Activation> kCosinePaths = {
    Activation::None(), Activation::Silu(), Activation::Softmax(-1), Activation::Softmax(2)};

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_MD_LRPE_COSINE_CASE_H_
