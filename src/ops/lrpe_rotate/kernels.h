// What the schedule of lrpe_rotate asks of its kernels.
#ifndef ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_H_
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_H_

#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"
#include "src/core/checks.h"
#include "src/simd/angles.h"

namespace attnops::lrpe_rotate {

// A (B,N,H,D) tensor; a (B,N,D) one has a single head. Strides in elements.
template <typename Pointer>
struct Tensor {
  Pointer data;
  std::int64_t batch, token, head;
};

enum class Pass { kForward, kBackward };

struct Problem {
  Tensor<const void*> x;
  Tensor<const void*> d_out;  // backward only
  Tensor<void*> out;          // out, or dx in the backward
  std::int64_t B, N, H, D;
  std::int64_t rotated;  // pairs [0, rotated) turn, the others pass
  bool stream;           // whether the output bypasses the caches
};

// Batches, tokens of one position block, and heads.
struct Region {
  std::int64_t batch_begin, batch_end;
  std::int64_t token_begin, token_end;
  std::int64_t head_begin, head_end;
};

// Softmax over the sequence: what is known of each column (b,h,feature). A (b,h)
// has kRows·2·width floats: for each row of statistics the two halves of the
// features, padded to `width` and in storage order.
struct Columns {
  // While summing: shift, Σ exp(x−shift) and, in the backward, Σ exp(x−shift)·dy.
  // Once merged: shift, 1/Σ and Σ p·dy.
  static constexpr int Rows(Pass pass) { return pass == Pass::kForward ? 2 : 3; }

  float* data = nullptr;
  std::int64_t batch_begin, head_begin;
  std::int64_t heads;
  std::int64_t size;  // floats of one (b,h)

  float* At(std::int64_t batch, std::int64_t head) const {
    return data + ((batch - batch_begin) * heads + head - head_begin) * size;
  }
};

// Rows that a kernel takes at a time, at the most.
constexpr std::int64_t kMaxRowSet = 4;

struct Kernels {
  std::int64_t chunk;         // rows of tables are padded to a multiple of it
  std::int64_t vector_bytes;  // alignment that streamed outputs need

  void (*fill_turns)(const ConstTensorView& theta, std::int64_t pairs, const Angles& angles);
  void (*fill_steps)(const Angles& angles, std::int64_t positions);
  void (*fill_table)(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                     std::int64_t first, std::int64_t positions, float* table);

  // Writes a region of the output. `scratch` has two rows of 2·width floats for each of
  // kMaxRowSet rows; `columns` is read by softmax over the sequence.
  void (*apply)(const Problem& problem, const Region& region, const AngleTable& table,
                float* scratch, const Columns& columns);

  // Softmax over the sequence: starts columns, adds a region to them (`first`: nothing was
  // added before), merges `from` into `to`, and turns sums into what apply reads. `count` (b,h) at
  // once.
  void (*start_columns)(float* columns, std::int64_t count, std::int64_t width);
  void (*add_columns)(const Problem& problem, const Region& region, const AngleTable& table,
                      const Columns& columns, bool first);
  void (*merge_columns)(float* to, const float* from, std::int64_t count, std::int64_t width);
  void (*finish_columns)(float* columns, std::int64_t count, std::int64_t width);
};

// The kernels for each type, on the chosen SIMD target.
Kernels Float32Kernels(Pass pass, Activation::Kind act, SoftmaxAxis axis);
Kernels Float16Kernels(Pass pass, Activation::Kind act, SoftmaxAxis axis);
Kernels BFloat16Kernels(Pass pass, Activation::Kind act, SoftmaxAxis axis);

}  // namespace attnops::lrpe_rotate

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_H_
