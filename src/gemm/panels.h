// Matrices in scratch memory, in the layout that products take.
#ifndef ATTNOPS_SRC_GEMM_PANELS_H_
#define ATTNOPS_SRC_GEMM_PANELS_H_

#include <cstdint>

#include "src/core/numeric.h"

namespace attnops {

// How the rows of a panel follow one another: one by one, or in pairs whose elements alternate, for
// instructions that multiply and add two 16-bit numbers at a time. Pairs are rows of the right
// operand and columns of the left one: both run along the axis that is summed.
enum class PanelLayout { kRows = 1, kPairs = 2 };

// A matrix is cut into panels of one chunk (two vectors of float32) of columns: panel p holds the
// columns [p·chunk, (p+1)·chunk) of all rows. Conversion of a tensor's rows writes this layout
// directly, and every operand has it: rows of a panel are the vectors of the right operand, its
// elements are broadcast for the left one, straight or transposed, and a result can be the operand
// of a later product. Columns are in the storage order of the tensors' type.
template <typename Element, PanelLayout kLayout>
struct BasicPanels {
  Element* data = nullptr;
  std::int64_t panel = 0;  // elements from one panel to the next

  // Elements of a panel of `rows` rows. They are padded to a multiple of 16 and by one row, or one
  // pair, more: the last tile may read past the end, and panels that are a power of two apart would
  // all begin in the same set of the cache.
  static constexpr std::int64_t PanelSize(std::int64_t rows, std::int64_t chunk) {
    return (RoundUp(rows, 16) + static_cast<int>(kLayout)) * chunk;
  }
  // Elements of a matrix.
  static constexpr std::int64_t Size(std::int64_t rows, std::int64_t columns, std::int64_t chunk) {
    return DivideUp(columns, chunk) * PanelSize(rows, chunk);
  }
};
using Panels = BasicPanels<float, PanelLayout::kRows>;

// The rows of one chunk of each of one or two parts of a matrix's columns. part[p] is the first
// row, the others follow it.
struct ChunkRows {
  float* part[2];
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_GEMM_PANELS_H_
