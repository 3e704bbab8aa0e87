// Matrices in a schedule's scratch memory.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_WORKSPACE_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_WORKSPACE_H_

#include <algorithm>
#include <cstdint>

#include "src/core/numeric.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/gemm/panels.h"
#include "src/gemm/rank_pairs.h"
#include "src/ops/tensor_product_attention/ranks.h"

namespace attnops::tensor_product_attention {

// Matrices of one size.
struct Matrices {
  Arrays arrays;
  std::int64_t panel = 0;

  Panels At(std::int64_t i) const { return {arrays.At(i), panel}; }
  // One for each worker.
  void Plan(ScratchPlan& plan, std::int64_t rows, std::int64_t columns, std::int64_t chunk) {
    panel = Panels::PanelSize(rows, chunk);
    plan.AddForWorkers(arrays, Panels::Size(rows, columns, chunk));
  }
};

// The memory of operands that are rounded to bfloat16; none without a microkernel for them.
struct PairSpaces {
  DotTile dot = nullptr;
  Arrays rows;
  std::int64_t stride = 0;
  Matrices left, right;

  // Straight left operands are (rows, features), transposed ones (depth, columns), right ones
  // (depth, right_columns).
  void Plan(ScratchPlan& plan, DotTile tile, std::int64_t left_rows, std::int64_t features,
            std::int64_t depth, std::int64_t columns, std::int64_t right_columns,
            std::int64_t chunk) {
    dot = tile;
    if (dot == nullptr) return;
    stride = RoundUp(features, chunk) + chunk;
    plan.AddForWorkers(rows, DivideUp(left_rows * stride, 2));
    left.Plan(plan, DivideUp(depth, 2), columns, chunk);
    right.Plan(plan, DivideUp(depth, 2), right_columns, chunk);
  }
  PairSpace At(std::int64_t i) const {
    if (dot == nullptr) return {};
    return {dot, {reinterpret_cast<BFloat16*>(rows.At(i)), stride}, left.At(i), right.At(i)};
  }
};

// The memory of a decoding step whose ranks are pairs.
struct RankPairSpaces {
  DotTile dot = nullptr;
  Arrays bq, aq, products, rows, factors, weights, scales;
  std::int64_t stride = 0, heads = 0;
  Matrices left, right;

  void Plan(ScratchPlan& plan, const DecodeProblem& problem, std::int64_t most_heads,
            std::int64_t chunk) {
    dot = problem.dot;
    const std::int64_t block = problem.BlockTokens(), key_rows = 2 * block;
    const std::int64_t ranks = problem.through_rank ? RoundUp(problem.Rq, RankScores::kRanks) : 0;
    stride = RoundUp(problem.D, chunk) + chunk;
    heads = RoundUp(most_heads, chunk);
    plan.AddForWorkers(bq, 2 * ranks * DivideUp(problem.D, RankScores::kFeatures));
    plan.AddForWorkers(aq, RoundUp(most_heads, std::int64_t{RankScores::kLanes}) * ranks / 2);
    plan.AddForWorkers(products, block * ranks);
    plan.AddForWorkers(rows, DivideUp(key_rows * stride, 2));
    const bool serve = problem.ak.row == 2 && problem.av.row == 2;
    plan.AddForWorkers(factors, serve ? 0 : block * heads);
    plan.AddForWorkers(weights, block * heads + chunk);  // the last tile may read past the end
    plan.AddForWorkers(scales, key_rows);
    left.Plan(plan, RoundUp(problem.D, chunk) / 2, most_heads, chunk);
    right.Plan(plan, block, problem.E, chunk);
  }
  RankPairSpace At(std::int64_t i) const {
    if (dot == nullptr) return {};
    const auto words = [&](const Arrays& arrays) {
      return reinterpret_cast<std::uint32_t*>(arrays.At(i));
    };
    return {dot,
            words(bq),
            words(aq),
            words(products),
            {reinterpret_cast<BFloat16*>(rows.At(i)), stride},
            factors.At(i),
            left.At(i),
            right.At(i),
            weights.At(i),
            heads,
            scales.At(i)};
  }
};

// The memory of scores through the ranks, for each worker.
struct RanksWorkspaces {
  std::int64_t keys = 0, tile = 0, weights_size = 0, out_size = 0;
  Matrices bq, bk, weights, out;
  Arrays aq, ak, products;

  void Plan(ScratchPlan& plan, const PrefillProblem& problem, std::int64_t heads,
            std::int64_t queries, std::int64_t chunk) {
    const std::int64_t ranks = problem.Rq * problem.Rk, lanes = chunk / 2;
    const std::int64_t bytes = ranks * lanes * static_cast<std::int64_t>(sizeof(float));
    keys = std::clamp<std::int64_t>(kTileBytes / bytes / 16 * 16, 16, kKeyBlock);
    // Tiles that are a power of two apart would all begin in the same set of the cache.
    tile = keys * ranks * lanes + chunk;
    bq.Plan(plan, RoundUp(problem.D, chunk), queries * problem.Rq, chunk);
    bk.Plan(plan, keys * problem.Rk, problem.D, chunk);
    plan.AddForWorkers(aq, heads * queries * problem.Rq);
    plan.AddForWorkers(ak, heads * keys * problem.Rk);
    plan.AddForWorkers(products, queries / lanes * tile);
    const auto add = [&](Matrices& matrices, std::int64_t& size, std::int64_t rows,
                         std::int64_t columns, std::int64_t count) {
      matrices.panel = Panels::PanelSize(rows, chunk);
      size = Panels::Size(rows, columns, chunk);
      plan.AddForWorkers(matrices.arrays, count * size);
    };
    add(weights, weights_size, keys, queries, std::min(heads, kHeadsTogether));
    add(out, out_size, queries, problem.E, heads);
  }
  RanksWorkspace At(std::int64_t i) const {
    return {keys,
            bq.At(i),
            bk.At(i),
            aq.At(i),
            ak.At(i),
            products.At(i),
            tile,
            {weights.At(i), weights_size},
            {out.At(i), out_size}};
  }
};

// Partial results of tokens, for whole chunks of heads: `places` of them.
struct Partials {
  Arrays max, sum;
  Matrices out;

  Partial At(std::int64_t i) const { return {max.At(i), sum.At(i), out.At(i)}; }
  static std::int64_t Bytes(std::int64_t places, std::int64_t columns, std::int64_t chunk) {
    return static_cast<std::int64_t>(2 * Scratch::Size<float>(places) +
                                     Scratch::Size<float>(Panels::Size(places, columns, chunk)));
  }
  // One for each worker, or `count` of them.
  void Plan(ScratchPlan& plan, std::int64_t places, std::int64_t columns, std::int64_t chunk,
            std::int64_t count = 0) {
    const auto add = [&](Arrays& arrays, std::int64_t size) {
      count == 0 ? plan.AddForWorkers(arrays, size) : plan.Add(arrays, size, count);
    };
    add(max, places);
    add(sum, places);
    out.panel = Panels::PanelSize(places, chunk);
    add(out.arrays, Panels::Size(places, columns, chunk));
  }
};

}  // namespace attnops::tensor_product_attention

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_WORKSPACE_H_
