// One tpa_decode problem: inputs, the expected result, and a check of the library against it.
#ifndef ATTNOPS_TESTS_OPS_TPA_DECODE_CASE_H_
#define ATTNOPS_TESTS_OPS_TPA_DECODE_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attnops/tpa_decode.h"
#include "tests/reference/tpa_decode.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {

// How the tensors lie in memory.
enum class TpaLayout {
  kContiguous,
  kCapacity,  // the cache is the front of one with room for more tokens
  kGaps,      // rows longer than the features, and not aligned
  kReversed,  // negative strides of batches and tokens or heads
};
inline constexpr TpaLayout kTpaLayouts[] = {TpaLayout::kContiguous, TpaLayout::kCapacity,
                                            TpaLayout::kGaps, TpaLayout::kReversed};
inline constexpr TpaSplit kTpaSplits[] = {TpaSplit::kAuto, TpaSplit::kB, TpaSplit::kBH,
                                          TpaSplit::kBN};
inline constexpr DType kTpaTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

struct TpaSpec {
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, m = 7, heads = 3, rank = 2, d = 8, e = 8;
  TpaDecodeOptions options = {};
  TpaLayout layout = TpaLayout::kContiguous;

  std::string Describe() const;
};

class TpaCase {
 public:
  // Normal random inputs, which may be changed before the first check.
  explicit TpaCase(const TpaSpec& spec);

  GuardedTensor aq, ak, av, bq, bk, bv;
  GuardedTensor out;

  const TpaSpec& spec() const { return spec_; }
  reference::TpaDecode Reference() const;

  // Runs the library; the output starts as NaN.
  Precision precision = Precision::kHighest;
  void Run(TpaSplit split);
  // Runs in every precision and compares: guards intact, everything written, within the bounds, and
  // the inputs as they were.
  void Check(TpaSplit split);
  // The bits of the results in every precision.
  std::vector<std::uint32_t> Bits(TpaSplit split);

 private:
  std::vector<std::vector<std::uint8_t>> InputMemory() const;
  void Expect();

  TpaSpec spec_;
  std::vector<double> expected_, bound_;
  Precision bound_precision_ = Precision::kAuto;
};

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_TPA_DECODE_CASE_H_
