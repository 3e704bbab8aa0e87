// Internal assertions, switched on for this file.
#ifndef ATTNOPS_DASSERTS
#define ATTNOPS_DASSERTS
#endif
#include "src/core/assert.h"

#include <gtest/gtest.h>

namespace attnops {
namespace {

TEST(AssertDeathTest, AFalseConditionEndsTheProgramAndIsNamed) {
  const int size = 3;
  ATTNOPS_DASSERT(size == 3);
  EXPECT_DEATH(ATTNOPS_DASSERT(size == 4), "assert_test.cc:[0-9]+: assertion failed: size == 4");
}

}  // namespace
}  // namespace attnops
