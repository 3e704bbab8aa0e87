#include "src/core/scratch.h"

#include <new>

namespace attnops {
namespace {

struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;

  void Free() {
    if (data != nullptr) ::operator delete (data, std::align_val_t{Scratch::kAlignment});
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
    buffer.data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}));
    buffer.bytes = bytes;
  }
  next_ = buffer.data;
}

Scratch::~Scratch() {
  if (buffer.bytes > kKeptBytes) buffer.Free();
}

}  // namespace attnops
