#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace attnops::torch_binding {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Buffer {
  void* data;
  std::size_t bytes;
};

Buffer Map(std::size_t bytes) {
  // One huge page more, to cut an aligned buffer out of.
  const std::size_t mapped = bytes + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::size_t before = aligned - address;
  if (before != 0) munmap(start, before);
  void* data = reinterpret_cast<void*>(aligned);
  if (before != kHugePage) munmap(static_cast<char*>(data) + bytes, kHugePage - before);
  madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

void Unmap(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) munmap(buffer.data, buffer.bytes);
}

class Pool {
 public:
  void* Allocate(std::size_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    std::vector<Buffer> evicted;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // The smallest that is large enough and wastes no more than a quarter.
      auto best = kept_.end();
      for (auto it = kept_.begin(); it != kept_.end(); ++it) {
        if (it->bytes >= bytes && it->bytes <= bytes + bytes / 4 &&
            (best == kept_.end() || it->bytes < best->bytes)) {
          best = it;
        }
      }
      if (best != kept_.end()) {
        const Buffer buffer = *best;
        kept_.erase(best);
        kept_bytes_ -= buffer.bytes;
        Use(buffer);
        return buffer.data;
      }
      // Room for the new one is made before it is mapped, oldest first.
      const std::size_t limit = std::max(most_used_, used_bytes_ + bytes);
      while (!kept_.empty() && used_bytes_ + bytes + kept_bytes_ > limit) {
        evicted.push_back(kept_.front());
        kept_bytes_ -= kept_.front().bytes;
        kept_.erase(kept_.begin());
      }
    }
    Unmap(evicted);
    const Buffer buffer = Map(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    Use(buffer);
    return buffer.data;
  }

  void Free(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = used_.find(data);
    used_bytes_ -= it->second;
    kept_bytes_ += it->second;
    kept_.push_back({data, it->second});
    used_.erase(it);
  }

  void Empty() {
    std::vector<Buffer> buffers;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      buffers.swap(kept_);
      kept_bytes_ = 0;
      most_used_ = used_bytes_;
    }
    Unmap(buffers);
  }

 private:
  void Use(const Buffer& buffer) {
    used_.emplace(buffer.data, buffer.bytes);
    kept_.reserve(kept_.size() + used_.size());  // so that Free, called by destructors, cannot fail
    used_bytes_ += buffer.bytes;
    most_used_ = std::max(most_used_, used_bytes_);
  }

  std::mutex mutex_;
  std::vector<Buffer> kept_;  // oldest first
  std::unordered_map<void*, std::size_t> used_;
  std::size_t kept_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t most_used_ = 0;  // the most that was in use at once
};

// Never destroyed: tensors may outlive static objects.
Pool& GetPool() {
  static Pool* pool = new Pool;
  return *pool;
}

}  // namespace

void* PoolAllocate(std::size_t bytes) { return GetPool().Allocate(bytes); }
void PoolFree(void* data) { GetPool().Free(data); }
void PoolEmpty() { GetPool().Empty(); }

}  // namespace attnops::torch_binding
