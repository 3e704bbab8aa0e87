// The kernels that fill tables of angles, for schedules.
#ifndef ATTNOPS_SRC_POSITIONS_KERNELS_H_
#define ATTNOPS_SRC_POSITIONS_KERNELS_H_

#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"
#include "src/core/kernel_list.h"
#include "src/positions/angles.h"

namespace attnops::positions {

// For tensors of one type; the tables are in its storage order.
struct Kernels {
  std::int64_t chunk;  // rows of tables are padded to a multiple of it
  // Where an angle is in a row of a table.
  std::int64_t (*storage_offset)(std::int64_t angle);

  // Fills angles.turns and angles.poison.
  void (*fill_turns)(const ConstTensorView& theta, const Angles& angles);
  // Fills those of angles.steps whose bit is set.
  void (*fill_steps)(const Angles& angles, std::uint32_t steps);
  // Fills angles.stream_of from the angles of each section.
  void (*fill_streams)(const Dims& sections, bool interleaved, const Angles& angles);
  // Fills the table of the tokens [first, first + tokens), counted from the grid's first token and
  // at most step_count, on a line with one base (ids.h), for the rows [row_begin, row_end).
  void (*fill_table)(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                     std::int64_t first, std::int64_t tokens, float* table);
  // The same for tokens with positions of their own, or for the base of a run alone.
  void (*fill_positions)(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                         const BlockPositions& positions, float* table);
  // Fills (tokens, width) with the positions that theta is multiplied by. `positions` is null for
  // the tokens [first, first + tokens) of a grid.
  void (*fill_factors)(const Angles& angles, const BlockPositions* positions, std::int64_t first,
                       std::int64_t tokens, float* factors);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

}  // namespace attnops::positions

#endif  // ATTNOPS_SRC_POSITIONS_KERNELS_H_
