// Matrices in scratch memory, in the layout that products take.
#ifndef ATTNOPS_SRC_GEMM_PANELS_H_
#define ATTNOPS_SRC_GEMM_PANELS_H_

#include <cstdint>

#include "src/core/numeric.h"

namespace attnops {

// How the rows of a panel follow one another: one by one, or in pairs whose elements alternate, as
// instructions take them that multiply and add two 16-bit numbers at a time. Pairs are rows of the
// right operand and columns of the left one: both run along the axis that is summed.
enum class PanelLayout { kRows = 1, kPairs = 2 };

// A matrix is cut into panels of one chunk (two vectors of float32) of columns: panel p holds the
// columns [p·chunk, (p+1)·chunk) of all rows. Conversion of a tensor's rows writes this layout
// directly, and it serves every operand: rows of a panel are the vectors of the right one, its
// elements are broadcast for the left one, straight or transposed, and a result is the operand of a
// later product. Columns are in the storage order of the tensors' type, as chunks of them are
// loaded.
template <typename Element, PanelLayout kLayout>
struct BasicPanels {
  Element* data = nullptr;
  std::int64_t panel = 0;  // elements from one panel to the next

  // Rows are whole register tiles of any target, and one or a pair more: with powers of two, the
  // panels would otherwise all begin in the same set of the cache.
  static constexpr std::int64_t PanelSize(std::int64_t rows, std::int64_t chunk) {
    return (RoundUp(rows, 16) + static_cast<int>(kLayout)) * chunk;
  }
  // Elements of a matrix.
  static constexpr std::int64_t Size(std::int64_t rows, std::int64_t columns, std::int64_t chunk) {
    return DivideUp(columns, chunk) * PanelSize(rows, chunk);
  }
};
using Panels = BasicPanels<float, PanelLayout::kRows>;

// Rows of a chunk of one or two parts of a matrix's columns; the rows of each follow one another.
struct ChunkRows {
  float* part[2];
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_GEMM_PANELS_H_
