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
  const std::int64_t chunks = ChunksOf(E);
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> k = RowsOf<T>(problem.k, head, first);
    const Rows<const T> v = RowsOf<T>(problem.v, head, first);
    LoadRows(k.data, k.stride, count, D, blocks.d);
    FetchAhead ahead;
    const Range next = NextBlock(range, first);
    FetchBlock<T>(problem.k, head, next, D, ahead);
    FetchBlock<T>(problem.v, head, next, E, ahead);
    // What comes after the last block, in whichever pass.
    if (next.begin >= problem.M) {
      FetchBlock<T>(problem.q, head, FirstBlock(problem.N), D, ahead);
      if (problem.d_out.data != nullptr) {
        FetchBlock<T>(problem.d_out, head, FirstBlock(problem.N), E, ahead);
        FetchBlock<T>(problem.g, head, FirstBlock(problem.N), E, ahead);
      }
    }
    ahead.Spread(PausesOf(StorageExtent<T>(D), count, E));
    // As many columns of v as a tile has: converted, they are still in L1 when they are used.
    for (std::int64_t chunk = 0; chunk < chunks; chunk += kTileChunks) {
      const std::int64_t column = chunk * static_cast<std::int64_t>(ChunkSize());
      const std::int64_t columns =
          std::min(E - column, kTileChunks * static_cast<std::int64_t>(ChunkSize()));
      LoadRows(v.data + column, v.stride, count, columns, blocks.e);
      const Panels to{kv.data + chunk * kv.panel, kv.panel};
      Multiply<Left::kTransposed>(blocks.d, blocks.e, StorageExtent<T>(D), count, ChunksOf(columns),
                                  AddToMatrix{to, add || first != range.begin, ahead});
    }
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
    const Range next = NextBlock(range, first);
    FetchBlock<T>(problem.q, head, next, D, ahead);
    if (next.begin >= problem.N) FetchNextHead<T>(problem, blocks.next, ahead);
    ahead.Spread(PausesOf(count, StorageExtent<T>(D), E));
    Multiply<Left::kStraight>(
        blocks.d, kv, count, StorageExtent<T>(D), ChunksOf(E),
        StoreProduct<T, kKeep, Payload::kUpper>{
            RowsOf<T>(problem.g, head, first), RowsOf<T>(problem.out, head, first),
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
