// The reference checks itself: its backward is the gradient of its forward.
#include "tests/reference/linear_attention.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using reference::LinearAttention;
using Values = std::vector<double>;
using Inputs = LinearAttention::Inputs;

TEST(ReferenceLinearAttention, BackwardMatchesFiniteDifferences) {
  for (const auto decay : {LinearAttention::Decay::kNone, LinearAttention::Decay::kConstant,
                           LinearAttention::Decay::kToken, LinearAttention::Decay::kFeature}) {
    // Two sequences of one and three tokens, two heads that share q and k.
    LinearAttention reference{1, 4, 1, 2, 3, 2, {0, 1, 4}, 0.6, decay};
    const std::int64_t sizes[] = {0, 2, 8, 24};
    const Inputs inputs{
        RandomNormal(12, 1),      RandomNormal(12, 2),
        RandomNormal(16, 3),      RandomNormal(sizes[static_cast<int>(decay)], 4, 0.3),
        RandomNormal(16, 5, 0.3), RandomNormal(24, 6)};
    const Values d_out = RandomNormal(16, 7), d_state = RandomNormal(24, 8);
    const auto result = reference.RunBackward(inputs, d_out, d_state);
    Values both = d_out;
    both.insert(both.end(), d_state.begin(), d_state.end());
    const auto check = [&](const Values& gradient, Values Inputs::*member) {
      const auto forward = [&](const Values& x) {
        Inputs changed = inputs;
        changed.*member = x;
        auto [out, state] = reference.Run(changed);
        out.insert(out.end(), state.begin(), state.end());
        return out;
      };
      const Values differences = DifferenceGradient(forward, inputs.*member, both);
      EXPECT_TRUE(AllNear(gradient, differences, Values(gradient.size(), 10 * kDifference)));
    };
    check(result.dq, &Inputs::q);
    check(result.dk, &Inputs::k);
    check(result.dv, &Inputs::v);
    check(result.d_log_decay, &Inputs::log_decay);
    check(result.d_log_decay_v, &Inputs::log_decay_v);
    check(result.d_initial_state, &Inputs::initial_state);
  }
}

TEST(ReferenceLinearAttention, ByHand) {
  const LinearAttention reference{1, 2, 1, 1, 1, 1, {}, 2};
  const auto result = reference.Run({{1, 2}, {3, 4}, {5, 6}, {}, {}, {7}});
  EXPECT_EQ(result.out, (Values{2 * 22, 2 * 2 * 46}));
  EXPECT_EQ(result.state, (Values{46}));
}

}  // namespace
}  // namespace attnops::testing
