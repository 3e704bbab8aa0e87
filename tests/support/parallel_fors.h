// Parallel-for callbacks to put in place of the default one.
#ifndef ATTNOPS_TESTS_SUPPORT_PARALLEL_FORS_H_
#define ATTNOPS_TESTS_SUPPORT_PARALLEL_FORS_H_

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "attnops/parallel.h"

namespace attnops::testing {

// Goes back to the default parallel-for with one thread for each processor.
class ParallelRestorer {
 public:
  ParallelRestorer() = default;
  ParallelRestorer(const ParallelRestorer&) = delete;
  ParallelRestorer& operator=(const ParallelRestorer&) = delete;
  ~ParallelRestorer() {
    SetParallelFor({});
    SetNumThreads(0);
  }
};

inline void SerialFor(std::int64_t n, const ParallelForBody& body) {
  if (n > 0) body(0, n);
}

// One call for each index, the last index first.
inline void TinyRangesFor(std::int64_t n, const ParallelForBody& body) {
  for (std::int64_t i = n - 1; i >= 0; --i) body(i, i + 1);
}

// Equal ranges, each on a new thread. Unlike libgomp's, its synchronisation is visible to tsan.
inline ParallelFor ThreadsFor(int threads) {
  return [threads](std::int64_t n, const ParallelForBody& body) {
    const std::int64_t step = (n + threads - 1) / threads;
    std::vector<std::thread> running;
    for (std::int64_t begin = 0; begin < n; begin += step) {
      running.emplace_back(body, begin, std::min(n, begin + step));
    }
    for (std::thread& thread : running) thread.join();
  };
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_PARALLEL_FORS_H_
