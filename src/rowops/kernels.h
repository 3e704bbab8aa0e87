// The kernels of softmax over the sequence, for schedules that need the sums of plain rows alone.
// The position encodings, which also sum gradients that are still encoded, have kernels of their
// own.
#ifndef ATTNOPS_SRC_ROWOPS_KERNELS_H_
#define ATTNOPS_SRC_ROWOPS_KERNELS_H_

#include <cstdint>

#include "attnops/types.h"
#include "src/core/kernel_list.h"

namespace attnops::rowops {

// Rows that softmax over the features takes at a time, at the most.
constexpr std::int64_t kSoftmaxRows = 4;
// Tokens that are added to columns at a time, at the most.
constexpr std::int64_t kColumnTokens = 16;
// Rows of the statistics of columns: shifts and sums.
constexpr int kColumnRows = 2;

// Tokens of a head: rows of one or two parts, `stride` elements apart.
struct TokenRows {
  const void* first;
  std::int64_t stride, count;
  std::int64_t part;   // elements of a part
  std::int64_t width;  // padded to chunks
};

// The statistics of columns are rows of `n` floats: the shift, and Σ exp(x−shift), which
// finish_columns turns into its inverse.
struct Kernels {
  void (*start_columns)(float* columns, std::int64_t n);
  // For rows of one part, and of two. `first`: nothing was added before.
  void (*add_to_columns[2])(const TokenRows& rows, float* columns, bool first);
  void (*merge_columns)(float* to, const float* from, std::int64_t n);
  void (*finish_columns)(float* columns, std::int64_t n);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

}  // namespace attnops::rowops

#endif  // ATTNOPS_SRC_ROWOPS_KERNELS_H_
