// How fast the operators that are bound by multiply-adds run.
#ifndef ATTNOPS_BENCH_RATE_H_
#define ATTNOPS_BENCH_RATE_H_

#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <algorithm>

namespace attnops::bench {

inline constexpr double kPeakSeconds = 0.02;

// The rate of so many operations in each iteration, and what part of the peak that is.
inline void SetRate(benchmark::State& state, double operations, double peak_before) {
  const double peak = std::max(peak_before, MeasureFmaPeak(kPeakSeconds));
  using benchmark::Counter;
  state.counters["flops"] = Counter(operations, Counter::kIsIterationInvariantRate);
  state.counters["share"] = Counter(operations / peak, Counter::kIsIterationInvariantRate);
  state.SetLabel(GetTarget());
}

}  // namespace attnops::bench

#endif  // ATTNOPS_BENCH_RATE_H_
