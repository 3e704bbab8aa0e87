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
  char* data;
  std::size_t bytes;
};

char* MapAnonymous(void* at, std::size_t bytes, int flags) {
  void* data = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(data);
}

Buffer Map(std::size_t bytes) {
  // One huge page more, to cut an aligned buffer out of.
  char* start = MapAnonymous(nullptr, bytes + kHugePage, 0);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(start) % kHugePage;
  char* data = start + before;
  if (before != 0) munmap(start, before);
  munmap(data + bytes, kHugePage - before);
  madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

void Unmap(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) munmap(buffer.data, buffer.bytes);
}

// The huge pages of `from` become the first ones of `to`: the kernel changes its page
// tables, and neither clears nor copies. Page by page, as one call may not cross from
// what was mapped at once to its neighbour. A page that cannot be moved (the kernel's
// number of mappings is limited) goes back, and a new one takes its place.
void MovePages(const std::vector<Buffer>& from, const Buffer& to) {
  char* target = to.data;
  for (const Buffer& buffer : from) {
    for (std::size_t i = 0; i < buffer.bytes; i += kHugePage, target += kHugePage) {
      char* page = buffer.data + i;
      if (mremap(page, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED) {
        munmap(page, kHugePage);
        MapAnonymous(target, kHugePage, MAP_FIXED);
        madvise(target, kHugePage, MADV_HUGEPAGE);
      }
    }
  }
}

class Pool {
 public:
  void* Allocate(std::size_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    std::vector<Buffer> given_up;
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
      given_up = GiveUpFor(bytes);
    }
    Buffer buffer;
    try {
      buffer = Map(bytes);
    } catch (const std::bad_alloc&) {
      Unmap(given_up);
      throw;
    }
    MovePages(given_up, buffer);
    const std::lock_guard<std::mutex> lock(mutex_);
    Use(buffer);
    return buffer.data;
  }

  void Free(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = used_.find(data);
    used_bytes_ -= it->second;
    kept_bytes_ += it->second;
    kept_.push_back({static_cast<char*>(data), it->second});
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
  // What must go before `bytes` more are in use, oldest first. It is never more than
  // `bytes`, since what is in use and kept is within the limit before.
  std::vector<Buffer> GiveUpFor(std::size_t bytes) {
    const std::size_t limit = std::max(most_used_, used_bytes_ + bytes);
    std::vector<Buffer> given_up;
    while (used_bytes_ + bytes + kept_bytes_ > limit) {
      Buffer& oldest = kept_.front();
      const std::size_t part = std::min(oldest.bytes, used_bytes_ + bytes + kept_bytes_ - limit);
      given_up.push_back({oldest.data, part});
      oldest.data += part;
      oldest.bytes -= part;
      kept_bytes_ -= part;
      if (oldest.bytes == 0) kept_.erase(kept_.begin());
    }
    return given_up;
  }

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
