// Causal linear attention on blocks of tokens: what its schedule and its kernels agree on.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_H_

#include <cstdint>

#include "attnops/types.h"
#include "src/core/kernel_list.h"
#include "src/core/tensor.h"
#include "src/gemm/dot_tile.h"
#include "src/gemm/panels.h"

namespace attnops::causal {

// Tokens of a block: their scores are a matrix, and the state advances once a block. More would
// make the scores cost more than the state. A power of two.
constexpr std::int64_t kBlockTokens = 64;

// Where each feature has a decay, those between two tokens of a group are products along the tokens
// from one to the other; those between groups come from a binary tree with this many levels.
constexpr int kGroupTokens = 8;
constexpr int kLevels = 3;
constexpr int kGroups = 1 << kLevels;
static_assert(kGroups * kGroupTokens == kBlockTokens);

// What λ is shared by; without a decay it is the constant 1.
enum class Decay { kConstant, kToken, kFeature };

struct Problem {
  std::int64_t D = 0, E = 0;
  float scale = 1;
  Input q, k, v, d_out;
  Output out, dq, dk, dv;
  Decay decay = Decay::kConstant;
  bool has_decay = false;            // whether there is a log_decay
  const float* constants = nullptr;  // log_decay of each head, if constant
  // log_decay and its gradient, of the tensors' type or float32. The gradient of a constant has a
  // row for each head.
  Input log_decay, log_decay_v;
  Output d_log_decay, d_log_decay_v;
  bool float_decay = false, float_decay_v = false;
  bool wants_decay = false;  // whether the backward computes the gradient of a decay
  DotTile dot = nullptr;     // of bfloat16 products; null if products are float32

  bool OnValues() const { return log_decay_v.data != nullptr; }
  // Whether the features of a token share a decay, or nothing decays, and those of v have none.
  bool IsOfTokens() const { return decay != Decay::kFeature && !OnValues(); }
};

// One head of one sequence: the first token of its sequence in a batch, and whose q and k it has.
struct Head {
  std::int64_t batch, first, head, key_head;
};

// The logarithms of a product of decays, of each feature of k and of v in storage order.
struct LogDecay {
  float* key;
  float* value;
};

// Decays of a block along one side, (block, features) each: log_decay, and the decay of each token
// alone; `nodes` has those of the halves of nodes of the tree over the tokens.
struct SideDecay {
  Panels logs, decays, nodes;
};

// A worker's matrices, float32, columns of features in storage order. g is scale·dO.
struct Workspace {
  Panels q, k, q_start, k_end, dq, dk;   // (block, D)
  Panels v, g, v_end, g_start, dv, out;  // (block, E)
  // (block, D or E). With decays of features (levels·block, D or E): rows times their decays from
  // or to the middle of their node.
  Panels weighted;
  Panels columns;           // (D or E, block): k or v transposed
  Panels scores, d_scores;  // (block, block)
  Panels mask;              // (block, block): decays from a token to another; 0 above
  SideDecay key, value;
  Panels state_columns;  // (E, D): a state transposed
  LogDecay log;          // of a block
  // Of a block's rows or of D and E: weights of the state's update.
  float *key_keep, *key_rest, *value_keep, *value_rest;
  float *from_start, *to_end;  // of a block's tokens and a tile, if the decay is not a feature's
  float *d_key, *d_value;      // of a block's features: gradients of the decays
  // With bfloat16 products q, k, v, g and columns are pairs: of tokens, columns of features.
  Panels state_pairs;         // a state, rounded: pairs of its rows, or of its columns transposed
  Panels score_pairs;         // (block, block): scores as pairs of rows
  Rows<BFloat16> score_rows;  // (block, block): scores as rows
  Rows<BFloat16> rows16;      // (block, D or E), whole chunks: rows of an odd number of features
};

// The tokens that a worker goes on with, prefetched while it computes others. None if empty.
struct Ahead {
  Head head{};
  Range block{0, 0};
};

// The backward of a block.
struct BackwardBlock {
  Range tokens;  // of the sequence
  Ahead ahead;
  Panels d_state;     // (D, E): the gradient of the state behind the block, then before it
  Panels state;       // at the block's start
  Panels next_state;  // behind the block, if the gradient of a decay is wanted
  // Rows of dq and dk in float32 that the heads of a group add to, and whether this head is the
  // first or the last of them. No data without groups.
  Rows<float> dq_sums, dk_sums;
  bool first_of_group = true, last_of_group = true;
  double* d_constant = nullptr;  // the gradient of a constant decay is added to it
};

struct Kernels {
  std::int64_t chunk;  // elements of two vectors

  // The end of the block that begins at `begin`: at most kBlockTokens later, not behind `tokens`,
  // and before a decay within the block would grow too much.
  std::int64_t (*block_end)(const Problem& problem, Head head, std::int64_t begin,
                            std::int64_t tokens, const Workspace& work);
  // Prepares the workspace for blocks of a head: the mask of a constant decay.
  void (*start)(const Problem& problem, Head head, const Workspace& work);
  // Advances the state by a block; writes its output if the problem has one.
  void (*forward)(const Problem& problem, Head head, Range block, const Workspace& work,
                  const Panels& state, const Ahead& ahead);
  // The same for the gradient of the state, from the last token to the first.
  void (*backward_state)(const Problem& problem, Head head, Range block, const Workspace& work,
                         const Panels& d_state);
  void (*backward)(const Problem& problem, Head head, const BackwardBlock& block,
                   const Workspace& work);

  // A state in memory (D, E), rows `stride` floats apart, to and from panels; from null, zeros.
  void (*load_state)(const Problem& problem, const float* from, std::int64_t stride,
                     const Panels& to);
  void (*store_state)(const Problem& problem, const Panels& from, float* to, std::int64_t stride);
  // The gradient of constant decays.
  void (*store_constants)(const Problem& problem, const double* from, std::int64_t heads);
  // One token, with states in memory; `from` and `to` may be the same or null.
  void (*step)(const Problem& problem, Head head, const float* from, std::int64_t from_stride,
               float* to, std::int64_t to_stride);
};

ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);

}  // namespace attnops::causal

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_KERNELS_H_
