// Fetching the rows of a later step into L2 while this one computes.
#ifndef ATTNOPS_SRC_SIMD_FETCH_AHEAD_H_
#define ATTNOPS_SRC_SIMD_FETCH_AHEAD_H_

#include <algorithm>
#include <cstdint>

#include "src/core/numeric.h"

namespace attnops {

// A list of rows, fetched a few cache lines at each step: reading them when they are needed would
// leave the arithmetic waiting, since hardware prefetchers stop at page ends and do not see how
// strided rows go on.
class FetchAhead {
 public:
  static constexpr int kMaxParts = 5;
  static constexpr std::int64_t kLine = 64;

  // `rows` rows of `bytes`, `stride` bytes apart, which will be read, or written.
  void Add(const void* data, std::int64_t stride, std::int64_t bytes, std::int64_t rows,
           bool write = false) {
    if (rows <= 0 || bytes <= 0) return;
    if (stride == bytes) {
      bytes *= rows;
      rows = 1;
    }
    parts_[count_++] = {static_cast<const char*>(data), stride, bytes, rows, write};
    lines_ += rows * DivideUp(bytes, kLine);
  }

  // Spreads what was added over this many steps.
  void Spread(std::int64_t steps) { step_lines_ = steps > 0 ? DivideUp(lines_, steps) : 0; }

  // A run of lines at a time: counting each of them in memory would take longer than fetching it.
  void Step() {
    std::int64_t left = step_lines_;
    while (left > 0 && at_ < count_) {
      Part& part = parts_[at_];
      const std::int64_t lines = std::min(left, DivideUp(part.bytes - offset_, kLine));
      const char* line = part.row + offset_;
      if (part.write) {
        for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(line + i * kLine, 1, 2);
      } else {
        for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(line + i * kLine, 0, 2);
      }
      left -= lines;
      offset_ += lines * kLine;
      if (offset_ < part.bytes) return;
      offset_ = 0;
      part.row += part.stride;
      if (--part.rows == 0) ++at_;
    }
  }

 private:
  struct Part {
    const char* row;
    std::int64_t stride, bytes, rows;
    bool write;
  };
  Part parts_[kMaxParts] = {};
  int count_ = 0;
  int at_ = 0;
  std::int64_t offset_ = 0;
  std::int64_t lines_ = 0;
  std::int64_t step_lines_ = 0;
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_SIMD_FETCH_AHEAD_H_
