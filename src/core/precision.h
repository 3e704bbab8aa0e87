// Which precision a call has.
#ifndef ATTNOPS_SRC_CORE_PRECISION_H_
#define ATTNOPS_SRC_CORE_PRECISION_H_

#include <optional>

#include "attnops/precision.h"
#include "attnops/types.h"

namespace attnops {

// What is multiplied where the CPU multiplies bfloat16 faster than float32: kHighest, kHigh or
// kMedium. Throws Error if `precision`, an option of the operator, is unknown.
Precision PrecisionOf(const char* op, std::optional<Precision> precision, DType dtype);

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_PRECISION_H_
