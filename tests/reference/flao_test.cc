// The reference checks itself: its backward is the gradient of its forward.
#include "tests/reference/flao.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;

TEST(ReferenceFlao, BackwardMatchesFiniteDifferences) {
  const reference::Flao reference{2, 1, 3, 4, 2, 5};
  const Values q = RandomNormal(2 * 3 * 2, 1);
  const Values k = RandomNormal(2 * 4 * 2, 2);
  const Values v = RandomNormal(2 * 4 * 5, 3);
  const Values g = RandomNormal(2 * 3 * 5, 4);
  const Values d_out = RandomNormal(2 * 3 * 5, 5);
  const auto result = reference.RunBackward(q, k, v, g, d_out);
  const auto check = [&](const Values& gradient, const Values& at, const auto& forward) {
    const Values differences = DifferenceGradient(forward, at, d_out);
    // The sums are of order 10, and with them the cancellation.
    EXPECT_TRUE(AllNear(gradient, differences, Values(at.size(), 10 * kDifference)));
  };
  check(result.dq, q, [&](const Values& x) { return reference.Run(x, k, v, g).out; });
  check(result.dk, k, [&](const Values& x) { return reference.Run(q, x, v, g).out; });
  check(result.dv, v, [&](const Values& x) { return reference.Run(q, k, x, g).out; });
  check(result.dg, g, [&](const Values& x) { return reference.Run(q, k, v, x).out; });
}

TEST(ReferenceFlao, ByHand) {
  const reference::Flao reference{1, 1, 1, 2, 2, 1};
  const auto result = reference.Run({1, 2}, {3, 4, 5, 6}, {7, 8}, {10});
  EXPECT_EQ(result.kv, (Values{3 * 7 + 5 * 8, 4 * 7 + 6 * 8}));
  EXPECT_EQ(result.qkv, (Values{61 + 2 * 76}));
  EXPECT_EQ(result.out, (Values{2130}));
}

TEST(ReferenceFlao, EmptySequences) {
  const reference::Flao no_keys{1, 1, 2, 0, 2, 1};
  EXPECT_EQ(no_keys.Run({1, 2, 3, 4}, {}, {}, {5, 6}).out, (Values{0, 0}));
  const reference::Flao no_queries{1, 1, 0, 1, 2, 1};
  const auto gradients = no_queries.RunBackward({}, {1, 2}, {3}, {}, {});
  EXPECT_EQ(gradients.dk, (Values{0, 0}));
  EXPECT_EQ(gradients.dv, (Values{0}));
}

}  // namespace
}  // namespace attnops::testing
