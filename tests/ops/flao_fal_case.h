// One flao_fal problem: inputs, the expected results, and checks of the library against them.
#ifndef ATTNOPS_TESTS_OPS_FLAO_FAL_CASE_H_
#define ATTNOPS_TESTS_OPS_FLAO_FAL_CASE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attnops/flao_fal.h"
#include "tests/ops/case.h"
#include "tests/ops/flao_case.h"
#include "tests/ops/flao_fal_bounds.h"
#include "tests/reference/flao_fal.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

struct FlaoFalSpec {
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, heads = 2, n = 5, m = 7, d = 8, e = 8;  // with a shape, n and m follow
  Activation q_act = {}, k_act = {}, v_act = {}, g_act = {};

  Lrpe lrpe = Lrpe::kNone;
  DType theta_dtype = DType::kFloat32;
  std::int64_t theta_heads = 1;
  std::int64_t angles = 0;  // of theta; 0: just as many as there must be, all D/2 for 1-d kRotate
  Dims shape = {};
  std::int64_t offset = 0, l = 0;

  Layout inputs = Layout::kContiguous;
  Layout outputs = Layout::kContiguous;

  std::string Describe() const;
};

class FlaoFalCase {
  FlaoFalSpec spec_;  // complete before the tensors are made from it

 public:
  // Normal random inputs and theta uniform in ±2, which may be changed before the first check.
  explicit FlaoFalCase(const FlaoFalSpec& spec);

  GuardedTensor q, k, v, g, d_out, theta;
  GuardedTensor out, kv, qkv;
  GuardedTensor dq, dk, dv, dg;

  const FlaoFalSpec& spec() const { return spec_; }
  FlaoFalOptions Options() const;
  reference::FlaoFal Reference() const;
  reference::FlaoFal::Inputs InputValues() const;

  // Run the library; its outputs start as NaN. The backward takes what an earlier forward with
  // the same policy kept.
  Precision precision = Precision::kHighest;
  void Forward(Keep keep = Keep::kNone);
  void Backward(Keep keep = Keep::kNone);

  // Run in every precision and compare: guards intact, everything written, within the bounds, and
  // the inputs as they were. CheckBackward runs the forward of its policy first.
  void CheckForward(Keep keep = Keep::kNone);
  void CheckBackward(Keep keep = Keep::kNone);
  // Both passes on every target, with each of the policies.
  void CheckAll();

  // The bits of all results of both passes, in every precision.
  std::vector<std::vector<std::uint32_t>> Bits(Keep keep);

  // What is expected in a precision; computed once.
  const FlaoFalExpected& Expected();

 private:
  std::vector<std::vector<std::uint8_t>> InputMemory() const;
  std::string Trace(const char* pass, Keep keep) const;

  void CheckForwardNow(Keep keep);
  void CheckBackwardNow(Keep keep);

  std::map<Precision, FlaoFalExpected> expected_;
};

// One of each.
inline const std::vector<Activation> kFlaoFalActivations = ActivationsWithSoftmax({-1, 2});

// The ways that q and k are encoded, with the sizes that go with them.
struct NamedEncoding {
  const char* name;
  Lrpe lrpe;
  Dims shape;
  std::int64_t offset, l;
};
inline const std::vector<NamedEncoding> kEncodings = {
    {"none", Lrpe::kNone, {}, 0, 0},
    {"cosine", Lrpe::kCosine, {}, 1'000'003, 0},
    {"cosine behind 3", Lrpe::kCosine, {}, -7, 3},
    {"cosine, 1 axis", Lrpe::kCosine, {9}, 5, 2},
    {"cosine, 2 axes", Lrpe::kCosine, {3, 4}, 0, 1},
    {"cosine, 3 axes", Lrpe::kCosine, {2, 3, 2}, 0, 0},
    {"rotate", Lrpe::kRotate, {}, 1'000'003, 0},
    {"rotate behind 3", Lrpe::kRotate, {}, -7, 3},
    {"rotate, 1 axis", Lrpe::kRotate, {9}, 5, 2},
    {"rotate, 2 axes", Lrpe::kRotate, {3, 4}, 0, 1},
    {"rotate, 3 axes", Lrpe::kRotate, {2, 3, 2}, 0, 0}};

// `spec` with this encoding.
FlaoFalSpec WithEncoding(FlaoFalSpec spec, const NamedEncoding& encoding);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_FLAO_FAL_CASE_H_
