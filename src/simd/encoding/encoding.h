// A position encoding with an activation before it: what its schedule and its kernels agree on.
//
// A token of a head has a plain row (x, dx), of one or two parts, and an encoded row (out, d_out)
// of two parts. All parts have the same number of elements, that of the angles:
//   kRotate  plain [y1, y2], encoded [y1·cos − y2·sin, y1·sin + y2·cos]
//   kCosine  plain [y],      encoded [y·cos, y·sin]
#ifndef ATTNOPS_SRC_SIMD_ENCODING_ENCODING_H_
#define ATTNOPS_SRC_SIMD_ENCODING_ENCODING_H_

#include <cstdint>

#include "attnops/types.h"
#include "attnops/view.h"
#include "src/core/checks.h"
#include "src/core/scratch.h"
#include "src/simd/angles.h"
#include "src/simd/target.h"

namespace attnops {

enum class Encoding { kRotate, kCosine };
enum class Pass { kForward, kBackward };

// A tensor as rows of features; strides in elements.
template <typename Pointer>
struct RowTensor {
  Pointer data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;
};

// The plain and encoded tensors of a call, and where its tokens are.
struct EncodingProblem {
  RowTensor<const void*> x;
  RowTensor<const void*> d_out;  // backward only
  RowTensor<void*> out;          // out, or dx in the backward
  std::int64_t B, N, H;
  std::int64_t part;     // elements of a part
  std::int64_t encoded;  // of them those with an angle; the others pass
  std::int64_t prefix;   // tokens in front that pass; those after them are the angles' grid
  bool tokens_inner;     // whether a token's neighbour in memory is the next token, not head
  bool by_batch;         // whether a token of all batches comes before the next token
  bool stream;           // whether the output bypasses the caches
};

// Batches, tokens of one block, and heads.
struct EncodingRegion {
  std::int64_t batch_begin, batch_end;
  std::int64_t token_begin, token_end;
  std::int64_t head_begin, head_end;
};

// Softmax over the sequence: what is known of each column (b,h,feature). A (b,h) has
// Rows(pass) rows of plain_parts·width floats, in storage order.
struct EncodingColumns {
  // While summing: shift, Σ exp(x−shift) and, in the backward, Σ exp(x−shift)·dy. Once merged
  // what FinishColumns says.
  static constexpr int Rows(Pass pass) { return pass == Pass::kForward ? 2 : 3; }

  float* data = nullptr;
  std::int64_t batch_begin, head_begin;
  std::int64_t heads;
  std::int64_t size;  // floats of one (b,h)

  float* At(std::int64_t batch, std::int64_t head) const {
    return data + ((batch - batch_begin) * heads + head - head_begin) * size;
  }
};

// Tokens that are added to columns at a time, at the most.
constexpr std::int64_t kColumnTokens = 16;
// Rows that a kernel takes at a time, at the most.
constexpr std::int64_t kMaxRowSet = 4;

struct EncodingKernels {
  std::int64_t chunk;         // rows of tables are padded to a multiple of it
  std::int64_t vector_bytes;  // alignment that streamed outputs need
  int plain_parts;

  void (*fill_turns)(const ConstTensorView& theta, const Angles& angles);
  void (*fill_steps)(const Angles& angles, std::int64_t count);
  void (*fill_table)(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                     std::int64_t first, std::int64_t tokens, float* table);

  // Writes a region of the output. `scratch` has two plain rows of floats for each of kMaxRowSet
  // rows; `columns` is read by softmax over the sequence. For tokens with an angle, for those of
  // the prefix, and for tables with steps, the latter without an activation only.
  void (*apply[3])(const EncodingProblem& problem, const EncodingRegion& region,
                   const AngleTable& table, float* scratch, const EncodingColumns& columns);

  // Softmax over the sequence: adds a region to columns (`first`: nothing was added before). For
  // tokens with an angle, and for those of the prefix.
  void (*add_columns[2])(const EncodingProblem& problem, const EncodingRegion& region,
                         const AngleTable& table, const EncodingColumns& columns, bool first);

  // Starts columns, merges `from` into `to`, and turns sums into what apply reads; `n` features.
  void (*start_columns)(float* columns, std::int64_t n);
  void (*merge_columns)(float* to, const float* from, std::int64_t n);
  void (*finish_columns)(float* columns, std::int64_t n);
};

// The kernels for each encoding and type, on a SIMD target.
EncodingKernels RotateFloat32Kernels(TargetIndex target, Pass pass, Activation::Kind act,
                                     SoftmaxAxis axis);
EncodingKernels RotateFloat16Kernels(TargetIndex target, Pass pass, Activation::Kind act,
                                     SoftmaxAxis axis);
EncodingKernels RotateBFloat16Kernels(TargetIndex target, Pass pass, Activation::Kind act,
                                     SoftmaxAxis axis);
EncodingKernels CosineFloat32Kernels(TargetIndex target, Pass pass, Activation::Kind act,
                                     SoftmaxAxis axis);
EncodingKernels CosineFloat16Kernels(TargetIndex target, Pass pass, Activation::Kind act,
                                     SoftmaxAxis axis);
EncodingKernels CosineBFloat16Kernels(TargetIndex target, Pass pass, Activation::Kind act,
                                     SoftmaxAxis axis);

EncodingKernels EncodingKernelsFor(TargetIndex target, Encoding encoding, DType dtype, Pass pass,
                                   Activation::Kind act, SoftmaxAxis axis);

// Where the angles of a call come from: theta, or a table if there is one.
struct AngleSource {
  const ConstTensorView* theta = nullptr;  // (rows, angles of an axis)
  const ConstTensorView* table = nullptr;  // (rows, Σ shape, angles of an axis, 2)
  Dims shape;
  std::int64_t offset = 0;
  std::int64_t per_axis = 0;
};

// The angles of `count` features without their memory, the bytes of that, and their start from
// theta if they have no table.
Angles AnglesOf(const AngleSource& source, std::int64_t count, std::int64_t chunk);
std::size_t AnglesScratch(const Angles& angles);
void StartAngles(const EncodingKernels& kernels, const ConstTensorView& theta, Scratch& scratch,
                 Angles& angles);

// One pass over tensors that were checked. Of `problem` all is given but `stream`, `tokens_inner`
// and `by_batch`.
struct EncodingCall {
  Encoding encoding;
  Pass pass;
  DType dtype;
  Activation::Kind act;
  SoftmaxAxis axis;
  AngleSource angles;
  EncodingProblem problem;
};
void RunEncoding(EncodingCall call);

}  // namespace attnops

#endif  // ATTNOPS_SRC_SIMD_ENCODING_ENCODING_H_
