// Tensor product attention of any rank: what its schedules and its kernels agree on.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANKS_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANKS_H_

#include <algorithm>
#include <cstdint>

#include "attnops/precision.h"
#include "attnops/tpa.h"
#include "attnops/types.h"
#include "src/core/kernel_list.h"
#include "src/core/target.h"
#include "src/core/tensor.h"
#include "src/gemm/dot_tile.h"
#include "src/gemm/panels.h"
#include "src/ops/tensor_product_attention/kernels.h"

namespace attnops::tensor_product_attention {

// The types that a cache can have: those of tensors, or int8 with a scale for each row.
enum class Storage { kFloat32, kFloat16, kBFloat16, kInt8 };

constexpr Storage StorageOf(DType dtype) {
  return dtype == DType::kFloat32   ? Storage::kFloat32
         : dtype == DType::kFloat16 ? Storage::kFloat16
                                    : Storage::kBFloat16;
}

// One of the factors of a cache. Strides in elements; a row is a head of ak or av and a rank of bk
// or bv. Scales are those of int8 factors: one for a token of ak or av, one for a row of bk or bv.
struct CacheFactor {
  const void* data = nullptr;
  std::int64_t page = 0, token = 0, row = 0;
  const float* scales = nullptr;
  std::int64_t scale_page = 0, scale_token = 0, scale_row = 0;
};

// One decoding step.
struct DecodeProblem {
  std::int64_t B, M, H, Rq, Rk, Rv, D, E;
  DType dtype;      // of the queries and the output
  Storage storage;  // of the cache
  // Rows of aq and out are heads, those of bq ranks. Without aq, q has the whole queries.
  Input aq, bq, q;
  CacheFactor ak, av, bk, bv;
  TpaSequences sequences;
  std::int64_t page_size;  // without a page table M, and sequence b is page b
  Output out, lse;         // lse may be missing
  float score_scale;       // scale · scale_q · scale_k
  float value_scale;       // scale_v
  bool through_rank;       // scores as aq·(bq·bkᵀ) instead of (aq·bq)·bkᵀ
  DotTile dot = nullptr;   // the microkernel of bfloat16 products; null for float32 ones

  std::int64_t Length(std::int64_t batch) const {
    return sequences.lengths == nullptr ? M : sequences.lengths[batch];
  }
  std::int64_t PageOf(std::int64_t batch, std::int64_t token) const {
    return sequences.page_table == nullptr
               ? batch
               : sequences.page_table[batch * sequences.table_stride + token / page_size];
  }
  // Whether the two ranks of a token are a pair along the summed axis of bfloat16 products, and no
  // number of the cache needs rounding.
  bool InRankPairs() const {
    return dot != nullptr && Rk == 2 && Rv == 2 &&
           (storage == Storage::kBFloat16 || storage == Storage::kInt8);
  }
  // Tokens of a block: their rows of weights and a tile's columns of bv stay in L1.
  std::int64_t BlockTokens() const {
    constexpr std::int64_t kBlockRows = 128;
    return std::clamp<std::int64_t>(kBlockRows / std::max<std::int64_t>({Rk, Rv, 1}) / 8 * 8, 8,
                                    kBlockTokens);
  }
};

// Memory for operands that are rounded to bfloat16.
struct PairSpace {
  DotTile dot = nullptr;
  Rows<BFloat16> rows;  // of the left operand
  Panels left, right;
};
// The same for ranks that are pairs (DecodeProblem::InRankPairs, rank_pairs.h).
struct RankPairSpace {
  DotTile dot = nullptr;
  std::uint32_t *bq, *aq;   // RankScores::bq, aq
  std::uint32_t* products;  // RankScores::products
  Rows<BFloat16> rows;      // (tokens·R_k, D): bk, where the cache's rows do not serve
  float* factors;  // (tokens, heads) pairs of ak or av, where the cache's rows do not serve
  Panels left;     // (D/2, heads): q
  Panels right;    // (tokens, E): bv
  // (tokens, heads), `heads` numbers from row to row: scores, then weights in pairs.
  float* weights;
  std::int64_t heads;
  float* scales;  // (tokens, 2): RankScores::scales, then RankWeights::scales
};

// A worker's matrices, float32. Columns of bk, bv and q are in the cache type's storage order,
// heads in natural order.
struct DecodeWorkspace {
  Panels aq;   // (R_q, heads), scaled
  Panels bq;   // (D, R_q)
  Panels q;    // (D, heads)
  Panels b;    // (tokens·R_k, D), then (tokens·R_v, E)
  Panels p;    // (tokens·R_k, R_q): bk·bqᵀ
  Panels t;    // (tokens·R_k, heads): q·bkᵀ, transposed
  Panels a;    // (tokens·R_k, heads) of ak, then (tokens·R_v, heads) of av, which become weights
  Panels s;    // (tokens, heads): scores
  float* row;  // H·max(R_k, R_v), D or E numbers
  // Of each head: the maximum with this block, its sum, and what multiplies the sums of the blocks
  // before.
  float *max, *sum, *factor;
  PairSpace products;
  RankPairSpace pairs;
};

struct DecodeKernels {
  std::int64_t chunk;
  void (*prepare)(const DecodeProblem& problem, std::int64_t batch, Range heads,
                  const DecodeWorkspace& work);
  // Sets `to` to the partial result of these tokens; the heads are in natural order.
  void (*attend)(const DecodeProblem& problem, std::int64_t batch, Range heads, Range tokens,
                 const DecodeWorkspace& work, const Partial& to);
  void (*merge)(std::int64_t columns, std::int64_t heads, Range rows, const Partial& from,
                const Partial& to);
  // Divides the partial result of `heads` by its sums and writes the rows [rows) of it.
  void (*finish)(const DecodeProblem& problem, std::int64_t batch, Range heads, Range rows,
                 float* row, const Partial& from);
};
DecodeKernels DecodeKernelsOf(TargetIndex target);

// Where one row of a token goes in a cache; without a scale it has the type of the token.
struct AppendTarget {
  void* data;
  float* scale;
};
// Writes `rows` rows of `columns` numbers, `stride` elements apart, as one row, each rotated by the
// angles of a table if there are any. `buffer` has room for all numbers.
using AppendKernel = void (*)(DType dtype, const void* from, std::int64_t stride, std::int64_t rows,
                              std::int64_t columns, const float* cos, std::int64_t width,
                              const AppendTarget& to, float* buffer);
AppendKernel AppendKernelOf(TargetIndex target);

// One decoding step over checked arguments; out is not empty.
void RunDecode(const DecodeProblem& problem, Precision precision, TpaSplit split);

// Queries and keys that are worked on at a time. A block of keys is formed for each block of
// queries, so that is the larger one; all matrices of a pair of blocks stay in L2. kPairQueries of
// the queries are multiplied with the keys at a time: their scores stay in L1.
constexpr std::int64_t kQueryBlock = 128;
constexpr std::int64_t kPairQueries = 64;
constexpr std::int64_t kKeyBlock = 64;

// Scores through the ranks: the products of bq and bk of a block of queries and keys are shared by
// the heads. Those of a vector of queries stay in L1, kTileBytes, while kHeadsTogether heads take
// their scores from them, whose weights stay in L2.
constexpr std::int64_t kRankQueryBlock = 64;
constexpr std::int64_t kTileBytes = std::int64_t{24} << 10;
constexpr std::int64_t kHeadsTogether = 8;
// R_q that is compiled for.
constexpr std::int64_t kMostQueryRanks = 8;

// Attention of N queries to M keys. Rows of aq, ak, av and the output are heads, those of bq, bk
// and bv ranks. Without aq, q has the whole queries.
struct PrefillProblem {
  std::int64_t B, N, M, H, Rq, Rk, Rv, D, E;
  DType dtype;
  bool causal;
  Input aq, bq, q, ak, bk, av, bv;
  Output out, lse;  // lse (batch, head, token); may be missing
  float score_scale, value_scale;
  bool through_ranks = false;             // scores as Σ aq·ak·⟨bq, bk⟩ instead of ⟨q, k⟩
  const std::int64_t* lengths = nullptr;  // keys of each sequence; all M if missing
  DotTile dot = nullptr;

  std::int64_t Length(std::int64_t batch) const { return lengths == nullptr ? M : lengths[batch]; }
  // The keys that query n sees are those before this one.
  std::int64_t KeysOf(std::int64_t batch, std::int64_t query) const {
    return causal ? std::min(Length(batch), query + 1 + (M - N)) : Length(batch);
  }
};

// What the backward is given and gives. Gradients have the rows of their tensors.
struct PrefillGradients {
  Input out, lse, d_out;
  Output aq, bq, q, ak, bk, av, bv;
};

// Matrices of one size, one after the other.
struct PanelsList {
  Panels first;
  std::int64_t size = 0;

  Panels At(std::int64_t i) const { return {first.data + i * size, first.panel}; }
};

// What a task needs beside for scores through the ranks.
struct RanksWorkspace {
  std::int64_t keys;   // of a block
  Panels bq;           // (D, queries): chunk by chunk of the queries, a panel for each rank
  Panels bk;           // (keys·R_k, D)
  float* aq;           // (heads, vectors of queries, R_q, lanes), scaled
  float* ak;           // (heads, keys, R_k)
  float* products;     // (vectors of queries, keys, R_k, R_q, lanes)
  std::int64_t tile;   // from one vector of queries to the next
  PanelsList weights;  // of kHeadsTogether heads: (keys, queries)
  PanelsList out;      // of all heads: (queries, E)
};

struct PrefillWorkspace {
  Panels q, q_transposed;     // (queries, D) and (D, queries), scaled
  Panels k, v;                // (keys, D), (keys, E)
  Panels s;                   // (keys, queries): scores, then weights
  Panels out;                 // (queries, E)
  float *max, *sum, *factor;  // of each query, and of each head of a task
  PairSpace pairs;
  RanksWorkspace ranks;
  // For the backward:
  Panels d_out, d_out_transposed;  // (queries, E) and (E, queries)
  Panels ds;                       // (keys, queries): gradients of the scores
};

// The gradients of the whole queries, keys and values of one head, not scaled: (N,D), (M,D), (M,E).
struct HeadGradients {
  Panels q, k, v;
};

// The sums over heads so far, float32: (tokens, ranks, features) with whole chunks of features.
struct FactorSums {
  float *bq, *bk, *bv;
};

// Which tokens a pass of the backward has gradients for; an empty range of either is left out.
struct BackwardRanges {
  Range queries, keys;
};

struct PrefillKernels {
  std::int64_t chunk;
  // The output of a block of queries of some heads.
  void (*attend)(const PrefillProblem& problem, std::int64_t batch, Range heads, Range queries,
                 const PrefillWorkspace& work);
  // Sets the gradients of a head.
  void (*backward)(const PrefillProblem& problem, const PrefillGradients& gradients,
                   std::int64_t batch, std::int64_t head, const BackwardRanges& ranges,
                   const PrefillWorkspace& work, const HeadGradients& to);
  // For some tokens of a segment, counted from its beginning, and consecutive heads: write the
  // gradients of aq (or q), ak and av, and add to the sums of bq, bk and bv, which start with head
  // 0 and are written after the last one.
  void (*split_queries)(const PrefillProblem& problem, const PrefillGradients& gradients,
                        std::int64_t batch, Range heads, Range segment, Range tokens,
                        const HeadGradients* from, const FactorSums& sums);
  void (*split_keys)(const PrefillProblem& problem, const PrefillGradients& gradients,
                     std::int64_t batch, Range heads, Range segment, Range tokens,
                     const HeadGradients* from, const FactorSums& sums);
};

// Whether scores through the ranks are the cheaper ones; a choice by sizes alone.
bool ThroughRanks(const PrefillProblem& problem);

// Over checked arguments; there are queries and heads.
void RunPrefill(const PrefillProblem& problem, Precision precision);
void RunPrefillBackward(const PrefillProblem& problem, const PrefillGradients& gradients,
                        Precision precision);

}  // namespace attnops::tensor_product_attention

// The kernels of tpa, compiled for one element type at a time.
namespace attnops::tpa_prefill {
using Kernels = tensor_product_attention::PrefillKernels;
ATTNOPS_DECLARE_KERNELS_OF_TYPES(Kernels);
}  // namespace attnops::tpa_prefill

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANKS_H_
