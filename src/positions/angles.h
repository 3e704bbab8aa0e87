// Where the angles of a call come from, and tables of their cos and sin.
//
// Tokens lie in a grid of one or more axes, and each angle belongs to one axis: it is the index
// on that axis times theta. Or each token has a position of its own (ids.h), one for each section
// of the angles. The sincos of every position that is a multiple of step_count is computed from the
// exact product with theta (turns.h); those after it follow by one complex product with the sincos
// of i·theta, i < step_count, which is made once a call. A token's values depend on its position
// alone, not on how the work is divided.
#ifndef ATTNOPS_SRC_POSITIONS_ANGLES_H_
#define ATTNOPS_SRC_POSITIONS_ANGLES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"
#include "src/core/scratch.h"
#include "src/core/target.h"
#include "src/positions/ids.h"

namespace attnops {

// The position encodings, as functions of a row. Each part of a row has as many elements as there
// are angles:
//   kRotate  plain [y1, y2], encoded [y1·cos − y2·sin, y1·sin + y2·cos]
//   kCosine  plain [y],      encoded [y·cos, y·sin]
enum class Encoding { kRotate, kCosine };

// The arguments that say which angles a call has: a line or grid of positions, or ids, with theta,
// or the caller's table.
struct AngleSource {
  const ConstTensorView* theta = nullptr;  // (rows, angles of an axis)
  const ConstTensorView* table = nullptr;  // (rows, Σ shape, angles of an axis, 2)
  Dims shape;                              // of the grid
  std::int64_t offset = 0;                 // of the indices, in a grid of one axis
  std::int64_t per_axis = 0;               // angles of an axis

  // With ids, a caller's table is cos_sin (positions, 2·angles).
  const ConstTensorView* cos_sin = nullptr;
  PositionIds ids = {};
  Dims sections = {};  // angles of each stream of ids, if there are several
  bool sections_interleaved = false;
  float scale = 1.0f;  // of cosines and sines
};

// The angles of one call: one row for each head, or one for all. Rows are padded to `width` and
// in the storage order of the tensors' type, so that a chunk of cos or sin meets a chunk of the
// tensor lane by lane.
struct Angles {
  static constexpr std::int64_t kMaxSteps = 16;

  Dims shape;                 // of the grid, the last axis fastest
  std::int64_t offset = 0;    // of the indices, in a grid of one axis
  std::int64_t count = 0;     // angles of a row, without padding
  std::int64_t per_axis = 0;  // angle c belongs to axis c / per_axis
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t step_count = 0;  // indices from one exact sincos to the next
  // If the angles are computed from theta:
  std::uint32_t* turns = nullptr;  // (rows, 2, width): theta / 2π, its bits below 2^-32 second
  float* poison = nullptr;         // (rows, width): NaN where theta is not finite, else 0
  float* steps = nullptr;          // (rows, step_count, 2, width): cos and sin of i·theta
  // If they are read from a table (rows, Σ shape, per_axis, 2), which is null if the grid is empty:
  bool from_table = false;
  const float* table = nullptr;
  std::int64_t table_row = 0, table_index = 0;  // its strides
  // With a position for each token:
  PositionIds ids = {};
  int streams = 1;
  std::uint32_t* stream_of = nullptr;  // (width): the stream of an angle, if there are several
  const void* cos_sin = nullptr;       // (positions, 2·count), in place of theta
  DType cos_sin_type = DType::kFloat32;
  std::int64_t cos_sin_row = 0;  // its stride
  float scale = 1.0f;            // of cosines and sines

  std::int64_t RowSize() const { return 2 * width; }
  float* Step(std::int64_t row, std::int64_t i) const {
    return steps + (row * step_count + i) * RowSize();
  }
  int axes() const { return shape.rank(); }
  // Whether a token's angles are those of another plus one of `steps`.
  bool OnLine() const { return axes() == 1 && !from_table && cos_sin == nullptr && streams == 1; }
  bool HasIds() const { return ids.data != nullptr; }
  int AxisOf(std::int64_t angle) const {
    return static_cast<int>(std::min<std::int64_t>(angle / per_axis, axes() - 1));
  }
};

// A table for consecutive tokens: (tokens, rows, 2, width), cos before sin. If it has `steps`,
// (rows, step_count, 2, width), it holds the first token alone; token i has its angles plus step i.
struct AngleTable {
  const float* data;
  std::int64_t rows;  // one for each head it was made for, or one for all
  std::int64_t width;
  const float* steps = nullptr;
  std::int64_t step_count = 0;

  std::int64_t TokenStride() const { return steps == nullptr ? rows * 2 * width : 0; }
  std::int64_t RowStride() const { return rows == 1 ? 0 : 2 * width; }
  // The table of one of its rows.
  AngleTable OfRow(std::int64_t row) const {
    AngleTable table = *this;
    table.data += row * RowStride();
    if (steps != nullptr) table.steps += row * step_count * RowStride();
    return table;
  }
  const float* Cos(std::int64_t token, std::int64_t row) const {
    return data + token * TokenStride() + row * RowStride();
  }
  const float* Step(std::int64_t token, std::int64_t row) const {
    return steps == nullptr ? nullptr : steps + token * 2 * width + row * step_count * RowStride();
  }
};

// The angles of `count` features, still without memory. `chunk` is the target's chunk size.
Angles AnglesOf(const AngleSource& source, std::int64_t count, std::int64_t chunk);
// The scratch memory that StartAngles takes.
std::size_t AnglesScratch(const Angles& angles);
// The steps, as bits, that `tokens` tokens of each of `batches` batches need.
std::uint32_t StepsOf(const Angles& angles, std::int64_t batches, std::int64_t tokens);
// Fills turns, poison and the given steps from theta, and the streams of angles, for tables in the
// storage order of a type. Not for a grid's angles from a table.
void StartAngles(TargetIndex target, DType order, const AngleSource& source, std::uint32_t steps,
                 Scratch& scratch, Angles& angles);

}  // namespace attnops

#endif  // ATTNOPS_SRC_POSITIONS_ANGLES_H_
