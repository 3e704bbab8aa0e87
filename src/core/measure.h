// Timing what a machine can do.
#ifndef ATTNOPS_SRC_CORE_MEASURE_H_
#define ATTNOPS_SRC_CORE_MEASURE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/core/tasks.h"

namespace attnops {

inline double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The median time of a run, over as many as fit into `seconds`, three at the least.
template <class F>
double MedianTime(double seconds, const F& run) {
  std::vector<double> times;
  const double end = Now() + seconds;
  while (times.size() < 3 || Now() < end) {
    const double start = Now();
    run();
    times.push_back(Now() - start);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::int64_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

// Operations in a second on all threads. run(rounds, &sink) does many in registers and returns how
// many; `sink` keeps the result.
template <class F>
double MeasurePeak(double seconds, const F& run) {
  constexpr std::int64_t kRounds = 1 << 20;
  const int workers = MaxWorkers();
  std::vector<float> sinks(static_cast<std::size_t>(workers));
  std::vector<double> operations(static_cast<std::size_t>(workers));
  const double time = MedianTime(seconds, [&] {
    RunTasks(workers, workers, [&](std::int64_t i, int) {
      operations[static_cast<std::size_t>(i)] = run(kRounds, &sinks[static_cast<std::size_t>(i)]);
    });
  });
  return operations[0] * workers / time;
}

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_MEASURE_H_
