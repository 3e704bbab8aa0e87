// Shared by both passes: rows of tensors, the features of encoded rows, and blocks of tokens.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BLOCK_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BLOCK_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/prefetch.h"
#include "src/ops/linear_attention/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
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

template <typename T>
HWY_INLINE Rows<const T> RowsOf(const Input& tensor, Head head, std::int64_t first) {
  if (tensor.data == nullptr) return {};
  return {RowAt<T>(tensor, head.batch, head.head, first), tensor.token};
}
template <typename T>
HWY_INLINE Rows<T> RowsOf(const Output& tensor, Head head, std::int64_t first) {
  if (tensor.data == nullptr) return {};
  return {RowAt<T>(tensor, head.batch, head.head, first), tensor.token};
}

// The width of a block of encoded rows, whose parts are padded to whole chunks one by one.
HWY_INLINE std::int64_t InnerWidth(const Problem& problem) {
  return problem.inner_parts * Padded(problem.inner_part);
}
// The same without the padding of the last part.
template <typename T>
HWY_INLINE std::int64_t InnerExtent(const Problem& problem) {
  return (problem.inner_parts - 1) * Padded(problem.inner_part) +
         StorageExtent<T>(problem.inner_part);
}
// Calls f(rows, first) for each part of the inner features: its rows of a matrix such as KV, and
// its first feature.
template <class F>
HWY_INLINE void ForEachInnerPart(const Problem& problem, const Panels& matrix, const F& f) {
  const std::int64_t size = Padded(problem.inner_part) * static_cast<std::int64_t>(ChunkSize());
  for (int p = 0; p < problem.inner_parts; ++p) {
    f(Panels{matrix.data + p * size, matrix.panel}, p * problem.inner_part);
  }
}

// Calls f(first, count) for each block of the range's tokens; an empty range has one empty block,
// so that sums over it are set to 0.
template <class F>
HWY_INLINE void ForEachBlock(const Range& range, const F& f) {
  std::int64_t first = range.begin;
  do {
    f(first, std::min(kBlockTokens, range.end - first));
    first += kBlockTokens;
  } while (first < range.end);
}

// The block that the worker takes after the one at `first`: within the range or, if the worker goes
// on behind it, within the sequence of `tokens`.
HWY_INLINE Range NextBlock(const Range& range, std::int64_t tokens, std::int64_t first,
                           const Blocks& blocks) {
  const std::int64_t next = first + kBlockTokens;
  const std::int64_t end = blocks.goes_on ? tokens : range.end;
  return {next, std::clamp<std::int64_t>(end, next, next + kBlockTokens)};
}
// The first block of a sequence.
HWY_INLINE Range FirstBlock(std::int64_t tokens) { return {0, std::min(tokens, kBlockTokens)}; }

// Prefetches a block that will be read or written, if the call has that tensor.
template <typename T, class Tensor>
void PrefetchBlock(const Tensor& tensor, Head head, Range block, std::int64_t columns,
                   Prefetcher& prefetcher) {
  if (tensor.data == nullptr) return;
  constexpr std::int64_t kSize = sizeof(T);
  const auto rows = RowsOf<T>(tensor, head, block.begin);
  prefetcher.Add(rows.data, rows.stride * kSize, columns * kSize, block.end - block.begin);
}

// Prefetches the blocks that the worker's next head begins with.
template <typename T>
void PrefetchNextHead(const Problem& problem, Head next, Prefetcher& prefetcher) {
  if (next.batch < 0) return;
  if (problem.kept_kv.data == nullptr) {
    PrefetchBlock<T>(problem.k.x, next, FirstBlock(problem.M), problem.D, prefetcher);
    PrefetchBlock<T>(problem.v.x, next, FirstBlock(problem.M), problem.E, prefetcher);
  } else {
    PrefetchBlock<T>(problem.q.x, next, FirstBlock(problem.N), problem.D, prefetcher);
    PrefetchBlock<T>(problem.g.x, next, FirstBlock(problem.N), problem.E, prefetcher);
    PrefetchBlock<T>(problem.d_out, next, FirstBlock(problem.N), problem.E, prefetcher);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_BLOCK_INL_H_
