// What lrpe_rotate must give and how far from it a float32 kernel may be.
#ifndef ATTNOPS_TESTS_OPS_LRPE_ROTATE_BOUNDS_H_
#define ATTNOPS_TESTS_OPS_LRPE_ROTATE_BOUNDS_H_

#include <vector>

#include "attnops/types.h"
#include "tests/reference/lrpe_rotate.h"
#include "tests/support/compare.h"

namespace attnops::testing {

// The bound of a pair is kRotation times its length √(y_j² + y_{j+D/2}²), plus the errors of y.
Expected ExpectedForward(const reference::LrpeRotate& reference, DType dtype,
                         const std::vector<double>& x, const std::vector<double>& theta);

// The scale of dy is the length L of a pair of d_out, its error kRotation · L.
Expected ExpectedBackward(const reference::LrpeRotate& reference, DType dtype,
                          const std::vector<double>& x, const std::vector<double>& theta,
                          const std::vector<double>& d_out);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_LRPE_ROTATE_BOUNDS_H_
