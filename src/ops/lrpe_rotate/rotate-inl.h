// What the forward and the backward share: turning the pairs of one row.

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "src/ops/lrpe_rotate/kernels.h"
#include "src/simd/io-inl.h"
#include "src/simd/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// Turns the pairs (lo, hi) by the angle, in the backward by its negative.
template <Pass kPass>
HWY_INLINE void Rotate(VF& lo, VF& hi, VF cos, VF sin) {
  const VF a = lo;
  const VF b = hi;
  if constexpr (kPass == Pass::kForward) {
    lo = hn::NegMulAdd(b, sin, hn::Mul(a, cos));
    hi = hn::MulAdd(b, cos, hn::Mul(a, sin));
  } else {
    lo = hn::MulAdd(b, sin, hn::Mul(a, cos));
    hi = hn::NegMulAdd(a, sin, hn::Mul(b, cos));
  }
}

template <Pass kPass>
HWY_INLINE void RotateChunk(Chunk& lo, Chunk& hi, const float* cos, const float* sin) {
  const Chunk c = LoadChunk(cos);
  const Chunk s = LoadChunk(sin);
  Rotate<kPass>(lo.v0, hi.v0, c.v0, s.v0);
  Rotate<kPass>(lo.v1, hi.v1, c.v1, s.v1);
}

// The same where only the first `rotated` pairs of the chunk turn.
template <Pass kPass, typename T>
HWY_INLINE void RotateChunkN(Chunk& lo, Chunk& hi, const float* cos, const float* sin,
                             std::size_t rotated) {
  const Chunk lo_passed = lo;
  const Chunk hi_passed = hi;
  RotateChunk<kPass>(lo, hi, cos, sin);
  const ChunkMask mask = FirstElements<T>(rotated);
  lo = Select(mask, lo, lo_passed);
  hi = Select(mask, hi, hi_passed);
}

// One row of the tensor: its pairs, how many of them turn, its cos and sin.
struct RowAngles {
  const float* cos;
  const float* sin;
  std::size_t pairs;
  std::size_t rotated;
};

// For each chunk j of pairs: source(half, j, n) gives the n elements of a half of
// the row from j on, sink(half, j, n, chunk) takes them turned.
template <Pass kPass, typename T, class Source, class Sink>
HWY_INLINE void RotateRow(const RowAngles& angles, const Source& source, const Sink& sink) {
  const std::size_t chunk = ChunkSize();
  const std::size_t full = angles.rotated - angles.rotated % chunk;
  for (std::size_t j = 0; j < full; j += chunk) {
    Chunk lo = source(0, j, chunk);
    Chunk hi = source(1, j, chunk);
    RotateChunk<kPass>(lo, hi, angles.cos + j, angles.sin + j);
    sink(0, j, chunk, lo);
    sink(1, j, chunk, hi);
  }
  for (std::size_t j = full; j < angles.pairs; j += chunk) {
    const std::size_t n = std::min(chunk, angles.pairs - j);
    Chunk lo = source(0, j, n);
    Chunk hi = source(1, j, n);
    RotateChunkN<kPass, T>(lo, hi, angles.cos + j, angles.sin + j,
                           std::min(n, std::max(angles.rotated, j) - j));
    sink(0, j, n, lo);
    sink(1, j, n, hi);
  }
}

// Calls row(batch, token, head, angles) for each row of a region, in memory order.
template <class Row>
HWY_INLINE void ForEachRow(const Problem& problem, const Region& region, const AngleTable& table,
                           const Row& row) {
  RowAngles angles;
  angles.pairs = static_cast<std::size_t>(problem.D / 2);
  angles.rotated = static_cast<std::size_t>(problem.rotated);
  for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
    for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
      for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
        angles.cos = table.Cos(t - region.token_begin, h - region.head_begin);
        angles.sin = angles.cos + table.width;
        row(b, t, h, angles);
      }
    }
  }
}

template <typename T, typename Pointer>
HWY_INLINE T* RowOf(const Tensor<Pointer>& tensor, std::int64_t b, std::int64_t t, std::int64_t h) {
  return static_cast<T*>(tensor.data) + b * tensor.batch + t * tensor.token + h * tensor.head;
}

template <typename T, Store kStore>
HWY_INLINE void StoreElements(const Chunk& chunk, T* to, std::size_t n) {
  if constexpr (kStore == Store::kStreamed) {
    StoreChunk<kStore>(chunk, to);
  } else {
    StoreChunkN(chunk, to, n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_ROTATE_INL_H_
