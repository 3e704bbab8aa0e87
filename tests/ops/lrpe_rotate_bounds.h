// What lrpe_rotate must give and how far from it a float32 kernel may be.
#ifndef ATTNOPS_TESTS_OPS_LRPE_ROTATE_BOUNDS_H_
#define ATTNOPS_TESTS_OPS_LRPE_ROTATE_BOUNDS_H_

#include <vector>

#include "attnops/types.h"
#include "tests/reference/lrpe_rotate.h"

namespace attnops::testing {

struct Expected {
  std::vector<double> value;
  std::vector<double> bound;
};

// The bound of a pair is kRotation times its length √(y_j² + y_{j+D/2}²), plus the errors of y.
Expected ExpectedForward(const reference::LrpeRotate& reference, DType dtype,
                         const std::vector<double>& x, const std::vector<double>& theta);

// With L the length of a pair of d_out, the scale is L · |f'(x)| for the rotation and, for the
// activation, L·s (sigmoid), L·s(1+|x|) (silu) and p·(L + Σ p⊙L) (softmax).
Expected ExpectedBackward(const reference::LrpeRotate& reference, DType dtype,
                          const std::vector<double>& x, const std::vector<double>& theta,
                          const std::vector<double>& d_out);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_LRPE_ROTATE_BOUNDS_H_
