// The measures of the machine give plausible numbers and leave no trace.
#include "attnops/machine.h"

#include <gtest/gtest.h>

#include "attnops/target.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

TEST(Machine, MeasuresArePlausible) {
  const TargetRestorer restorer;
  SetTarget(SupportedTargets().back());
  const double bandwidth = MeasureCopyBandwidth(0.05);
  EXPECT_GT(bandwidth, 1e7);
  EXPECT_LT(bandwidth, 1e14);
  const double peak = MeasureFmaPeak(0.05);
  EXPECT_GT(peak, 1e7);
  EXPECT_LT(peak, 1e15);
  const double bf16_peak = MeasureBf16Peak(0.05);
  if (bf16_peak != 0) {
    EXPECT_GT(bf16_peak, 1e7);
    EXPECT_LT(bf16_peak, 1e15);
  }
  EXPECT_EQ(GetTarget(), SupportedTargets().back());
}

}  // namespace
}  // namespace attnops::testing
