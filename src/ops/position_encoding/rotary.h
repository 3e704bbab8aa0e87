// The arguments that lrpe_rotate and rope share.
#ifndef ATTNOPS_SRC_OPS_POSITION_ENCODING_ROTARY_H_
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_ROTARY_H_

#include <cstdint>
#include <utility>

#include "attnops/rotary_options.h"
#include "src/ops/position_encoding/kernels.h"

namespace attnops::position_encoding {

// Which axes of a tensor are the sequence and the heads; a tensor of 3 axes has one head.
struct RotaryAxes {
  int sequence, heads;

  RotaryAxes(Layout layout, int rank)
      : sequence(rank == 3 || layout == Layout::kBnhd ? 1 : 2),
        heads(rank == 3 ? -1 : 3 - sequence) {}

  template <typename View>
  std::int64_t Heads(const View& view) const {
    return heads < 0 ? 1 : view.shape(heads);
  }
  template <typename View, typename Pointer = decltype(std::declval<View>().data())>
  StridedTensor<Pointer> RowsOf(const View& view) const {
    return {view.data(), view.stride(0), heads < 0 ? 0 : view.stride(heads), view.stride(sequence)};
  }
};

// "(B,N,H,D)" or "(B,H,N,D)".
const char* AxesOf(Layout layout);

// The number of rotated features of the tensor `x_name`, which has D = `features`.
std::int64_t CheckRotated(const char* op, const char* x_name, std::int64_t features,
                          const RotaryOptions& options);

// Positions, offsets, sections and scale, and what of a call's angles follows from them. With
// `table_rows` ≥ 0 every position has a row of a table of so many.
void CheckRotary(const char* op, std::int64_t batches, std::int64_t tokens, std::int64_t rotated,
                 std::int64_t offset, const RotaryOptions& options, std::int64_t table_rows,
                 AngleSource& angles);

// The positions that an offset stands for, where they must be ids. `storage` holds it meanwhile.
void OffsetAsIds(std::int64_t offset, std::int64_t& storage, AngleSource& angles);

// Sets a problem of a call, whose pairs and activation are set, from x, which stands for d_out too;
// the result has no data yet. `angle_count` is theta's number of angles.
void SetProblem(const Call& call, const RotaryAxes& axes, const ConstTensorView& x,
                std::int64_t angle_count, Problem& problem);

}  // namespace attnops::position_encoding

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_ROTARY_H_
