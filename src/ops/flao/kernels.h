// What the schedule of flao asks of its kernels.
#ifndef ATTNOPS_SRC_OPS_FLAO_KERNELS_H_
#define ATTNOPS_SRC_OPS_FLAO_KERNELS_H_

#include <cstdint>

#include "src/simd/panels.h"

namespace attnops::flao {

// Tokens that are converted to float32 at a time. Sums over tokens are in registers for a whole
// block, so adding them to KV costs little; the two converted blocks and KV stay in L2.
constexpr std::int64_t kBlock = 128;

// A (B,H,rows,features) tensor. Strides in elements; no data if the call has no such tensor.
template <typename Pointer>
struct Tensor {
  Pointer data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;
};
using Input = Tensor<const void*>;
using Output = Tensor<void*>;

struct Problem {
  std::int64_t B, H, N, M, D, E;
  Input q, k, v, g;
  // Forward
  Output out, kv, qkv;
  // Backward
  Input d_out, kept_kv, kept_qkv;
  Output dq, dk, dv, dg;
};

struct Head {
  std::int64_t batch, head;
};

// Tokens [begin, end) of a sequence.
struct Range {
  std::int64_t begin, end;
};

// A worker's converted blocks: kBlock rows of D features, and of E. With them the head that the
// worker probably takes next, to fetch its first rows; its batch is −1 if there is none.
struct Blocks {
  Panels d, e;
  Head next = {-1, -1};
};

// The kernels of a type. KV and dKV are (D,E) matrices whose rows and columns are in the type's
// storage order, padded to whole chunks; KVᵀ and dKVᵀ are (E,D).
struct Kernels {
  std::int64_t chunk;

  // Adds a range's Kᵀ·V to kv, or sets kv to it.
  void (*add_kv)(const Problem& problem, Head head, Range range, const Blocks& blocks,
                 const Panels& kv, bool add);
  // Makes a complete sum the operand of products: its padding becomes 0.
  void (*finish_kv)(const Problem& problem, const Panels& kv);
  // Writes a complete KV to problem.kv, and reads it from problem.kept_kv.
  void (*store_kv)(const Problem& problem, Head head, const Panels& kv);
  void (*load_kv)(const Problem& problem, Head head, const Panels& kv);
  // to = fromᵀ, for the padded matrices; from is (D,E).
  void (*transpose)(const Problem& problem, const Panels& from, const Panels& to);
  // Adds one panel of (D,E) matrix `from` to that of `to`.
  void (*add_panel)(const Problem& problem, const float* from, float* to);

  // out and, if it is kept, qkv for a range of N.
  void (*forward)(const Problem& problem, Head head, Range range, const Blocks& blocks,
                  const Panels& kv);
  // dq, dg and what a range of N adds to dkv. kv is used only if qkv was not kept.
  void (*backward_query)(const Problem& problem, Head head, Range range, const Blocks& blocks,
                         const Panels& kv, const Panels& kv_transposed, const Panels& dkv,
                         bool add);
  // dk and dv for a range of M.
  void (*backward_key)(const Problem& problem, Head head, Range range, const Blocks& blocks,
                       const Panels& dkv, const Panels& dkv_transposed);
};

// On the chosen SIMD target.
Kernels Float32Kernels();
Kernels Float16Kernels();
Kernels BFloat16Kernels();

}  // namespace attnops::flao

#endif  // ATTNOPS_SRC_OPS_FLAO_KERNELS_H_
