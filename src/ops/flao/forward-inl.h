// KV = Kᵀ·V and out = G ⊙ (Q·KV).

#if defined(ATTNOPS_SRC_OPS_FLAO_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_FLAO_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_FLAO_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_FLAO_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/flao/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::flao {
namespace HWY_NAMESPACE {

template <typename T>
void AddKv(const Problem& problem, Head head, Range range, const Blocks& blocks, const Panels& kv,
           bool add) {
  const std::int64_t D = problem.D, E = problem.E;
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> k = RowsOf<T>(problem.k, head, first);
    const Rows<const T> v = RowsOf<T>(problem.v, head, first);
    LoadRows(k.data, k.stride, count, D, blocks.d);
    LoadRows(v.data, v.stride, count, E, blocks.e);
    FetchAhead ahead;
    const std::int64_t next = NextCount(range, first);
    FetchRows(RowsOf<T>(problem.k, head, first + kBlock), D, next, ahead);
    FetchRows(RowsOf<T>(problem.v, head, first + kBlock), E, next, ahead);
    ahead.Spread(PausesOf(Padded(D), count, E));
    Multiply<Left::kTransposed>(blocks.d, blocks.e, Padded(D), count, ChunksOf(E),
                                AddToMatrix{kv, add || first != range.begin, ahead});
  });
}

template <typename T, bool kKeep>
void ForwardRange(const Problem& problem, Head head, Range range, const Blocks& blocks,
                  const Panels& kv) {
  const std::int64_t D = problem.D, E = problem.E;
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> q = RowsOf<T>(problem.q, head, first);
    LoadRows(q.data, q.stride, count, D, blocks.d);
    FetchAhead ahead;
    FetchRows(RowsOf<T>(problem.q, head, first + kBlock), D, NextCount(range, first), ahead);
    ahead.Spread(PausesOf(count, Padded(D), E));
    Multiply<Left::kStraight>(
        blocks.d, kv, count, Padded(D), ChunksOf(E),
        StoreProduct<T, kKeep>{RowsOf<T>(problem.g, head, first),
                               RowsOf<T>(problem.out, head, first),
                               RowsOf<Kept<T>>(problem.qkv, head, first), E, ahead});
  });
}

template <typename T>
void Forward(const Problem& problem, Head head, Range range, const Blocks& blocks,
             const Panels& kv) {
  if (problem.qkv.data != nullptr) {
    ForwardRange<T, true>(problem, head, range, blocks, kv);
  } else {
    ForwardRange<T, false>(problem, head, range, blocks, kv);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::flao
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_FLAO_FORWARD_INL_H_
