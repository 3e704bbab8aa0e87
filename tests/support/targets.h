// Runs a test body on every SIMD target that the CPU has.
#ifndef ATTNOPS_TESTS_SUPPORT_TARGETS_H_
#define ATTNOPS_TESTS_SUPPORT_TARGETS_H_

#include <gtest/gtest.h>

#include <string>

#include "attnops/target.h"

namespace attnops::testing {

// Goes back to the target that is in use without SetTarget.
class TargetRestorer {
 public:
  TargetRestorer() = default;
  TargetRestorer(const TargetRestorer&) = delete;
  TargetRestorer& operator=(const TargetRestorer&) = delete;
  ~TargetRestorer() { SetTarget(""); }
};

template <typename Body>
void OnEveryTarget(const Body& body) {
  const TargetRestorer restorer;
  for (const std::string& name : SupportedTargets()) {
    SCOPED_TRACE("target " + name);
    SetTarget(name);
    ASSERT_EQ(GetTarget(), name);
    body();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_TARGETS_H_
