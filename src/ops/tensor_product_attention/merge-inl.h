// Merging the partial results of two ranges of tokens, and writing the final one.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_MERGE_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_MERGE_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_MERGE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "src/ops/tensor_product_attention/block-inl.h"
#include "src/rowops/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// exp(from − to), 1 where they are equal.
HWY_INLINE VF Rescaling(float from, float to) {
  const DF d;
  return ExpNoOverflow<Accuracy::kFloat32>(Pack<1>{{hn::Set(d, from - to)}}).v[0];
}

template <typename T>
void Merge(std::int64_t columns, std::int64_t heads, Range rows, const Partial& from,
           const Partial& to) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(row))) >= heads) continue;
    const float max = std::max(from.max[row], to.max[row]);
    const VF from_factor = Rescaling(from.max[row], max);
    const VF to_factor = Rescaling(to.max[row], max);
    to.max[row] = max;
    to.sum[row] = from.sum[row] * hn::GetLane(from_factor) + to.sum[row] * hn::GetLane(to_factor);
    for (std::int64_t chunk = 0; chunk < ChunksOf(columns); ++chunk) {
      float* at = RowOf(to.out, chunk, row);
      StoreChunk(MulAdd(LoadChunk(at), Fill<2>(to_factor),
                        Mul(LoadChunk(RowOf(from.out, chunk, row)), Fill<2>(from_factor))),
                 at);
    }
  }
}

inline void Copy(std::int64_t columns, Range rows, const Partial& from, const Partial& to) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  std::copy(from.max + rows.begin, from.max + rows.end, to.max + rows.begin);
  std::copy(from.sum + rows.begin, from.sum + rows.end, to.sum + rows.begin);
  for (std::int64_t chunk = 0; chunk < ChunksOf(columns); ++chunk) {
    std::copy_n(RowOf(from.out, chunk, rows.begin), rows.size() * size,
                RowOf(to.out, chunk, rows.begin));
  }
}

template <typename T>
void Finish(const Problem& problem, std::int64_t batch, Range heads, Range rows,
            const Partial& from) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const auto h = static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(row)));
    if (h >= heads.size()) continue;
    T* to = RowAt<T>(problem.out, batch, heads.begin + h, 0);
    const Chunk factor = Fill<2>(problem.value_scale / from.sum[row]);
    ForEachChunk(problem.E,
                 [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                   StoreChunkN(Mul(LoadChunk(RowOf(from.out, chunk, row)), factor), to + column, n);
                 });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_MERGE_INL_H_
