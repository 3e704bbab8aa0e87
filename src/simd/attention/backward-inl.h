// dḠ = dO ⊙ QKV, dQ̄ = dQKV·KVᵀ and dKV = Q̄ᵀ·dQKV, with dQKV = dO ⊙ Ḡ, in one pass over q, g and
// dO; then dK̄ = V̄·dKVᵀ and dV̄ = K̄·dKV in one over k and v. The gradients go back through the
// stages.

#if defined(ATTNOPS_SRC_SIMD_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ATTENTION_BACKWARD_INL_H_
#undef ATTNOPS_SRC_SIMD_ATTENTION_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ATTENTION_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/simd/attention/stages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
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

// The same where g has a stage and is in the block `gate`; dḠ is for the block `dg`.
template <typename T, bool kKept>
HWY_INLINE void LoadStagedGradient(const Rows<const T>& d_out, const Panels& gate,
                                   const Rows<const Kept<T>>& qkv, std::int64_t count,
                                   std::int64_t columns, const Panels& d_qkv, const Panels& dg) {
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 for (std::int64_t row = 0; row < count; ++row) {
                   const std::int64_t at = row * static_cast<std::int64_t>(ChunkSize());
                   const Chunk gradient = LoadChunkN(d_out[row] + column, n);
                   StoreChunk(Mul(gradient, LoadChunk(gate.data + chunk * gate.panel + at)),
                              d_qkv.data + chunk * d_qkv.panel + at);
                   if constexpr (kKept) {
                     StoreChunk(Mul(gradient, LoadKept<T>(qkv[row] + column, n)),
                                dg.data + chunk * dg.panel + at);
                   }
                 }
               });
}

// left·right with the gradient of an operand's rows as its result, which go back through the
// operand's stage.
template <typename T>
HWY_INLINE void MultiplyToGradient(const Problem& problem, const Operand& operand, Goal goal,
                                   Head head, std::int64_t first, std::int64_t count,
                                   const Blocks& blocks, const Panels& left, const Panels& right,
                                   std::int64_t depth, std::int64_t columns, FetchAhead& ahead) {
  if (operand.stage.IsDirect()) {
    if (goal == Goal::kMeans) return;
    Multiply<Left::kStraight>(
        left, right, count, depth, ChunksOf(columns),
        StoreInRows<T, Payload::kAny>{RowsOf<T>(operand.dx, head, first), columns, ahead});
  } else if (goal == Goal::kGradients || operand.stage.SumsColumns()) {
    Multiply<Left::kStraight>(left, right, count, depth, ChunksOf(columns),
                              AddToMatrix{blocks.gradient, false, ahead});
    StoreOperandGradient<T>(problem, operand, goal, head, first, count, blocks, blocks.gradient);
  }
}

template <typename T, bool kKept>
void BackwardQueryRange(const Problem& problem, Goal goal, Head head, Range range,
                        const Blocks& blocks, const Panels& kv, const Panels& kv_transposed,
                        const Panels& dkv) {
  const std::int64_t D = problem.D, E = problem.E;
  const std::int64_t inner = InnerExtent<T>(problem);
  const std::int64_t q_columns = problem.q.stage.IsDirect() ? D : InnerWidth(problem);
  const bool direct_gate = problem.g.stage.IsDirect();
  const bool gradients = goal == Goal::kGradients;
  const bool needs_g = gradients || problem.g.stage.SumsColumns();
  ForEachBlock(range, [&](std::int64_t first, std::int64_t count) ATTNOPS_INLINE_LAMBDA {
    const Rows<const T> d_out = RowsOf<T>(problem.d_out, head, first);
    const Rows<const Kept<T>> qkv = RowsOf<Kept<T>>(problem.kept_qkv, head, first);
    const Rows<T> dg = RowsOf<T>(problem.g.dx, head, first);
    LoadOperand<T>(problem, problem.q, head, first, count, blocks, blocks.d);
    if (direct_gate) {
      LoadGradient<T, kKept>(d_out, RowsOf<T>(problem.g.x, head, first), qkv, dg, count, E,
                             blocks.e);
    } else {
      LoadOperand<T>(problem, problem.g, head, first, count, blocks, blocks.gate);
      LoadStagedGradient<T, kKept>(d_out, blocks.gate, qkv, count, E, blocks.e, blocks.gradient);
    }
    FetchAhead ahead;
    const Range next = NextBlock(range, first);
    FetchBlock<T>(problem.q.x, head, next, D, ahead);
    FetchBlock<T>(problem.g.x, head, next, E, ahead);
    FetchBlock<T>(problem.d_out, head, next, E, ahead);
    FetchBlock<Kept<T>>(problem.kept_qkv, head, next, E, ahead);
    FetchBlock<T>(problem.q.dx, head, next, D, ahead);
    FetchBlock<T>(problem.g.dx, head, next, E, ahead);
    if (next.begin >= problem.N) {
      const Range block = FirstBlock(problem.M);
      FetchBlock<T>(problem.k.x, head, block, D, ahead);
      FetchBlock<T>(problem.v.x, head, block, E, ahead);
      FetchBlock<T>(problem.k.dx, head, block, D, ahead);
      FetchBlock<T>(problem.v.dx, head, block, E, ahead);
    }
    ahead.Spread(PausesOf(count, StorageExtent<T>(E), InnerWidth(problem)) +
                 (gradients ? PausesOf(inner, count, E) : 0) +
                 (kKept ? 0 : PausesOf(count, inner, E)));
    if (needs_g) {
      if constexpr (!kKept) {
        if (direct_gate) {
          Multiply<Left::kStraight>(
              blocks.d, kv, count, inner, ChunksOf(E),
              StoreProduct<T, RowsFactor<T>, Payload::kAny>{{d_out}, dg, {}, E, ahead});
        } else {
          Multiply<Left::kStraight>(blocks.d, kv, count, inner, ChunksOf(E),
                                    ProductInBlock<T>{{d_out}, blocks.gradient, E, ahead});
        }
      }
      if (!direct_gate) {
        StoreOperandGradient<T>(problem, problem.g, goal, head, first, count, blocks,
                                blocks.gradient);
      }
    }
    MultiplyToGradient<T>(problem, problem.q, goal, head, first, count, blocks, blocks.e,
                          kv_transposed, StorageExtent<T>(E), q_columns, ahead);
    if (gradients) {
      Multiply<Left::kTransposed>(blocks.d, blocks.e, inner, count, ChunksOf(E),
                                  AddToMatrix{dkv, first != range.begin, ahead});
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
    LoadOperand<T>(problem, problem.k, head, first, count, blocks, blocks.d);
    LoadOperand<T>(problem, problem.v, head, first, count, blocks, blocks.e);
    FetchAhead ahead;
    const Range next = NextBlock(range, first);
    FetchBlock<T>(problem.k.x, head, next, D, ahead);
    FetchBlock<T>(problem.v.x, head, next, E, ahead);
    FetchBlock<T>(problem.k.dx, head, next, D, ahead);
    FetchBlock<T>(problem.v.dx, head, next, E, ahead);
    if (next.begin >= problem.M) FetchNextHead<T>(problem, blocks.next, ahead);
    ahead.Spread(PausesOf(count, StorageExtent<T>(E), InnerWidth(problem)) +
                 PausesOf(count, inner, E));
    const std::int64_t k_columns = problem.k.stage.IsDirect() ? D : InnerWidth(problem);
    MultiplyToGradient<T>(problem, problem.k, goal, head, first, count, blocks, blocks.e,
                          dkv_transposed, StorageExtent<T>(E), k_columns, ahead);
    MultiplyToGradient<T>(problem, problem.v, goal, head, first, count, blocks, blocks.d, dkv,
                          inner, E, ahead);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ATTENTION_BACKWARD_INL_H_
