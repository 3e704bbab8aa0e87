// dG = dO ⊙ QKV, dQ = dQKV·KVᵀ and dKV = Qᵀ·dQKV, with dQKV = dO ⊙ G, in one pass over q, g and dO;
// then dK = V·dKVᵀ and dV = K·dKV in one over k and v.

#if defined(ATTNOPS_SRC_OPS_FLAO_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_FLAO_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_FLAO_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_FLAO_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/flao/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::flao {
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

// dQKV = dO ⊙ G and, if QKV was kept, dG = dO ⊙ QKV.
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

template <typename T, bool kKept>
void BackwardQueryRange(const Problem& problem, Head head, Range range, const Blocks& blocks,
                        const Panels& kv, const Panels& kv_transposed, const Panels& dkv,
                        bool add) {
  const std::int64_t D = problem.D, E = problem.E;
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> q = RowsOf<T>(problem.q, head, first);
    const Rows<const T> g = RowsOf<T>(problem.g, head, first);
    const Rows<const T> d_out = RowsOf<T>(problem.d_out, head, first);
    const Rows<const Kept<T>> qkv = RowsOf<Kept<T>>(problem.kept_qkv, head, first);
    const Rows<T> dg = RowsOf<T>(problem.dg, head, first);
    LoadRows(q.data, q.stride, count, D, blocks.d);
    LoadGradient<T, kKept>(d_out, g, qkv, dg, count, E, blocks.e);
    FetchAhead ahead;
    const Range next = NextBlock(range, first);
    FetchBlock<T>(problem.q, head, next, D, ahead);
    FetchBlock<T>(problem.g, head, next, E, ahead);
    FetchBlock<T>(problem.d_out, head, next, E, ahead);
    if constexpr (kKept) {
      FetchBlock<Kept<T>>(problem.kept_qkv, head, next, E, ahead);
      FetchRows(RowsOf<T>(problem.dg, head, next.begin), E, next.end - next.begin, ahead);
    }
    if (next.begin >= problem.N) {
      FetchBlock<T>(problem.k, head, FirstBlock(problem.M), D, ahead);
      FetchBlock<T>(problem.v, head, FirstBlock(problem.M), E, ahead);
    }
    ahead.Spread(PausesOf(count, StorageExtent<T>(E), D) + PausesOf(StorageExtent<T>(D), count, E) +
                 (kKept ? 0 : PausesOf(count, StorageExtent<T>(D), E)));
    if constexpr (!kKept) {
      Multiply<Left::kStraight>(blocks.d, kv, count, StorageExtent<T>(D), ChunksOf(E),
                                StoreProduct<T, false, Payload::kAny>{d_out, dg, {}, E, ahead});
    }
    Multiply<Left::kStraight>(
        blocks.e, kv_transposed, count, StorageExtent<T>(E), ChunksOf(D),
        StoreInRows<T, Payload::kAny>{RowsOf<T>(problem.dq, head, first), D, ahead});
    Multiply<Left::kTransposed>(blocks.d, blocks.e, StorageExtent<T>(D), count, ChunksOf(E),
                                AddToMatrix{dkv, add || first != range.begin, ahead});
  });
}

template <typename T>
void BackwardQuery(const Problem& problem, Head head, Range range, const Blocks& blocks,
                   const Panels& kv, const Panels& kv_transposed, const Panels& dkv, bool add) {
  if (problem.kept_qkv.data != nullptr) {
    BackwardQueryRange<T, true>(problem, head, range, blocks, kv, kv_transposed, dkv, add);
  } else {
    BackwardQueryRange<T, false>(problem, head, range, blocks, kv, kv_transposed, dkv, add);
  }
}

template <typename T>
void BackwardKey(const Problem& problem, Head head, Range range, const Blocks& blocks,
                 const Panels& dkv, const Panels& dkv_transposed) {
  const std::int64_t D = problem.D, E = problem.E;
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> k = RowsOf<T>(problem.k, head, first);
    const Rows<const T> v = RowsOf<T>(problem.v, head, first);
    LoadRows(k.data, k.stride, count, D, blocks.d);
    LoadRows(v.data, v.stride, count, E, blocks.e);
    FetchAhead ahead;
    const Range next = NextBlock(range, first);
    FetchBlock<T>(problem.k, head, next, D, ahead);
    FetchBlock<T>(problem.v, head, next, E, ahead);
    if (next.begin >= problem.M) FetchNextHead<T>(problem, blocks.next, ahead);
    ahead.Spread(PausesOf(count, StorageExtent<T>(E), D) + PausesOf(count, StorageExtent<T>(D), E));
    Multiply<Left::kStraight>(
        blocks.e, dkv_transposed, count, StorageExtent<T>(E), ChunksOf(D),
        StoreInRows<T, Payload::kUpper>{RowsOf<T>(problem.dk, head, first), D, ahead});
    Multiply<Left::kStraight>(
        blocks.d, dkv, count, StorageExtent<T>(D), ChunksOf(E),
        StoreInRows<T, Payload::kUpper>{RowsOf<T>(problem.dv, head, first), E, ahead});
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::flao
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_FLAO_BACKWARD_INL_H_
