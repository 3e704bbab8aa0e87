// The choice of targets without Highway's library is the one of that library.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attnops/target.h"

namespace attnops::testing {
namespace {

TEST(TargetHighway, SupportedAreThoseOfHighway) {
  const std::int64_t mask = hwy::SupportedTargets() | HWY_SCALAR | HWY_EMU128;
  std::vector<std::string> expected;
  for (std::int64_t left = mask & HWY_TARGETS; left != 0; left &= left - 1) {
    expected.emplace_back(hwy::TargetName(left & -left));
  }
  EXPECT_EQ(SupportedTargets(), expected);
}

}  // namespace
}  // namespace attnops::testing
