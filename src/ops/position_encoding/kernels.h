// A position encoding with an activation before it: what its schedule and its kernels agree on.
//
// A token of a head has a plain row (x, dx), of one or two parts, and an encoded row (out, d_out)
// of two parts.
#ifndef ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_H_
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_H_

#include <cstdint>

#include "attnops/types.h"
#include "src/core/checks.h"
#include "src/core/pass.h"
#include "src/core/target.h"
#include "src/core/tensor.h"
#include "src/positions/angles.h"
#include "src/rowops/kernels.h"

namespace attnops::position_encoding {

// The plain and encoded tensors of a call, and where its tokens are.
struct Problem {
  Input x;
  Input d_out;  // backward only
  Output out;   // out, or dx in the backward
  std::int64_t B, N, H;
  std::int64_t part;     // elements of a part
  std::int64_t encoded;  // of these, those with an angle: the first ones
  std::int64_t prefix;   // tokens in front without a position; the others have the angles
  std::int64_t tail;     // features behind the parts that pass as they are, for apply_pairs
  bool tokens_inner;     // whether a token's neighbour in memory is the next token, not head
  bool by_batch;         // whether a token of all batches comes before the next token
  bool stream;           // whether the output bypasses the caches
};

// How the features of a plain row are paired: neighbours (2j, 2j+1) or halves (j, j+r/2) of the
// first r = `rotated`; the others have no pair.
struct Pairs {
  bool interleaved = false;
  std::int64_t rotated = 0, features = 0;

  // Whether the pairs are the halves of the whole row, which all kernels take.
  bool AreHalves() const { return !interleaved && rotated == features; }
};

// Ranges of batches, tokens and heads. Kernels are called with tokens of one block.
struct Region {
  std::int64_t batch_begin, batch_end;
  std::int64_t token_begin, token_end;
  std::int64_t head_begin, head_end;
};

// Softmax over the sequence: the statistics of each column (b,h,feature). A (b,h) has Rows(pass)
// rows of plain_parts·width floats, in storage order.
struct Columns {
  // The shift, Σ exp(x−shift) and, in the backward, Σ exp(x−shift)·dy. finish_columns turns the
  // sums into 1/Σ and the mean Σ p·dy.
  static constexpr int Rows(Pass pass) { return pass == Pass::kForward ? 2 : 3; }

  float* data = nullptr;
  std::int64_t batch_begin, head_begin;
  std::int64_t heads;
  std::int64_t size;  // floats of one (b,h)

  float* At(std::int64_t batch, std::int64_t head) const {
    return data + ((batch - batch_begin) * heads + head - head_begin) * size;
  }
};

// A block has Angles::step_count tokens, at most these: enough that the exact sincos of its first
// token costs little beside the complex products of the others, few enough that the table of
// several heads stays in L2.
constexpr std::int64_t kBlockTokens = Angles::kMaxSteps;
static_assert(kBlockTokens <= rowops::kColumnTokens);

struct Kernels {
  std::int64_t chunk;         // rows of tables are padded to a multiple of it
  std::int64_t vector_bytes;  // alignment that streamed outputs need
  int plain_parts;

  // Each writes a region of the output: `apply` of tokens with a position, `apply_prefix` of tokens
  // without, and `apply_stepped`, which is null with an activation, as `apply` with a table that
  // has steps. `scratch` has two plain rows of floats for each of rowops::kSoftmaxRows rows;
  // softmax over the sequence reads `columns`.
  using Apply = void (*)(const Problem& problem, const Region& region, const AngleTable& table,
                         float* scratch, const Columns& columns);
  Apply apply, apply_prefix, apply_stepped;

  // Without an activation, for other pairs: halves with a tail, and neighbours, whose table is in
  // natural order. Null with an activation: then rows are gathered, so that their pairs are halves,
  // and results scattered.
  Apply apply_tail, apply_neighbours;
  void (*gather)(const Pairs& pairs, const void* row, void* to);
  void (*scatter)(const Pairs& pairs, const void* from, void* row);

  // The gradient of theta: adds factor·(y·dy' − y'·dy), for kCosine factor·y·(cos·do' − sin·do), of
  // the tokens of one batch and head to `sums`, of table.width numbers. `factors` is (tokens,
  // width), `scratch` has a plain row of floats for each token.
  void (*add_theta)(const Problem& problem, const Region& region, const AngleTable& table,
                    const float* factors, const Columns& columns, float* scratch, double* sums);

  // Softmax over the sequence: adds a region of tokens with a position, or without, to columns.
  // `first`: nothing was added before.
  using AddColumns = void (*)(const Problem& problem, const Region& region, const AngleTable& table,
                              const Columns& columns, bool first);
  AddColumns add_columns, add_prefix_columns;

  // Starts columns of `n` features, merges `from` into `to`, and turns sums into the scales and
  // means that `apply` reads.
  void (*start_columns)(float* columns, std::int64_t n);
  void (*merge_columns)(float* to, const float* from, std::int64_t n);
  void (*finish_columns)(float* columns, std::int64_t n);
};

// The kernels of an encoding and a type for a pass and an activation, on a SIMD target.
using Choice = Kernels (*)(Pass pass, Activation::Kind act, SoftmaxAxis axis);
template <Encoding kEncoding, typename T>
Choice KernelsOf(TargetIndex target);
template <>
Choice KernelsOf<Encoding::kRotate, float>(TargetIndex target);
template <>
Choice KernelsOf<Encoding::kRotate, Float16>(TargetIndex target);
template <>
Choice KernelsOf<Encoding::kRotate, BFloat16>(TargetIndex target);
template <>
Choice KernelsOf<Encoding::kCosine, float>(TargetIndex target);
template <>
Choice KernelsOf<Encoding::kCosine, Float16>(TargetIndex target);
template <>
Choice KernelsOf<Encoding::kCosine, BFloat16>(TargetIndex target);

// One pass over checked tensors. Problems are complete but for `stream`, `tokens_inner` and
// `by_batch`, which Run sets.
struct Call {
  Encoding encoding;
  Pass pass;
  DType dtype;
  Activation::Kind act;
  SoftmaxAxis axis;
  AngleSource angles;
  Pairs pairs;
  Problem problem;
  // A second tensor with the same angles, if `both`: only without an activation.
  Problem second;
  bool both = false;
  bool theta = false;  // whether it is for RunTheta

  // Whether rows are gathered so that their pairs are halves: where there is no kernel for others.
  bool Gathers() const { return !pairs.AreHalves() && (theta || act != Activation::Kind::kNone); }
};
void Run(Call call);
// The gradient of theta, from a call with x and d_out whose `theta` is set.
void RunTheta(Call call, const TensorView& d_theta);

}  // namespace attnops::position_encoding

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_H_
