// What the products of matrices multiply. Sums are always float32.
#ifndef ATTNOPS_PRECISION_H_
#define ATTNOPS_PRECISION_H_

#include <optional>

#include "attnops/types.h"

#pragma GCC visibility push(default)
namespace attnops {

// - kHighest: float32.
// - kHigh: bfloat16 inputs as they are; a float32 intermediate keeps at least 16 significant bits.
// - kMedium: bfloat16 inputs as they are; an intermediate is rounded once to bfloat16.
// - kAuto: kMedium for bfloat16 tensors on a CPU that multiplies bfloat16 faster than float32, else
//   kHighest.
// A mode that the CPU cannot run faster than kHighest runs as kHighest; so do float32 and float16
// tensors. In kHigh and kMedium denormal operands may count as 0.
enum class Precision { kAuto, kHighest, kHigh, kMedium };

// The precision of calls that do not say otherwise: what was set, or the environment variable
// ATTNOPS_PRECISION (auto, highest, high or medium), or kAuto. Both throw Error for an unknown one.
void SetPrecision(Precision precision);
Precision GetPrecision();

// What a call with tensors of this type runs as on this CPU: kHighest, kHigh or kMedium.
Precision EffectivePrecision(DType dtype, std::optional<Precision> precision = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_PRECISION_H_
