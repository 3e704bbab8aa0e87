// A float32 matrix in scratch memory, as products take it; see matmul-inl.h.
#ifndef ATTNOPS_SRC_SIMD_PANELS_H_
#define ATTNOPS_SRC_SIMD_PANELS_H_

#include <cstdint>

#include "src/core/numeric.h"

namespace attnops {

// Panel p holds the columns [p·chunk, (p+1)·chunk), row after row.
struct Panels {
  float* data = nullptr;
  std::int64_t panel = 0;  // floats from one panel to the next

  // Rows are whole register tiles of any target, and one more: with powers of two, the panels
  // would otherwise all begin in the same set of the cache.
  static constexpr std::int64_t PanelSize(std::int64_t rows, std::int64_t chunk) {
    return (RoundUp(rows, 16) + 1) * chunk;
  }
  // Floats of a matrix, and the number of its panels.
  static constexpr std::int64_t Size(std::int64_t rows, std::int64_t columns, std::int64_t chunk) {
    return DivideUp(columns, chunk) * PanelSize(rows, chunk);
  }
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_SIMD_PANELS_H_
