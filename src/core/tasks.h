// Dividing work over threads without letting their number into the result.
#ifndef ATTNOPS_SRC_CORE_TASKS_H_
#define ATTNOPS_SRC_CORE_TASKS_H_

#include <cstdint>
#include <functional>

#include "attnops/parallel.h"

namespace attnops {

// How many workers a region started now may have: at least 1.
int MaxWorkers();

// Calls task(i, worker) once for each i in [0, tasks), with 0 ≤ worker < workers;
// a worker runs one task at a time, so worker-indexed scratch needs no lock. The
// order and the assignment to workers vary from run to run: tasks must not depend
// on either, and must not throw.
void RunTasks(std::int64_t tasks, int workers,
              const std::function<void(std::int64_t task, int worker)>& task);

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_TASKS_H_
