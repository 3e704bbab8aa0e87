// Runs a test body in every precision that the products of a type can have, on any CPU.
#ifndef ATTNOPS_TESTS_SUPPORT_PRECISIONS_H_
#define ATTNOPS_TESTS_SUPPORT_PRECISIONS_H_

#include <gtest/gtest.h>

#include <vector>

#include "attnops/precision.h"
#include "attnops/types.h"
#include "src/gemm/dot_tile.h"

namespace attnops::testing {

// Where there are no instructions for bfloat16 products, vector code with the same bits.
class DotTileEmulation {
 public:
  DotTileEmulation() { SwitchDotTileEmulation(true); }
  DotTileEmulation(const DotTileEmulation&) = delete;
  DotTileEmulation& operator=(const DotTileEmulation&) = delete;
  ~DotTileEmulation() { SwitchDotTileEmulation(false); }
};

inline const char* Name(Precision precision) {
  static constexpr const char* kNames[] = {"auto", "highest", "high", "medium"};
  return kNames[static_cast<int>(precision)];
}

// body(precision), with bfloat16 products on every target that has vectors.
template <typename Body>
void InEveryPrecision(DType dtype, const Body& body) {
  const DotTileEmulation emulation;
  std::vector<Precision> precisions = {Precision::kHighest};
  if (dtype == DType::kBFloat16)
    precisions = {Precision::kHighest, Precision::kHigh, Precision::kMedium};
  for (const Precision precision : precisions) {
    SCOPED_TRACE(Name(precision));
    body(precision);
  }
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_PRECISIONS_H_
