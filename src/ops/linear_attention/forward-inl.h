// KV = K̄ᵀ·V̄ and out = Ḡ ⊙ (Q̄·KV).

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/pairs-inl.h"
#include "src/ops/linear_attention/stages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

template <typename T>
void MakeKv(const Problem& problem, Head head, Range range, const Blocks& blocks,
            const Panels& kv) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    Prefetcher prefetcher;
    const Range next = NextBlock(range, problem.M, first, blocks);
    PrefetchBlock<T>(problem.k.x, head, next, D, prefetcher);
    PrefetchBlock<T>(problem.v.x, head, next, E, prefetcher);
    // After the last block comes the first one of q, in the forward or the backward.
    if (next.begin >= problem.M) {
      const Range block = FirstBlock(problem.N);
      PrefetchBlock<T>(problem.q.x, head, block, D, prefetcher);
      PrefetchBlock<T>(problem.g.x, head, block, E, prefetcher);
      PrefetchBlock<T>(problem.d_out, head, block, E, prefetcher);
      PrefetchBlock<T>(problem.out, head, block, E, prefetcher);
    }
    const bool add = first != range.begin;
#if !ATTNOPS_ONE_LANE
    if constexpr (kHasPairs<T>) {
      if (problem.kv_dot != nullptr) {
        const std::int64_t pairs = DivideUp(count, 2);
        prefetcher.Spread(PausesOf(inner, pairs, E));
        LoadPairs(problem.k, head, first, count, ChunksOf(InnerWidth(problem)), blocks, blocks.d,
                  blocks.d_pairs);
        LoadPairs(problem.v, head, first, count, ChunksOf(E), blocks, blocks.e, blocks.e_pairs);
        MultiplyPairs<Left::kTransposed>(problem.kv_dot, PairLeft::OfPanels(blocks.d_pairs),
                                         blocks.e_pairs, inner, pairs, ChunksOf(E),
                                         AddToMatrix{kv, add, prefetcher});
        return;
      }
    }
#endif
    prefetcher.Spread(PausesOf(inner, count, E));
    LoadOperand<T>(problem.k, head, first, count, blocks, blocks.d);
    if (!problem.v.stage.IsDirect()) {
      LoadOperand<T>(problem.v, head, first, count, blocks, blocks.e);
      Multiply<Left::kTransposed>(blocks.d, blocks.e, inner, count, ChunksOf(E),
                                  AddToMatrix{kv, add, prefetcher});
      return;
    }
    const Rows<const T> v = RowsOf<T>(problem.v.x, head, first);
    MultiplyRows<Left::kTransposed>(blocks.d, v.data, v.stride, blocks.e, inner, count, E,
                                    AddToMatrix{kv, add, prefetcher});
  });
}

template <typename T>
void Forward(const Problem& problem, Head head, Range range, const Blocks& blocks,
             const Panels& kv) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    Prefetcher prefetcher;
    const Range next = NextBlock(range, problem.N, first, blocks);
    PrefetchBlock<T>(problem.q.x, head, next, D, prefetcher);
    PrefetchBlock<T>(problem.g.x, head, next, E, prefetcher);
    PrefetchBlock<T>(problem.out, head, next, E, prefetcher);
    PrefetchBlock<Kept<T>>(problem.qkv, head, next, E, prefetcher);
    if (next.begin >= problem.N) PrefetchNextHead<T>(problem, blocks.next, prefetcher);
    const Rows<T> out = RowsOf<T>(problem.out, head, first);
    const Rows<Kept<T>> kept = RowsOf<Kept<T>>(problem.qkv, head, first);
    // Q̄·KV, with what becomes of its sums.
    const auto multiply = [&](const auto& epilogue) HWY_ATTR {
#if !ATTNOPS_ONE_LANE
      if constexpr (kHasPairs<T>) {
        if (problem.dot != nullptr) {
          LeftPairs q;
          if (problem.q.stage.IsDirect()) {
            q = DirectLeft(problem.q, head, first, count, blocks);
          } else {
            LoadOperand<T>(problem.q, head, first, count, blocks, blocks.d);
            q = StagedLeft(blocks.d, count, InnerWidth(problem), blocks);
          }
          prefetcher.Spread(PausesOf(count, q.depth, E));
          MultiplyPairs<Left::kStraight>(problem.dot, q.left, kv, count, q.depth, ChunksOf(E),
                                         epilogue);
          return;
        }
      }
#endif
      LoadOperand<T>(problem.q, head, first, count, blocks, blocks.d);
      prefetcher.Spread(PausesOf(count, inner, E));
      Multiply<Left::kStraight>(blocks.d, kv, count, inner, ChunksOf(E), epilogue);
    };
    if (problem.g.stage.IsDirect()) {
      multiply(StoreProduct<T, Kept<T>, RowsFactor<T>, Payload::kUpper>{
          {RowsOf<T>(problem.g.x, head, first)}, out, kept, E, prefetcher});
    } else {
      LoadOperand<T>(problem.g, head, first, count, blocks, blocks.e);
      multiply(StoreProduct<T, Kept<T>, PanelsFactor, Payload::kUpper>{
          {blocks.e}, out, kept, E, prefetcher});
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FORWARD_INL_H_
