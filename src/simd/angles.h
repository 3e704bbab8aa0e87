// Tables of cos and sin for a run of tokens, shared by the position encodings.
//
// Tokens lie in a grid of one or more axes, and each angle belongs to one axis: it is the index
// on that axis times theta. Indices come in blocks. The sincos of a block's first index is
// computed from the exact product with theta (core/turns.h); the others follow by one complex
// product with the sincos of i·theta, i < block, which is made once a call. A token's values
// depend on its place in the grid alone, not on how the work is divided.
#ifndef ATTNOPS_SRC_SIMD_ANGLES_H_
#define ATTNOPS_SRC_SIMD_ANGLES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops {

// The angles of one call: one row for each head, or one for all. Rows are padded to `width` and
// in the storage order of the tensors' type, so that a chunk of cos or sin meets a chunk of the
// tensor lane by lane.
struct Angles {
  static constexpr std::int64_t kMaxBlock = 16;

  Dims shape;                 // of the grid, the last axis fastest
  std::int64_t offset = 0;    // of the indices, in a grid of one axis
  std::int64_t count = 0;     // angles of a row, without padding
  std::int64_t per_axis = 0;  // angle c belongs to axis c / per_axis
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t block = 0;  // indices in a block
  // Computed on the fly:
  std::uint32_t* turns = nullptr;  // (rows, 2, width): theta / 2π, its bits below 2^-32 second
  float* poison = nullptr;         // (rows, width): NaN where theta is not finite, else 0
  float* steps = nullptr;          // (rows, block, 2, width): cos and sin of i·theta
  // Or read from a table (rows, Σ shape, per_axis, 2), whose data is null if the grid is empty:
  bool from_table = false;
  const float* table = nullptr;
  std::int64_t table_row = 0, table_index = 0;  // its strides

  std::int64_t RowSize() const { return 2 * width; }
  float* Step(std::int64_t row, std::int64_t i) const {
    return steps + (row * block + i) * RowSize();
  }
  int axes() const { return shape.rank(); }
  // Whether a token's angles follow from another's by one step.
  bool OnLine() const { return axes() == 1 && !from_table; }
  int AxisOf(std::int64_t angle) const {
    return static_cast<int>(std::min<std::int64_t>(angle / per_axis, axes() - 1));
  }
};

// A table for a run of tokens: (tokens, rows, 2, width), cos before sin. If it has steps, (rows,
// `block` tokens, 2, width), it is that of the first token alone, and these lead to the others.
struct AngleTable {
  const float* data;
  std::int64_t rows;  // of the table: those of the heads it was made for, or 1
  std::int64_t width;
  const float* steps = nullptr;
  std::int64_t block = 0;

  std::int64_t TokenStride() const { return steps == nullptr ? rows * 2 * width : 0; }
  std::int64_t RowStride() const { return rows == 1 ? 0 : 2 * width; }
  const float* Cos(std::int64_t token, std::int64_t row) const {
    return data + token * TokenStride() + row * RowStride();
  }
  const float* Step(std::int64_t token, std::int64_t row) const {
    return steps == nullptr ? nullptr : steps + token * 2 * width + row * block * RowStride();
  }
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_SIMD_ANGLES_H_
