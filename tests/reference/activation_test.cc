// The activations that the references share.
#include "tests/reference/activation.h"

#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace attnops::testing {
namespace {

using Kind = Activation::Kind;

TEST(ReferenceActivation, SoftmaxSumsToOneAlongItsAxis) {
  const Dims shape = {2, 5, 3, 4};
  for (int axis = 0; axis < 4; ++axis) {
    const reference::TensorActivation act{Kind::kSoftmax, shape, axis};
    const std::vector<double> p = act.Forward(RandomNormal(2 * 5 * 3 * 4, 4, 100));
    const auto groups = act.SoftmaxGroups();
    EXPECT_EQ(groups.size(), p.size() / shape[axis]);
    for (const auto& group : groups) {
      ASSERT_EQ(group.size(), static_cast<std::size_t>(shape[axis]));
      double sum = 0;
      for (const std::int64_t i : group) sum += p[i];
      EXPECT_NEAR(sum, 1, 1e-14);
    }
  }
}

TEST(ReferenceActivation, TheGroupsOfEachAxis) {
  using Groups = std::vector<std::vector<std::int64_t>>;
  const auto groups = [](int axis) {
    return reference::TensorActivation{Kind::kSoftmax, {2, 3, 2}, axis}.SoftmaxGroups();
  };
  EXPECT_EQ(groups(0), (Groups{{0, 6}, {1, 7}, {2, 8}, {3, 9}, {4, 10}, {5, 11}}));
  EXPECT_EQ(groups(1), (Groups{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}}));
  EXPECT_EQ(groups(2), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}));
}

}  // namespace
}  // namespace attnops::testing
