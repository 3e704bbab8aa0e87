// The reference checks itself, by hand.
#include "tests/reference/tpa_decode.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attnops::testing {
namespace {

using Values = std::vector<double>;

// q = ½·(2·3 + 4·5) = 13; s = 10·[1·13·1, 2·13·0.5] = [130, 130], so the values are averaged.
TEST(ReferenceTpaDecode, EqualScores) {
  const reference::TpaDecode reference{1, 2, 1, 2, 1, 2, 5, 0.5, 2, 3};
  const auto result = reference.Run({2, 4}, {1, 2}, {7, 9}, {3, 5}, {1, 0.5}, {1, 2, 3, 4});
  EXPECT_EQ(result.s, (Values{130, 130}));
  EXPECT_EQ(result.p, (Values{0.5, 0.5}));
  EXPECT_EQ(result.out, (Values{3 * (3.5 * 1 + 4.5 * 3), 3 * (3.5 * 2 + 4.5 * 4)}));
}

TEST(ReferenceTpaDecode, WeightsOfDifferentScores) {
  const reference::TpaDecode reference{1, 2, 1, 1, 1, 1, 1, 1};
  const auto result = reference.Run({1}, {1, 1}, {1, 1}, {1}, {0, std::log(3.0)}, {4, 8});
  EXPECT_NEAR(result.out[0], 7, 1e-14);
}

TEST(ReferenceTpaDecode, NoTokens) {
  const reference::TpaDecode reference{1, 0, 1, 1, 1, 2, 1, 1};
  EXPECT_EQ(reference.Run({1}, {}, {}, {1}, {}, {}).out, (Values{0, 0}));
}

}  // namespace
}  // namespace attnops::testing
