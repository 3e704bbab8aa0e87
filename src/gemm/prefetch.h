// Prefetching rows into L2 while a product computes.
#ifndef ATTNOPS_SRC_GEMM_PREFETCH_H_
#define ATTNOPS_SRC_GEMM_PREFETCH_H_

#include <cstdint>

#include "src/core/assert.h"
#include "src/core/numeric.h"

namespace attnops {

// A list of rows, prefetched a few cache lines at each step. Without it the arithmetic would wait
// for them: hardware prefetchers stop at page ends and do not follow strided rows.
class Prefetcher {
 public:
  static constexpr int kMaxEntries = 12;

  // Adds `rows` rows of `bytes` bytes, `stride` bytes apart.
  void Add(const void* data, std::int64_t stride, std::int64_t bytes, std::int64_t rows) {
    if (rows <= 0 || bytes <= 0) return;
    if (stride == bytes) {
      bytes *= rows;
      rows = 1;
    }
    ATTNOPS_DASSERT(count_ < kMaxEntries);
    entries_[count_++] = {static_cast<const char*>(data), stride, DivideUp(bytes, kLine), rows};
    lines_ += rows * DivideUp(bytes, kLine);
  }

  // Spreads the added rows over this many steps.
  void Spread(std::int64_t steps) { step_lines_ = steps > 0 ? DivideUp(lines_, steps) : 0; }

  // Prefetches the next lines: a few instructions unless a row ends.
  void Step() {
    std::int64_t lines = step_lines_;
    while (lines > left_) {
      lines -= left_;
      Fetch(left_);
      if (!NextRow()) return;
    }
    Fetch(lines);
    left_ -= lines;
  }

 private:
  static constexpr std::int64_t kLine = 64;
  struct Entry {
    const char* row;
    std::int64_t stride, lines, rows;
  };

  void Fetch(std::int64_t lines) {
    for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(line_ + i * kLine, 0, 2);
    line_ += lines * kLine;
  }
  bool NextRow() {
    if (at_ == count_) {
      left_ = step_lines_ = 0;
      return false;
    }
    Entry& entry = entries_[at_];
    line_ = entry.row;
    left_ = entry.lines;
    entry.row += entry.stride;
    if (--entry.rows == 0) ++at_;
    return true;
  }

  // The next line of the current row, and how many of its lines are left.
  const char* line_ = nullptr;
  std::int64_t left_ = 0;
  std::int64_t step_lines_ = 0;
  Entry entries_[kMaxEntries] = {};
  int count_ = 0;
  int at_ = 0;
  std::int64_t lines_ = 0;
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_GEMM_PREFETCH_H_
