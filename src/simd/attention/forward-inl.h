// KV = K̄ᵀ·V̄ and out = Ḡ ⊙ (Q̄·KV).

#if defined(ATTNOPS_SRC_SIMD_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ATTENTION_FORWARD_INL_H_
#undef ATTNOPS_SRC_SIMD_ATTENTION_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ATTENTION_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/simd/attention/stages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
namespace HWY_NAMESPACE {

template <typename T>
void MakeKv(const Problem& problem, Head head, Range range, const Blocks& blocks,
            const Panels& kv) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    LoadOperand<T>(problem, problem.k, head, first, count, blocks, blocks.d);
    FetchAhead ahead;
    const Range next = NextBlock(range, problem.M, first, blocks);
    FetchBlock<T>(problem.k.x, head, next, D, ahead);
    FetchBlock<T>(problem.v.x, head, next, E, ahead);
    // What comes after the last block, in whichever pass.
    if (next.begin >= problem.M) {
      const Range block = FirstBlock(problem.N);
      FetchBlock<T>(problem.q.x, head, block, D, ahead);
      FetchBlock<T>(problem.g.x, head, block, E, ahead);
      FetchBlock<T>(problem.d_out, head, block, E, ahead);
      FetchBlock<T>(problem.out, head, block, E, ahead);
    }
    ahead.Spread(PausesOf(inner, count, E));
    const bool add = first != range.begin;
    if (!problem.v.stage.IsDirect()) {
      LoadOperand<T>(problem, problem.v, head, first, count, blocks, blocks.e);
      Multiply<Left::kTransposed>(blocks.d, blocks.e, inner, count, ChunksOf(E),
                                  AddToMatrix{kv, add, ahead});
      return;
    }
    const Rows<const T> v = RowsOf<T>(problem.v.x, head, first);
    MultiplyRows<Left::kTransposed>(blocks.d, v.data, v.stride, blocks.e, inner, count, E,
                                    AddToMatrix{kv, add, ahead});
  });
}

template <typename T>
void Forward(const Problem& problem, Head head, Range range, const Blocks& blocks,
             const Panels& kv) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    LoadOperand<T>(problem, problem.q, head, first, count, blocks, blocks.d);
    FetchAhead ahead;
    const Range next = NextBlock(range, problem.N, first, blocks);
    FetchBlock<T>(problem.q.x, head, next, D, ahead);
    FetchBlock<T>(problem.g.x, head, next, E, ahead);
    FetchBlock<T>(problem.out, head, next, E, ahead);
    FetchBlock<Kept<T>>(problem.qkv, head, next, E, ahead);
    if (next.begin >= problem.N) FetchNextHead<T>(problem, blocks.next, ahead);
    ahead.Spread(PausesOf(count, inner, E));
    const Rows<T> out = RowsOf<T>(problem.out, head, first);
    const Rows<Kept<T>> kept = RowsOf<Kept<T>>(problem.qkv, head, first);
    if (problem.g.stage.IsDirect()) {
      Multiply<Left::kStraight>(blocks.d, kv, count, inner, ChunksOf(E),
                                StoreProduct<T, RowsFactor<T>, Payload::kUpper>{
                                    {RowsOf<T>(problem.g.x, head, first)}, out, kept, E, ahead});
    } else {
      LoadOperand<T>(problem, problem.g, head, first, count, blocks, blocks.e);
      Multiply<Left::kStraight>(
          blocks.d, kv, count, inner, ChunksOf(E),
          StoreProduct<T, BlockFactor, Payload::kUpper>{{blocks.e}, out, kept, E, ahead});
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ATTENTION_FORWARD_INL_H_
