// Checks of the arguments of position encodings: the grid of tokens and its angles.
#ifndef ATTNOPS_SRC_POSITIONS_GRID_H_
#define ATTNOPS_SRC_POSITIONS_GRID_H_

#include <cstdint>

#include "attnops/view.h"

namespace attnops {

// 1 to Dims::kMaxRank axes of sizes from 0 to 2^31.
void CheckGrid(const char* op, const Dims& shape);

// The tensor `x_name` has l ≥ 0 tokens and those of the grid.
void CheckGridTokens(const char* op, const char* x_name, std::int64_t tokens, const Dims& shape,
                     std::int64_t l);

// An offset within its bounds, and in 1-d only.
void CheckGridOffset(const char* op, const Dims& shape, std::int64_t offset);

// The tensor `name` has enough `angles` of a head and axis for the `count` features or pairs
// (`what`) of `x_name`.
void CheckAngles(const char* op, const char* name, std::int64_t angles, const Dims& shape,
                 const char* x_name, std::int64_t count, const char* what);

// In 1-d, theta has the right number of `angles` for a rotation of `pairs` pairs of `x_name`: one
// for all, or one for each of the first pairs.
void CheckPairAngles(const char* op, std::int64_t angles, const char* x_name, std::int64_t pairs);

// Rows of a table: one for each index of each axis.
std::int64_t TableRows(const Dims& shape);

}  // namespace attnops

#endif  // ATTNOPS_SRC_POSITIONS_GRID_H_
