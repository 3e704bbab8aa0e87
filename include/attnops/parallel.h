// Threads. Results never depend on how many there are.
#ifndef ATTNOPS_PARALLEL_H_
#define ATTNOPS_PARALLEL_H_

#include <cstdint>
#include <functional>

#pragma GCC visibility push(default)
namespace attnops {

// The number of threads of the default (OpenMP) parallel-for; 0 means OpenMP's own
// default, as a rule one for each processor. Throws Error if n is negative.
void SetNumThreads(int n);
int GetNumThreads();

// Calls body(begin, end) on ranges that together cover [0, n), possibly at the
// same time from several threads, and returns when all calls have returned.
using ParallelForBody = std::function<void(std::int64_t begin, std::int64_t end)>;
using ParallelFor = std::function<void(std::int64_t n, const ParallelForBody& body)>;

// Replaces the parallel-for, for programs that have a thread pool of their own. A thread that waits
// for a body may meanwhile run another call of an operator.
// `num_threads` says how many bodies may run at the same time; when it is empty,
// GetNumThreads() does. An empty `parallel_for` restores the default.
// Not to be called while an operator runs.
void SetParallelFor(ParallelFor parallel_for, std::function<int()> num_threads = {});

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_PARALLEL_H_
