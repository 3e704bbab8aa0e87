// dḠ = dO ⊙ QKV, dQ̄ = dQKV·KVᵀ and dKV = Q̄ᵀ·dQKV, with dQKV = dO ⊙ Ḡ, in one pass over q, g and
// dO; then dK̄ = V̄·dKVᵀ and dV̄ = K̄·dKV in one over k and v. The stages turn them into the gradients
// of q, k, v and g. A stage that works tile by tile makes Q̄ or K̄ from the same tiles, so the
// products that read Q̄ and K̄ come after those that make dQ̄ and dK̄.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

// The kept QKV in T's storage order.
template <typename T>
HWY_INLINE Chunk LoadKept(const Kept<T>* from, std::size_t n) {
  if constexpr (std::is_same_v<Kept<T>, T>) {
    return LoadChunkN(from, n);
  } else {
    return LoadFloatsAs<T>(from, n);
  }
}

// dQKV = dO ⊙ G and, if QKV was kept, dG = dO ⊙ QKV. For a g without a stage.
template <typename T, bool kKept>
HWY_INLINE void LoadGradient(const Rows<const T>& d_out, const Rows<const T>& g,
                             const Rows<const Kept<T>>& qkv, const Rows<T>& dg, std::int64_t count,
                             std::int64_t columns, const Panels& d_qkv) {
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 float* to = d_qkv.data + chunk * d_qkv.panel;
                 for (std::int64_t row = 0; row < count; ++row, to += ChunkSize()) {
                   const Chunk gradient = LoadChunkN(d_out[row] + column, n);
                   StoreChunk(Mul(gradient, LoadChunkN(g[row] + column, n)), to);
                   if constexpr (kKept) {
                     StoreChunkN<Payload::kUpper>(Mul(gradient, LoadKept<T>(qkv[row] + column, n)),
                                                  dg[row] + column, n);
                   }
                 }
               });
}

// dQKV = dO ⊙ Ḡ and, if QKV was kept, the gradient of g from dḠ = dO ⊙ QKV, for a g with a stage.
// The stage takes QKV in tiles, as it takes the sums of a product.
template <typename T, bool kKept>
HWY_INLINE void LoadStagedGradient(const Problem& problem, Goal goal, Head head, std::int64_t first,
                                   std::int64_t count, const Blocks& blocks,
                                   Prefetcher& prefetcher) {
  const Operand& g = problem.g;
  const Rows<const T> d_out = RowsOf<T>(problem.d_out, head, first);
  const bool derives = kKept && (goal == Goal::kGradients || g.stage.SumsColumns());
  if (!derives || !IsTiled(g, goal)) {
    LoadOperand<T>(g, head, first, count, blocks, blocks.e, d_out);
  }
  if (!derives) return;
  const StageGradient<T> gradient(g, goal, head, first, count, blocks, blocks.e, d_out, prefetcher);
  const Rows<const Kept<T>> qkv = RowsOf<Kept<T>>(problem.kept_qkv, head, first);
  alignas(64) float sums[kStageRows * kMaxChunk];
  for (std::int64_t row = 0; row < count; row += kStageRows) {
    const std::int64_t rows = std::min(kStageRows, count - row);
    ForEachChunk(problem.E, [&](std::int64_t column, std::size_t n, std::int64_t chunk) HWY_ATTR {
      for (std::int64_t i = 0; i < rows; ++i) {
        StoreChunk(LoadKept<T>(qkv[row + i] + column, n),
                   sums + static_cast<std::size_t>(i) * ChunkSize());
      }
      gradient.Tile(row, rows, chunk, {{sums, nullptr}});
    });
  }
  gradient.Finish();
}

// Computes dx of an operand's rows, or what they add to its means, from left·right, the gradient of
// the rows that its stage makes. If the operand is tiled and `rows` is given, it also puts the rows
// themselves into that block.
template <typename T>
HWY_INLINE void MultiplyToGradient(const Operand& operand, Goal goal, Head head, std::int64_t first,
                                   std::int64_t count, const Blocks& blocks, const Panels& left,
                                   const Panels& right, std::int64_t depth, std::int64_t columns,
                                   const Panels& rows, Prefetcher& prefetcher) {
  if (operand.stage.IsDirect()) {
    if (goal == Goal::kMeans) return;
    Multiply<Left::kStraight>(
        left, right, count, depth, ChunksOf(columns),
        StoreInRows<T, Payload::kAny>{RowsOf<T>(operand.dx, head, first), columns, prefetcher});
  } else if (goal == Goal::kGradients || operand.stage.SumsColumns()) {
    StageGradient<T>(operand, goal, head, first, count, blocks, rows, {}, prefetcher)
        .Multiply(left, right, depth);
  }
}

#if !ATTNOPS_ONE_LANE

// LoadGradient for bfloat16 products: dQKV as rows and as pairs of tokens.
template <bool kKept>
inline void LoadGradientPairs(const Rows<const BFloat16>& d_out, const Rows<const BFloat16>& g,
                              const Rows<const BFloat16>& qkv, const Rows<BFloat16>& dg,
                              std::int64_t count, std::int64_t columns, const Blocks& blocks) {
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 const auto at_row = [&](std::int64_t row) ATTNOPS_INLINE_LAMBDA {
                   const Chunk gradient = LoadChunkN(d_out[row] + column, n);
                   if constexpr (kKept) {
                     StoreChunkN<Payload::kUpper>(Mul(gradient, LoadChunkN(qkv[row] + column, n)),
                                                  dg[row] + column, n);
                   }
                   const VU packed = RoundToPacked(Mul(gradient, LoadChunkN(g[row] + column, n)));
                   hn::StoreU(hn::BitCast(DU16(), packed), DU16(),
                              reinterpret_cast<std::uint16_t*>(blocks.rows16[row] + column));
                   return packed;
                 };
                 float* to = blocks.e_pairs.data + chunk * blocks.e_pairs.panel;
                 std::int64_t row = 0;
                 for (; row + 1 < count; row += 2, to += ChunkSize()) {
                   const VU first = at_row(row);
                   StorePairs(PairsOfRows(first, at_row(row + 1)), to);
                 }
                 if (row < count) StorePairs(PairsOfRows(at_row(row), hn::Zero(DU())), to);
               });
}

// A product with the gradient of an operand's rows as its result: MultiplyToGradient for bfloat16.
inline void MultiplyPairsToGradient(const Problem& problem, const Operand& operand, Goal goal,
                                    Head head, std::int64_t first, std::int64_t count,
                                    const Blocks& blocks, const LeftPairs& left,
                                    const Panels& right, std::int64_t columns, const Panels& rows,
                                    Prefetcher& prefetcher) {
  if (operand.stage.IsDirect()) {
    if (goal == Goal::kMeans) return;
    MultiplyPairs<Left::kStraight>(
        problem.dot, left.left, right, count, left.depth, ChunksOf(columns),
        StoreInRows<BFloat16, Payload::kAny>{RowsOf<BFloat16>(operand.dx, head, first), columns,
                                             prefetcher});
  } else if (goal == Goal::kGradients || operand.stage.SumsColumns()) {
    StageGradient<BFloat16>(operand, goal, head, first, count, blocks, rows, {}, prefetcher)
        .Multiply(problem.dot, left.left, right, left.depth);
  }
}

// The products of BackwardQueryRange for a block, with bfloat16 operands.
template <bool kKept>
void BackwardQueryPairs(const Problem& problem, Goal goal, Head head, std::int64_t first,
                        std::int64_t count, bool add, const Blocks& blocks, const Panels& kv,
                        const Panels& kv_transposed, const Panels& dkv, Prefetcher& prefetcher) {
  using T = BFloat16;
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem), width = InnerWidth(problem);
  const std::int64_t pairs = DivideUp(count, 2);
  const bool gradients = goal == Goal::kGradients;
  const Operand& q = problem.q;
  const Rows<const T> d_out = RowsOf<T>(problem.d_out, head, first);
  prefetcher.Spread(PausesOf(count, DivideUp(E, 2), width) +
                    (gradients ? PausesOf(inner, pairs, E) : 0) +
                    (kKept ? 0 : PausesOf(count, width / 2, E)));
  if (problem.g.stage.IsDirect()) {
    LoadGradientPairs<kKept>(d_out, RowsOf<T>(problem.g.x, head, first),
                             RowsOf<T>(problem.kept_qkv, head, first),
                             RowsOf<T>(problem.g.dx, head, first), count, E, blocks);
  } else {
    LoadStagedGradient<T, kKept>(problem, goal, head, first, count, blocks, prefetcher);
    RoundRows(blocks.e, count, ChunksOf(E), blocks.rows16);
    PairTokens(blocks.e, count, ChunksOf(E), blocks.e_pairs);
  }
  if (!q.stage.IsDirect() && !IsTiled(q, goal)) {
    LoadOperand<T>(q, head, first, count, blocks, blocks.d);
  }
  const LeftPairs d_qkv{PairLeft::OfRows({blocks.rows16.data, blocks.rows16.stride}),
                        DivideUp(E, 2)};
  MultiplyPairsToGradient(problem, q, goal, head, first, count, blocks, d_qkv, kv_transposed, D,
                          blocks.d, prefetcher);
  if (gradients) {
    if (q.stage.IsDirect()) {
      const Rows<const T> x = RowsOf<T>(q.x, head, first);
      PairTokens(x.data, x.stride, count, D, blocks.d_pairs);
    } else {
      PairTokens(blocks.d, count, ChunksOf(width), blocks.d_pairs);
    }
  }
  if constexpr (!kKept) {
    const bool wanted =
        problem.g.stage.IsDirect() ? gradients : gradients || problem.g.stage.SumsColumns();
    if (wanted) {
      const LeftPairs left = q.stage.IsDirect() ? DirectLeft(q, head, first, count, blocks)
                                                : StagedLeft(blocks.d, count, width, blocks);
      if (problem.g.stage.IsDirect()) {
        MultiplyPairs<Left::kStraight>(
            problem.dot, left.left, kv, count, left.depth, ChunksOf(E),
            StoreProduct<T, T, RowsFactor<T>, Payload::kAny>{
                {d_out}, RowsOf<T>(problem.g.dx, head, first), {}, E, prefetcher});
      } else {
        StageGradient<T>(problem.g, goal, head, first, count, blocks, {}, d_out, prefetcher)
            .Multiply(problem.dot, left.left, kv, left.depth);
      }
    }
  }
  if (gradients) {
    MultiplyPairs<Left::kTransposed>(problem.dot, PairLeft::OfPanels(blocks.d_pairs),
                                     blocks.e_pairs, inner, pairs, ChunksOf(E),
                                     AddToMatrix{dkv, add, prefetcher});
  }
}

// The products of BackwardKey for a block, with bfloat16 operands.
inline void BackwardKeyPairs(const Problem& problem, Goal goal, Head head, std::int64_t first,
                             std::int64_t count, const Blocks& blocks, const Panels& dkv,
                             const Panels& dkv_transposed, Prefetcher& prefetcher) {
  using T = BFloat16;
  const std::int64_t D = problem.D, E = problem.E, width = InnerWidth(problem);
  const Operand &k = problem.k, &v = problem.v;
  prefetcher.Spread(PausesOf(count, DivideUp(E, 2), width) + PausesOf(count, width / 2, E));
  if (!k.stage.IsDirect() && !IsTiled(k, goal)) {
    LoadOperand<T>(k, head, first, count, blocks, blocks.d);
  }
  LeftPairs left;
  if (v.stage.IsDirect()) {
    left = DirectLeft(v, head, first, count, blocks);
  } else {
    LoadOperand<T>(v, head, first, count, blocks, blocks.e);
    left = StagedLeft(blocks.e, count, E, blocks);
  }
  MultiplyPairsToGradient(problem, k, goal, head, first, count, blocks, left, dkv_transposed, D,
                          blocks.d, prefetcher);
  if (goal == Goal::kMeans && !v.stage.SumsColumns()) return;
  left = k.stage.IsDirect() ? DirectLeft(k, head, first, count, blocks)
                            : StagedLeft(blocks.d, count, width, blocks);
  MultiplyPairsToGradient(problem, v, goal, head, first, count, blocks, left, dkv, E, {},
                          prefetcher);
}

#endif  // !ATTNOPS_ONE_LANE

template <typename T, bool kKept>
void BackwardQueryRange(const Problem& problem, Goal goal, Head head, Range range,
                        const Blocks& blocks, const Panels& kv, const Panels& kv_transposed,
                        const Panels& dkv) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  const bool gradients = goal == Goal::kGradients;
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> d_out = RowsOf<T>(problem.d_out, head, first);
    const Rows<const Kept<T>> qkv = RowsOf<Kept<T>>(problem.kept_qkv, head, first);
    const Rows<T> dg = RowsOf<T>(problem.g.dx, head, first);
    Prefetcher prefetcher;
    const Range next = NextBlock(range, problem.N, first, blocks);
    PrefetchBlock<T>(problem.q.x, head, next, D, prefetcher);
    PrefetchBlock<T>(problem.g.x, head, next, E, prefetcher);
    PrefetchBlock<T>(problem.d_out, head, next, E, prefetcher);
    PrefetchBlock<Kept<T>>(problem.kept_qkv, head, next, E, prefetcher);
    PrefetchBlock<T>(problem.q.dx, head, next, D, prefetcher);
    PrefetchBlock<T>(problem.g.dx, head, next, E, prefetcher);
    if (next.begin >= problem.N) {
      const Range block = FirstBlock(problem.M);
      PrefetchBlock<T>(problem.k.x, head, block, D, prefetcher);
      PrefetchBlock<T>(problem.v.x, head, block, E, prefetcher);
      PrefetchBlock<T>(problem.k.dx, head, block, D, prefetcher);
      PrefetchBlock<T>(problem.v.dx, head, block, E, prefetcher);
    }
#if !ATTNOPS_ONE_LANE
    if constexpr (kHasPairs<T>) {
      if (problem.dot != nullptr) {
        BackwardQueryPairs<kKept>(problem, goal, head, first, count, first != range.begin, blocks,
                                  kv, kv_transposed, dkv, prefetcher);
        return;
      }
    }
#endif
    if (!IsTiled(problem.q, goal)) {
      LoadOperand<T>(problem.q, head, first, count, blocks, blocks.d);
    }
    if (problem.g.stage.IsDirect()) {
      LoadGradient<T, kKept>(d_out, RowsOf<T>(problem.g.x, head, first), qkv, dg, count, E,
                             blocks.e);
    } else {
      LoadStagedGradient<T, kKept>(problem, goal, head, first, count, blocks, prefetcher);
    }
    prefetcher.Spread(PausesOf(count, StorageExtent<T>(E), InnerWidth(problem)) +
                      (gradients ? PausesOf(inner, count, E) : 0) +
                      (kKept ? 0 : PausesOf(count, inner, E)));
    MultiplyToGradient<T>(problem.q, goal, head, first, count, blocks, blocks.e, kv_transposed,
                          StorageExtent<T>(E), D, blocks.d, prefetcher);
    if constexpr (!kKept) {
      if (problem.g.stage.IsDirect()) {
        if (gradients) {
          Multiply<Left::kStraight>(blocks.d, kv, count, inner, ChunksOf(E),
                                    StoreProduct<T, Kept<T>, RowsFactor<T>, Payload::kAny>{
                                        {d_out}, dg, {}, E, prefetcher});
        }
      } else if (gradients || problem.g.stage.SumsColumns()) {
        StageGradient<T>(problem.g, goal, head, first, count, blocks, {}, d_out, prefetcher)
            .Multiply(blocks.d, kv, inner);
      }
    }
    if (gradients) {
      Multiply<Left::kTransposed>(blocks.d, blocks.e, inner, count, ChunksOf(E),
                                  AddToMatrix{dkv, first != range.begin, prefetcher});
    }
  });
}

template <typename T>
void BackwardQuery(const Problem& problem, Goal goal, Head head, Range range, const Blocks& blocks,
                   const Panels& kv, const Panels& kv_transposed, const Panels& dkv) {
  if (problem.kept_qkv.data != nullptr) {
    BackwardQueryRange<T, true>(problem, goal, head, range, blocks, kv, kv_transposed, dkv);
  } else {
    BackwardQueryRange<T, false>(problem, goal, head, range, blocks, kv, kv_transposed, dkv);
  }
}

template <typename T>
void BackwardKey(const Problem& problem, Goal goal, Head head, Range range, const Blocks& blocks,
                 const Panels& dkv, const Panels& dkv_transposed) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    Prefetcher prefetcher;
    const Range next = NextBlock(range, problem.M, first, blocks);
    PrefetchBlock<T>(problem.k.x, head, next, D, prefetcher);
    PrefetchBlock<T>(problem.v.x, head, next, E, prefetcher);
    PrefetchBlock<T>(problem.k.dx, head, next, D, prefetcher);
    PrefetchBlock<T>(problem.v.dx, head, next, E, prefetcher);
    if (next.begin >= problem.M) PrefetchNextHead<T>(problem, blocks.next, prefetcher);
#if !ATTNOPS_ONE_LANE
    if constexpr (kHasPairs<T>) {
      if (problem.dot != nullptr) {
        BackwardKeyPairs(problem, goal, head, first, count, blocks, dkv, dkv_transposed,
                         prefetcher);
        return;
      }
    }
#endif
    if (!IsTiled(problem.k, goal)) {
      LoadOperand<T>(problem.k, head, first, count, blocks, blocks.d);
    }
    LoadOperand<T>(problem.v, head, first, count, blocks, blocks.e);
    prefetcher.Spread(PausesOf(count, StorageExtent<T>(E), InnerWidth(problem)) +
                      PausesOf(count, inner, E));
    MultiplyToGradient<T>(problem.k, goal, head, first, count, blocks, blocks.e, dkv_transposed,
                          StorageExtent<T>(E), D, blocks.d, prefetcher);
    MultiplyToGradient<T>(problem.v, goal, head, first, count, blocks, blocks.d, dkv, inner, E, {},
                          prefetcher);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BACKWARD_INL_H_
