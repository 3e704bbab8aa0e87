// One problem of tensor product attention of any rank: inputs, the expected results of both passes
// and of decoding, and checks of the library against them.
#ifndef ATTNOPS_TESTS_OPS_TPA_CASE_H_
#define ATTNOPS_TESTS_OPS_TPA_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attnops/tpa.h"
#include "tests/reference/tpa.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

struct TpaRanksSpec {
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, n = 1, m = 7, heads = 3;
  std::int64_t q_rank = 2, k_rank = 2, v_rank = 2;  // q_rank 0: full queries
  std::int64_t d = 8, e = 8;
  TpaOptions options = {};
  bool gaps = false;  // rows, tokens and batches with gaps, not aligned

  std::string Describe() const;
};

class TpaRanksCase {
 public:
  // Normal random inputs, which may be changed before the first check.
  explicit TpaRanksCase(const TpaRanksSpec& spec);

  GuardedTensor aq, ak, av, bq, bk, bv, q;
  GuardedTensor out, lse;
  GuardedTensor d_out, d_aq, d_ak, d_av, d_bq, d_bk, d_bv, d_q;

  const TpaRanksSpec& spec() const { return spec_; }
  TpaQuery Query() const;
  TpaKeys Keys() const { return {ak.view(), av.view(), bk.view(), bv.view()}; }
  reference::Tpa Reference() const;
  reference::Tpa::Inputs Inputs() const;

  Precision precision = Precision::kHighest;
  // Run the library; outputs start as NaN. Backward runs Forward first.
  void Forward();
  void Backward();
  void Decode(TpaSplit split);
  // Run in every precision and compare: everything written, within the bounds, guards intact.
  void CheckForward();
  void CheckBackward();
  void CheckDecode(TpaSplit split);
  std::vector<std::uint32_t> ForwardBits();
  std::vector<std::uint32_t> BackwardBits();
  std::vector<std::uint32_t> DecodeBits(TpaSplit split);

 private:
  void CheckOut();
  std::vector<GuardedTensor*> Gradients();

  TpaRanksSpec spec_;
};

// What out and lse must be for each of the precisions, without the error of int8.
struct TpaExpected {
  Expected out, lse;
};
TpaExpected ExpectTpa(const reference::Tpa& tpa, const reference::Tpa::Inputs& in, DType dtype,
                      Precision precision);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_TPA_CASE_H_
