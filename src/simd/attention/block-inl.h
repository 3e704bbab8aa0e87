// What both passes share: rows of tensors, blocks of tokens, and what becomes of sums.

#if defined(ATTNOPS_SRC_SIMD_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ATTENTION_BLOCK_INL_H_
#undef ATTNOPS_SRC_SIMD_ATTENTION_BLOCK_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ATTENTION_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/simd/attention/attention.h"
#include "src/simd/fetch_ahead.h"
#include "src/simd/matmul-inl.h"
#include "src/simd/panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// The type of a kept qkv.
template <typename T>
struct KeptOf {
  using Type = T;
};
template <>
struct KeptOf<Float16> {
  using Type = float;  // a product of sums may be beyond 65504
};
template <typename T>
using Kept = typename KeptOf<T>::Type;

// Consecutive rows of a head.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;

  HWY_INLINE T* operator[](std::int64_t row) const { return data + row * stride; }
  HWY_INLINE Rows From(std::int64_t row) const { return {(*this)[row], stride}; }
};
template <typename T>
HWY_INLINE Rows<const T> RowsOf(const Input& tensor, Head head, std::int64_t first) {
  const T* data = static_cast<const T*>(tensor.data);
  if (data == nullptr) return {};
  return {data + head.batch * tensor.batch + head.head * tensor.head + first * tensor.row,
          tensor.row};
}
template <typename T>
HWY_INLINE Rows<T> RowsOf(const Output& tensor, Head head, std::int64_t first) {
  const Rows<const T> rows =
      RowsOf<T>(Input{tensor.data, tensor.batch, tensor.head, tensor.row}, head, first);
  return {const_cast<T*>(rows.data), rows.stride};
}

// The inner features of a problem, in blocks: their parts are padded to whole chunks.
HWY_INLINE std::int64_t InnerWidth(const Problem& problem) {
  return problem.inner_parts * Padded(problem.inner_part);
}
// How far they reach, without the padding of the last part.
template <typename T>
HWY_INLINE std::int64_t InnerExtent(const Problem& problem) {
  return (problem.inner_parts - 1) * Padded(problem.inner_part) +
         StorageExtent<T>(problem.inner_part);
}
// f(rows, first) for each part: where its rows are in a matrix of inner rows, and its first
// feature.
template <class F>
HWY_INLINE void ForEachInnerPart(const Problem& problem, const Panels& matrix, const F& f) {
  const std::int64_t size = Padded(problem.inner_part) * static_cast<std::int64_t>(ChunkSize());
  for (int p = 0; p < problem.inner_parts; ++p) {
    f(Panels{matrix.data + p * size, matrix.panel}, p * problem.inner_part);
  }
}

// f(first, count) for blocks of the range's tokens; an empty range has one empty block, so that
// sums over it are set to 0.
template <class F>
HWY_INLINE void ForEachBlock(const Range& range, const F& f) {
  std::int64_t first = range.begin;
  do {
    f(first, std::min(kBlock, range.end - first));
    first += kBlock;
  } while (first < range.end);
}

// The block after the one at `first` that the worker takes: of the range or, if it goes on behind
// that, of the sequence of `tokens`.
HWY_INLINE Range NextBlock(const Range& range, std::int64_t tokens, std::int64_t first,
                           const Blocks& blocks) {
  const std::int64_t next = first + kBlock;
  const std::int64_t end = blocks.goes_on ? tokens : range.end;
  return {next, std::clamp<std::int64_t>(end, next, next + kBlock)};
}
// The first block of a sequence.
HWY_INLINE Range FirstBlock(std::int64_t tokens) { return {0, std::min(tokens, kBlock)}; }

// A block of a tensor that will be read or written, if it is there.
template <typename T, class Tensor>
void FetchBlock(const Tensor& tensor, Head head, Range block, std::int64_t columns,
                FetchAhead& ahead) {
  if (tensor.data == nullptr) return;
  constexpr std::int64_t kSize = sizeof(T);
  const auto rows = RowsOf<T>(tensor, head, block.begin);
  ahead.Add(rows.data, rows.stride * kSize, columns * kSize, block.end - block.begin);
}

// What a pass reads first of the worker's next head.
template <typename T>
void FetchNextHead(const Problem& problem, Head next, FetchAhead& ahead) {
  if (next.batch < 0) return;
  if (problem.kept_kv.data == nullptr) {
    FetchBlock<T>(problem.k.x, next, FirstBlock(problem.M), problem.D, ahead);
    FetchBlock<T>(problem.v.x, next, FirstBlock(problem.M), problem.E, ahead);
  } else {
    FetchBlock<T>(problem.q.x, next, FirstBlock(problem.N), problem.D, ahead);
    FetchBlock<T>(problem.g.x, next, FirstBlock(problem.N), problem.E, ahead);
    FetchBlock<T>(problem.d_out, next, FirstBlock(problem.N), problem.E, ahead);
  }
}

// Elements of a chunk in a row of so many columns.
HWY_INLINE std::size_t ChunkCount(std::int64_t columns, std::int64_t chunk) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  return static_cast<std::size_t>(std::min(size, columns - chunk * size));
}
template <typename T>
HWY_INLINE T* ChunkOf(T* row, std::int64_t chunk) {
  return row + chunk * static_cast<std::int64_t>(ChunkSize());
}

// What is done with sums: stored in rows of a tensor.
template <typename T, Payload kPayload>
struct StoreInRows {
  Rows<T> to;
  std::int64_t columns;
  FetchAhead& ahead;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return ChunkCount(columns, chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    StoreChunkN<kPayload>(sums, ChunkOf(to[row], chunk), n);
  }
};

// A factor of sums: rows of a tensor, or of a block.
template <typename T>
struct RowsFactor {
  Rows<const T> rows;

  HWY_INLINE Chunk operator()(std::int64_t row, std::int64_t chunk, std::size_t n) const {
    return LoadChunkN(ChunkOf(rows[row], chunk), n);
  }
};
struct BlockFactor {
  Panels block;

  HWY_INLINE Chunk operator()(std::int64_t row, std::int64_t chunk, std::size_t /*n*/) const {
    return LoadChunk(block.data + chunk * block.panel +
                     row * static_cast<std::int64_t>(ChunkSize()));
  }
};

// Sums multiplied by a factor, stored, and stored as they are if they are kept.
template <typename T, class Factor, Payload kPayload>
struct StoreProduct {
  Factor factor;
  Rows<T> to;
  Rows<Kept<T>> kept;
  std::int64_t columns;
  FetchAhead& ahead;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return ChunkCount(columns, chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    StoreChunkN<kPayload>(Mul(factor(row, chunk, n), sums), ChunkOf(to[row], chunk), n);
    if (kept.data != nullptr) {
      Kept<T>* at = ChunkOf(kept[row], chunk);
      if constexpr (std::is_same_v<Kept<T>, T>) {
        StoreChunkN<kPayload>(sums, at, n);
      } else {
        StoreFloatsFrom<T>(sums, at, n);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ATTENTION_BLOCK_INL_H_
