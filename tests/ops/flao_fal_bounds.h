// What flao_fal must give and how far from it a float32 kernel may be.
#ifndef ATTNOPS_TESTS_OPS_FLAO_FAL_BOUNDS_H_
#define ATTNOPS_TESTS_OPS_FLAO_FAL_BOUNDS_H_

#include <vector>

#include "attnops/precision.h"
#include "attnops/types.h"
#include "tests/reference/flao_fal.h"
#include "tests/support/compare.h"

namespace attnops::testing {

// Without the rounding to the stored type, which CheckStored adds.
struct FlaoFalExpected {
  Expected out, kv, qkv;
  Expected dq, dk, dv, dg;
  Expected dg_of_rounded_qkv;  // for a kept QKV in bfloat16
};

// Everything is a sum of products of Q̄, K̄, V̄, Ḡ and dO. With errors ē of these, the error of such
// a sum is no more than what the sum of magnitudes grows by from |X̄| to |X̄|+ē, and the rounding of
// the sum itself. ē is that of the activation, and of the rotation relative to the length of the
// pair, and of rounding to bfloat16 where the precision is kMedium. Gradients then go through the
// encoding and the activation as those of the encodings do.
FlaoFalExpected ExpectedFlaoFal(const reference::FlaoFal& reference,
                                const reference::FlaoFal::Inputs& x,
                                const std::vector<double>& theta, const std::vector<double>& d_out,
                                Precision precision);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_FLAO_FAL_BOUNDS_H_
