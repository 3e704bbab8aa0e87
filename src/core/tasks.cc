#include "src/core/tasks.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "attnops/error.h"

#ifdef ATTNOPS_OPENMP
#include <omp.h>
#endif

namespace attnops {
namespace {

std::atomic<int> num_threads{0};

struct Custom {
  ParallelFor parallel_for;
  std::function<int()> num_threads;
};

Custom& GetCustom() {
  static Custom custom;
  return custom;
}

void DefaultParallelFor(std::int64_t n, const ParallelForBody& body) {
#ifdef ATTNOPS_OPENMP
  const int threads = static_cast<int>(std::min<std::int64_t>(n, GetNumThreads()));
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t rank = omp_get_thread_num();
    const std::int64_t size = omp_get_num_threads();
    body(n * rank / size, n * (rank + 1) / size);
  }
#else
  body(0, n);
#endif
}

}  // namespace

void SetNumThreads(int n) {
  if (n < 0) throw Error("SetNumThreads: n must not be negative; it is " + std::to_string(n));
  num_threads = n;
}

int GetNumThreads() {
  const int n = num_threads;
  if (n > 0) return n;
#ifdef ATTNOPS_OPENMP
  return std::max(1, omp_get_max_threads());
#else
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

void SetParallelFor(ParallelFor parallel_for, std::function<int()> num_threads) {
  GetCustom() = {std::move(parallel_for), std::move(num_threads)};
}

int MaxWorkers() {
  const Custom& custom = GetCustom();
  return std::max(1, custom.num_threads ? custom.num_threads() : GetNumThreads());
}

void RunTasks(std::int64_t tasks, int workers,
              const std::function<void(std::int64_t task, int worker)>& task) {
  if (tasks <= 0) return;
  if (workers == 1 || tasks == 1) {
    for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  // Each call of the body becomes a worker that takes tasks until none is left, so
  // a slow thread holds nobody up, however the parallel-for cuts its range. A call
  // beyond the last worker has nothing to do: the workers before it finish the work.
  std::atomic<std::int64_t> next_task{0};
  std::atomic<int> next_worker{0};
  const ParallelForBody body = [&](std::int64_t, std::int64_t) {
    const int worker = next_worker.fetch_add(1, std::memory_order_relaxed);
    if (worker >= workers) return;
    for (;;) {
      const std::int64_t i = next_task.fetch_add(1, std::memory_order_relaxed);
      if (i >= tasks) return;
      task(i, worker);
    }
  };
  const std::int64_t n = std::min<std::int64_t>(tasks, workers);
  const Custom& custom = GetCustom();
  if (custom.parallel_for) {
    custom.parallel_for(n, body);
  } else {
    DefaultParallelFor(n, body);
  }
}

}  // namespace attnops
