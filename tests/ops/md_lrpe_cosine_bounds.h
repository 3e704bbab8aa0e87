// What md_lrpe_cosine must give and how far from it a float32 kernel may be.
#ifndef ATTNOPS_TESTS_OPS_MD_LRPE_COSINE_BOUNDS_H_
#define ATTNOPS_TESTS_OPS_MD_LRPE_COSINE_BOUNDS_H_

#include <vector>

#include "attnops/types.h"
#include "tests/reference/md_lrpe_cosine.h"
#include "tests/support/compare.h"

namespace attnops::testing {

// (y·cos a, y·sin a) is the pair (y, 0) rotated: the bound is kRotation · |y| plus the error of y,
// for the first l tokens the error of y alone.
Expected ExpectedForward(const reference::MdLrpeCosine& reference, DType dtype,
                         const std::vector<double>& x, const std::vector<double>& theta);

// The scale of dy is the length L of (d_out[c], d_out[c+D]), its error kRotation · L; for the first
// l tokens dy is d_out[c] itself.
Expected ExpectedBackward(const reference::MdLrpeCosine& reference, DType dtype,
                          const std::vector<double>& x, const std::vector<double>& theta,
                          const std::vector<double>& d_out);

// (cos a, sin a) is the pair (1, 0) rotated.
Expected ExpectedTable(const reference::MdLrpeCosine& reference, const std::vector<double>& theta);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_MD_LRPE_COSINE_BOUNDS_H_
