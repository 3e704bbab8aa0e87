// Memory for large results.
#ifndef ATTNOPS_PYTHON_CSRC_POOL_H_
#define ATTNOPS_PYTHON_CSRC_POOL_H_

#include <cstddef>

namespace attnops::torch_binding {

// A fresh tensor of tens of megabytes costs more in page faults, and in unmapping
// when it dies, than the operator that fills it. Buffers from here are in huge pages
// and come back when their tensor dies. Buffers kept for reuse and buffers in use
// together never exceed the most that was in use at once. At that bound, a result of
// another size takes the pages of kept buffers, so that operators that take turns
// share them.

// Smaller results come from torch's allocator.
constexpr std::size_t kPoolMinimum = std::size_t{2} << 20;

// Aligned to a huge page. Throws std::bad_alloc.
void* PoolAllocate(std::size_t bytes);
void PoolFree(void* data);

// Gives the buffers kept for reuse back to the system.
void PoolEmpty();

}  // namespace attnops::torch_binding

#endif  // ATTNOPS_PYTHON_CSRC_POOL_H_
