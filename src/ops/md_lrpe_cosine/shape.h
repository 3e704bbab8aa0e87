// The grid of md_lrpe_cosine and its table, checked.
#ifndef ATTNOPS_SRC_OPS_MD_LRPE_COSINE_SHAPE_H_
#define ATTNOPS_SRC_OPS_MD_LRPE_COSINE_SHAPE_H_

#include <cstdint>

#include "attnops/view.h"

namespace attnops::md_lrpe_cosine {

// 1 to Dims::kMaxRank axes of sizes from 0 to 2^31.
void CheckGrid(const char* op, const Dims& shape);

// An offset within its bounds, and in 1-d only.
void CheckGridOffset(const char* op, const Dims& shape, std::int64_t offset);

// `angles` a head and axis must cover `d` features.
void CheckAngles(const char* op, const char* name, std::int64_t angles, const Dims& shape,
                 std::int64_t d);

// Rows of a table: one for each index of each axis.
std::int64_t TableRows(const Dims& shape);

}  // namespace attnops::md_lrpe_cosine

#endif  // ATTNOPS_SRC_OPS_MD_LRPE_COSINE_SHAPE_H_
