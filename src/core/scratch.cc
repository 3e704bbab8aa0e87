#include "src/core/scratch.h"

#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace attnops {
namespace {

// Buffers of this size and more are in huge pages: memory that a kernel goes through again and
// again would otherwise need more entries of the first-level TLB than there are.
constexpr std::size_t kHugeMinimum = std::size_t{256} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t AlignmentOf(std::size_t bytes) {
  return bytes >= kHugeMinimum ? kHugePage : Scratch::kAlignment;
}

struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;

  void Allocate(std::size_t size) {
    const std::size_t alignment = AlignmentOf(size);
    size = (size + alignment - 1) / alignment * alignment;
    data = static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}));
    bytes = size;
#ifdef __linux__
    if (alignment == kHugePage) madvise(data, size, MADV_HUGEPAGE);
#endif
  }
  void Free() {
    if (data != nullptr) ::operator delete (data, std::align_val_t{AlignmentOf(bytes)});
    data = nullptr;
    bytes = 0;
  }
  ~Buffer() { Free(); }
};

// The buffer of the thread's last call; empty while a call uses it.
thread_local Buffer kept;

}  // namespace

Scratch::Scratch(std::size_t bytes) {
  if (bytes > kept.bytes) {
    kept.Free();
    kept.Allocate(bytes);
  }
  data_ = std::exchange(kept.data, nullptr);
  bytes_ = std::exchange(kept.bytes, 0);
  next_ = data_;
}

Scratch::~Scratch() {
  Buffer mine;
  mine.data = data_;
  mine.bytes = bytes_;
  if (bytes_ <= kKeptBytes && bytes_ > kept.bytes) {
    std::swap(mine.data, kept.data);
    std::swap(mine.bytes, kept.bytes);
  }
}

}  // namespace attnops
