// The limits of this machine, for judging how close an operator comes to them.
// All functions use the library's parallel-for and take about `seconds`.
#ifndef ATTNOPS_MACHINE_H_
#define ATTNOPS_MACHINE_H_

#pragma GCC visibility push(default)
namespace attnops {

// Bytes read plus bytes written in a second by the best of memcpy and loops of
// non-temporal stores, over memory already touched and larger than the caches.
double MeasureCopyBandwidth(double seconds);

// float32 operations in a second (a fused multiply-add is two), on the widest
// target that the CPU has, whatever target is forced.
double MeasureFmaPeak(double seconds);

// The same of bfloat16 operations that are summed in float32 (a multiplication and an addition are
// two), whatever target is forced; 0 if the CPU has no instructions for them.
double MeasureBf16Peak(double seconds);

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_MACHINE_H_
