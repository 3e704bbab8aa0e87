// Whether two tensors share memory.
#ifndef ATTNOPS_SRC_CORE_OVERLAP_H_
#define ATTNOPS_SRC_CORE_OVERLAP_H_

#include "attnops/view.h"

namespace attnops {

// Whether some element of one checked view has a byte in common with one of the other. Views that
// interleave, as slices of one tensor do, share nothing. The answer is exact for all views whose
// axes step over one another, as those of slices, transposes and reshapes do; for others the search
// ends after a number of steps, and the answer is then no.
bool ShareMemory(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_OVERLAP_H_
