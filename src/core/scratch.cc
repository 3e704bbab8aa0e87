#include "src/core/scratch.h"

#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace attnops {
namespace {

// Buffers of this size and more are in huge pages: tiles that a kernel goes through again and
// again would otherwise take more entries of the first-level TLB than there are.
constexpr std::size_t kHugeMinimum = std::size_t{256} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;

  void Allocate(std::size_t size) {
    const bool huge = size >= kHugeMinimum;
    alignment = huge ? kHugePage : Scratch::kAlignment;
    size = (size + alignment - 1) / alignment * alignment;
    data = static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}));
    bytes = size;
#ifdef __linux__
    if (huge) madvise(data, size, MADV_HUGEPAGE);
#endif
  }
  void Free() {
    if (data != nullptr) ::operator delete (data, std::align_val_t{alignment});
    data = nullptr;
    bytes = 0;
  }
  ~Buffer() { Free(); }
};

thread_local Buffer buffer;

}  // namespace

Scratch::Scratch(std::size_t bytes) {
  if (bytes > buffer.bytes) {
    buffer.Free();
    buffer.Allocate(bytes);
  }
  next_ = buffer.data;
}

Scratch::~Scratch() {
  if (buffer.bytes > kKeptBytes) buffer.Free();
}

}  // namespace attnops
