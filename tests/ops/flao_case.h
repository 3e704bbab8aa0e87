// One flao problem: inputs, the expected results, and checks of the library against them.
#ifndef ATTNOPS_TESTS_OPS_FLAO_CASE_H_
#define ATTNOPS_TESTS_OPS_FLAO_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attnops/flao.h"
#include "tests/reference/flao.h"
#include "tests/support/guarded_tensor.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {

enum class Keep { kNone, kKv, kKvQkv };
inline constexpr Keep kAllKeeps[] = {Keep::kNone, Keep::kKv, Keep::kKvQkv};

// How the (B,H,rows,features) tensors lie in memory.
enum class Layout {
  kContiguous,
  kTokensFirst,  // (B,N,H,D), seen as a transposed view
  kGaps,         // rows longer than the features, and not aligned
  kReversed,     // negative strides of sequence and heads
};
inline constexpr Layout kAllLayouts[] = {Layout::kContiguous, Layout::kTokensFirst, Layout::kGaps,
                                         Layout::kReversed};

GuardedTensor MakeTensor(DType dtype, const Dims& shape, Layout layout);

// Of a kept QKV.
inline DType KeptType(DType dtype) { return dtype == DType::kFloat16 ? DType::kFloat32 : dtype; }

// Two sums over n and m terms, one of which the other goes through, and a few products.
inline double TwoSums(std::int64_t n, std::int64_t m) {
  return SumError(n) + SumError(m) + 4 * kUnitFloat32;
}

struct FlaoSpec {
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, heads = 2, n = 5, m = 7, d = 8, e = 8;
  Layout inputs = Layout::kContiguous;
  Layout outputs = Layout::kContiguous;

  std::string Describe() const;
};

class FlaoCase {
 public:
  // Normal random inputs, which may be changed before the first check.
  explicit FlaoCase(const FlaoSpec& spec);

  GuardedTensor q, k, v, g, d_out;
  GuardedTensor out, kv, qkv;
  GuardedTensor dq, dk, dv, dg;

  const FlaoSpec& spec() const { return spec_; }

  // Run the library; its outputs start as NaN. The backward takes what an earlier forward with
  // the same policy kept.
  Precision precision = Precision::kHighest;
  void Forward(Keep keep = Keep::kNone);
  void Backward(Keep keep = Keep::kNone);

  // Run in every precision and compare: guards intact, everything written, within the bounds, and
  // the inputs as they were. CheckBackward runs the forward of its policy first.
  void CheckForward(Keep keep = Keep::kNone);
  void CheckBackward(Keep keep = Keep::kNone);

  // The bits of all results of both passes, in every precision.
  std::vector<std::vector<std::uint32_t>> Bits(Keep keep);

 private:
  std::vector<std::vector<std::uint8_t>> InputMemory() const;
  void Expect();
  void CheckForwardNow(Keep keep);
  void CheckBackwardNow(Keep keep);

  FlaoSpec spec_;
  // The results for the inputs, and for their absolute values: errors are relative to the latter.
  struct Expected {
    reference::Flao::Forward forward, forward_scale;
    reference::Flao::Backward backward, backward_scale;
  };
  std::optional<Expected> expected_;
};

inline const std::vector<DType> kFlaoTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_FLAO_CASE_H_
