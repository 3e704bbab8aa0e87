// The reference of tpa against finite differences.
#include "tests/reference/tpa.h"

#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::reference {
namespace {

using testing::RandomNormal;
using Member = Tpa::Values Tpa::Inputs::*;

void CheckGradients(const Tpa& tpa, const Tpa::Inputs& in, std::initializer_list<Member> members) {
  const Tpa::Values d_out = RandomNormal(tpa.batch * tpa.n * tpa.heads * tpa.e, 9);
  const Tpa::Inputs gradients = tpa.Backward(in, d_out);
  for (const Member member : members) {
    const auto forward = [&](const Tpa::Values& values) {
      Tpa::Inputs changed = in;
      changed.*member = values;
      return tpa.Run(changed).out;
    };
    const auto expected = testing::DifferenceGradient(forward, in.*member, d_out);
    ASSERT_EQ((gradients.*member).size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR((gradients.*member)[i], expected[i], testing::kDifference * 10);
    }
  }
}

TEST(TpaReference, GradientsMatchFiniteDifferences) {
  for (const bool causal : {false, true}) {
    const Tpa tpa{2, 3, 4, 2, 3, 2, 2, 3, 2, causal, 0.6, 0.5, 0.7, 0.8};
    const Tpa::Inputs in{RandomNormal(36, 1),
                         RandomNormal(32, 2),
                         RandomNormal(32, 3),
                         RandomNormal(54, 4),
                         RandomNormal(48, 5),
                         RandomNormal(32, 6),
                         {}};
    CheckGradients(tpa, in,
                   {&Tpa::Inputs::aq, &Tpa::Inputs::ak, &Tpa::Inputs::av, &Tpa::Inputs::bq,
                    &Tpa::Inputs::bk, &Tpa::Inputs::bv});
    Tpa full = tpa;
    full.q_rank = 0;
    Tpa::Inputs whole = in;
    whole.q = RandomNormal(36, 7);
    CheckGradients(full, whole, {&Tpa::Inputs::q, &Tpa::Inputs::ak, &Tpa::Inputs::bv});
  }
}

}  // namespace
}  // namespace attnops::reference
