// Gated linear attention on blocks of tokens: what its schedule and its kernels agree on.
//
// Each of q, k, v and g goes through a stage on its way from memory to the products: an activation
// and, for q and k, a position encoding. A stage writes the block of float32 rows that a product
// takes, so activated and encoded tensors are never in memory as a whole. In the backward it takes
// the gradient from its product tile by tile. A tensor whose stage would do nothing skips it.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_H_

#include <cstdint>
#include <optional>

#include "attnops/precision.h"
#include "attnops/types.h"
#include "src/core/checks.h"
#include "src/core/kernel_list.h"
#include "src/core/tensor.h"
#include "src/gemm/dot_tile.h"
#include "src/gemm/panels.h"
#include "src/positions/angles.h"
#include "src/positions/theta.h"

namespace attnops::linear_attention {

// Tokens that are converted to float32 at a time. Sums over tokens are in registers for a whole
// block, so adding them to KV costs little; the converted blocks and KV stay in L2.
constexpr std::int64_t kBlockTokens = 128;

// The stage of a tensor. Its rows have `parts` parts of `part` features: two parts if they are
// rotated, else one. Each part is padded to whole chunks in the blocks.
struct Stage {
  Activation::Kind act = Activation::Kind::kNone;
  SoftmaxAxis axis = SoftmaxAxis::kNone;
  int parts = 1;
  std::int64_t part = 0;

  bool encodes = false;
  Encoding encoding = Encoding::kCosine;
  std::int64_t encoded = 0;  // features of a part that have an angle
  std::int64_t prefix = 0;   // tokens in front without a position
  AngleSource source;
  Angles angles;  // made by the schedule

  bool IsDirect() const { return act == Activation::Kind::kNone && !encodes; }
  bool SumsRows() const { return axis == SoftmaxAxis::kFeatures; }
  bool SumsColumns() const { return axis == SoftmaxAxis::kSequence; }
};

// A tensor of the forward, its gradient and its stage.
struct Operand {
  Input x;
  Output dx;
  Stage stage;
  int index;  // 0 to 3 for q, k, v, g
  // The gradient of theta, if it is wanted: the sums of each piece and batch.
  ThetaSums theta = {};
  std::int64_t theta_piece = 0;  // tokens of a piece
  std::int64_t batches = 0;

  // Where the sums of a block are, from its first token on.
  double* ThetaSumsOf(std::int64_t batch, std::int64_t head, std::int64_t first) const {
    return theta.data == nullptr ? nullptr : theta.At(first / theta_piece * batches + batch, head);
  }
};
constexpr int kOperands = 4;

struct Problem {
  std::int64_t B, H, N, M, D, E;
  // The inner features, those of an encoded q or k and so the rows of KV, are inner_parts parts of
  // inner_part.
  int inner_parts = 1;
  std::int64_t inner_part = 0;
  Operand q, k, v, g;
  // Forward
  Output out, kv, qkv;
  // Backward
  Input d_out, kept_kv, kept_qkv;
  // The microkernel of bfloat16 products, of KV and of the others; null for float32 products. With
  // the latter KV, dKV and their transposes are in pairs of rows once they are complete.
  DotTile kv_dot = nullptr;
  DotTile dot = nullptr;
};

struct Head {
  std::int64_t batch, head;
};

// A worker's memory.
struct Blocks {
  // For bfloat16 products: pairs of tokens of the inner features and of E, and kBlockTokens rows of
  // either.
  Panels d_pairs, e_pairs;
  Rows<BFloat16> rows16;
  // Blocks of kBlockTokens rows: of inner features, of E features, and of a gradient that a softmax
  // needs in whole rows or columns.
  Panels d, e, gradient;
  // For stages: the angles of a block's tokens, and the rows of a softmax over the features or the
  // sums of one over the sequence.
  float* table = nullptr;
  float* rows = nullptr;
  // For the gradient of theta: the positions of a block's tokens, and the activated rows of a
  // softmax over the features.
  float* factors = nullptr;
  Panels activated;
  // Softmax over the sequence, by the operand's index: its rows of shifts, scales and means, and
  // the sums of the pass that finds the means.
  const float* columns[kOperands] = {};
  float* means[kOperands] = {};
  // For prefetching: whether the worker goes on with the tokens behind its range, and the head that
  // it probably takes next (batch −1 if there is none).
  bool goes_on = false;
  Head next = {-1, -1};
};

// The result of a pass of the backward: the gradients, or the means of softmax over the sequence.
enum class Goal { kGradients, kMeans };

// The kernels of a type. KV and dKV are (inner,E) matrices whose rows and columns are in the
// type's storage order, padded to whole chunks; KVᵀ and dKVᵀ are (E,inner).
struct Kernels {
  std::int64_t chunk;

  // Sets kv to K̄ᵀ·V̄ of a range.
  void (*make_kv)(const Problem& problem, Head head, Range range, const Blocks& blocks,
                  const Panels& kv);
  // Makes a KV or dKV whose sum is complete ready for products: sets its padding to 0.
  void (*finish_kv)(const Problem& problem, const Panels& kv);
  // Writes a complete KV to problem.kv, and reads it from problem.kept_kv.
  void (*store_kv)(const Problem& problem, Head head, const Panels& kv);
  void (*load_kv)(const Problem& problem, Head head, const Panels& kv);
  // to = fromᵀ, for the padded matrices; from is (inner,E).
  void (*transpose)(const Problem& problem, const Panels& from, const Panels& to);
  // Rounds a complete matrix of padded rows and columns to pairs of rows, in place.
  void (*pair_rows)(const Panels& matrix, std::int64_t rows, std::int64_t columns);
  // Adds the panel `from` of an (inner,E) matrix to the panel `to` of another.
  void (*add_panel)(const Problem& problem, const float* from, float* to);

  // out and, if it is kept, qkv for a range of N.
  void (*forward)(const Problem& problem, Head head, Range range, const Blocks& blocks,
                  const Panels& kv);
  // dq, dg, and dkv of a range of N, or the means of q and g. kv is used only if qkv was not kept.
  void (*backward_query)(const Problem& problem, Goal goal, Head head, Range range,
                         const Blocks& blocks, const Panels& kv, const Panels& kv_transposed,
                         const Panels& dkv);
  // dk and dv for a range of M, or the means of k and v.
  void (*backward_key)(const Problem& problem, Goal goal, Head head, Range range,
                       const Blocks& blocks, const Panels& dkv, const Panels& dkv_transposed);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

// What a pass computes: all of it, or a half. The keys' half has no queries (N = 0): the forward
// writes kv, the backward takes dKV from kept_kv. The queries' half has no keys (M = 0) and takes
// KV from kept_kv: the backward writes dKV to kv.
enum class Half { kBoth, kKeys, kQueries };

// One pass over checked tensors. `problem` is complete but for the angles of its stages; q and k
// have the same theta.
struct Call {
  DType dtype;
  Precision precision;  // kHighest, kHigh or kMedium
  Problem problem;
  std::optional<TensorView> d_theta = {};  // backward only
  Half half = Half::kBoth;
};
void Forward(const Call& call);
void Backward(const Call& call);

}  // namespace attnops::linear_attention

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_H_
