// Parallel-for callbacks to put in place of the default one.
#ifndef ATTNOPS_TESTS_SUPPORT_PARALLEL_FORS_H_
#define ATTNOPS_TESTS_SUPPORT_PARALLEL_FORS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
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

// A way to run the parallel-for, with its name.
struct ParallelSetting {
  const char* name;
  void (*set)();
};

inline constexpr ParallelSetting kThreadCounts[] = {{"1 thread", [] { SetNumThreads(1); }},
                                                    {"2 threads", [] { SetNumThreads(2); }},
                                                    {"5 threads", [] { SetNumThreads(5); }},
                                                    {"all processors", [] { SetNumThreads(0); }}};

inline constexpr ParallelSetting kParallelFors[] = {
    {"the default", [] { SetParallelFor({}); }},
    {"serial", [] { SetParallelFor(SerialFor, [] { return 1; }); }},
    {"tiny ranges", [] { SetParallelFor(TinyRangesFor, [] { return 1; }); }},
    {"tiny ranges, said to be many threads",
     [] { SetParallelFor(TinyRangesFor, [] { return 64; }); }},
    {"threads", [] { SetParallelFor(ThreadsFor(3), [] { return 3; }); }},
    {"threads, no number given", [] { SetParallelFor(ThreadsFor(2)); }}};

// run() gives the same in every setting.
template <std::size_t kCount, typename Run>
void ExpectSameInEverySetting(const ParallelSetting (&settings)[kCount], const Run& run) {
  const ParallelRestorer restorer;
  settings[0].set();
  const auto expected = run();
  for (std::size_t i = 1; i < kCount; ++i) {
    settings[i].set();
    EXPECT_TRUE(run() == expected) << settings[i].name;
  }
}

// run(c) gives the same for each of the cases when they are run again in the opposite order, with
// two threads: nothing is left behind in scratch memory.
template <typename Case, typename Run>
void ExpectSameWhenRepeated(std::vector<Case>& cases, const Run& run) {
  const ParallelRestorer restorer;
  SetNumThreads(2);
  std::vector<decltype(run(cases[0]))> expected;
  for (Case& c : cases) expected.push_back(run(c));
  for (std::size_t i = cases.size(); i-- > 0;) {
    EXPECT_TRUE(run(cases[i]) == expected[i]) << cases[i].spec().Describe();
  }
}

// How often run() calls the parallel-for that it is given, with four workers.
template <typename Run>
int ParallelForCalls(const Run& run) {
  const ParallelRestorer restorer;
  std::atomic<int> calls = 0;
  SetParallelFor(
      [&](std::int64_t n, const ParallelForBody& body) {
        ++calls;
        SerialFor(n, body);
      },
      [] { return 4; });
  run();
  return calls;
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_PARALLEL_FORS_H_
