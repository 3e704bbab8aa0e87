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

  // Fills angles.turns and angles.poison.
  void (*fill_turns)(const ConstTensorView& theta, const Angles& angles);
  // Fills the first `count` of angles.steps.
  void (*fill_steps)(const Angles& angles, std::int64_t count);
  // Fills the table of the tokens [first, first + tokens), counted from the grid's first token and
  // at most step_count, for the rows [row_begin, row_end).
  void (*fill_table)(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                     std::int64_t first, std::int64_t tokens, float* table);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

}  // namespace attnops::positions

#endif  // ATTNOPS_SRC_POSITIONS_KERNELS_H_
