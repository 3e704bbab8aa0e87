// Tables of cos and sin for a run of positions, shared by the position encodings.
//
// Positions come in blocks. The sincos of a block's first position is computed from
// the exact product of position and theta (core/turns.h); the others follow by one
// complex product with the sincos of i·theta, i < kBlock, which is made once a call.
// A position's values depend on its index in the sequence alone, not on how the work
// is divided.
#ifndef ATTNOPS_SRC_SIMD_ANGLES_H_
#define ATTNOPS_SRC_SIMD_ANGLES_H_

#include <cstddef>
#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops {

// The angles of one call: theta in turns, one row for each head or one for all.
// Rows are padded to `width` and in the storage order of the tensors' type, so that
// a chunk of cos or sin meets a chunk of the tensor lane by lane.
struct Angles {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t block = 0;          // positions in a block
  std::uint64_t* turns = nullptr;  // (rows, width)
  float* poison = nullptr;         // (rows, width): NaN where theta is not finite, else 0
  float* steps = nullptr;          // (block, rows, 2, width): cos and sin of i·theta

  std::int64_t RowSize() const { return 2 * width; }
};

// A table for the positions of one block: (positions, rows, 2, width), cos before sin.
struct AngleTable {
  const float* data;
  std::int64_t rows;  // of the table: those of the heads it was made for, or 1
  std::int64_t width;

  const float* Cos(std::int64_t position, std::int64_t row) const {
    return data + (position * rows + (rows == 1 ? 0 : row)) * 2 * width;
  }
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_SIMD_ANGLES_H_
