// Temporary memory of an operator's call.
#ifndef ATTNOPS_SRC_CORE_SCRATCH_H_
#define ATTNOPS_SRC_CORE_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "src/core/assert.h"

namespace attnops {

// Aligned memory that belongs to one call. A thread keeps the memory of its last call, up to
// kKeptBytes, so a call of usual size allocates nothing. A call that starts on a thread while
// another one waits there (a thread pool that steals work) finds nothing kept and has memory of its
// own. The workers of a parallel region that the call starts may use it.
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 128;  // two cache lines: they are fetched in pairs
  static constexpr std::size_t kKeptBytes = std::size_t{8} << 20;

  // Throws std::bad_alloc.
  explicit Scratch(std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // The bytes that Take<T>(count) uses.
  template <typename T>
  static constexpr std::size_t Size(std::int64_t count) {
    return (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

  // The next `count` elements; all that is taken must fit into `bytes`.
  template <typename T>
  T* Take(std::int64_t count) {
    std::byte* result = next_;
    next_ += Size<T>(count);
    ATTNOPS_DASSERT(next_ <= data_ + bytes_);
    return reinterpret_cast<T*>(result);
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
  std::byte* next_;
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_SCRATCH_H_
