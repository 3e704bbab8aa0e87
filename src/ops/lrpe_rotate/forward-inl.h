// out = rotate(f(x)).

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/lrpe_rotate/rotate-inl.h"
#include "src/simd/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

// Element-wise activations.
template <typename T, class Act, Store kStore>
void ForwardElements(const Problem& problem, const Region& region, const AngleTable& table,
                     float* /*row*/, const Columns& /*columns*/) {
  const std::size_t half = problem.D / 2;
  ForEachRow(problem, region, table,
             [&](std::int64_t b, std::int64_t t, std::int64_t h, const RowAngles& angles) HWY_ATTR {
               const T* x = RowOf<const T>(problem.x, b, t, h);
               T* out = RowOf<T>(problem.out, b, t, h);
               RotateRow<Pass::kForward, T>(
                   angles,
                   [&](std::size_t k, std::size_t j, std::size_t n)
                       HWY_ATTR { return Activate<Act>(LoadChunkN(x + k * half + j, n)); },
                   [&](std::size_t k, std::size_t j, std::size_t n, const Chunk& y)
                       HWY_ATTR { StoreElements<T, kStore>(y, out + k * half + j, n); });
             });
}

// Softmax over the features: exp of the row in scratch, then scaled and turned.
template <typename T, Store kStore>
void ForwardFeatures(const Problem& problem, const Region& region, const AngleTable& table,
                     float* row, const Columns& /*columns*/) {
  const std::size_t half = problem.D / 2;
  const std::size_t width = table.width;
  ForEachRow(problem, region, table,
             [&](std::int64_t b, std::int64_t t, std::int64_t h, const RowAngles& angles) HWY_ATTR {
               T* out = RowOf<T>(problem.out, b, t, h);
               const float sum = ExpOfRow(RowOf<const T>(problem.x, b, t, h), half, 2, width, row);
               const Chunk scale = SetChunk(1.0f / sum);
               RotateRow<Pass::kForward, T>(
                   angles,
                   [&](std::size_t k, std::size_t j, std::size_t)
                       HWY_ATTR { return MulChunk(LoadChunk(row + k * width + j), scale); },
                   [&](std::size_t k, std::size_t j, std::size_t n, const Chunk& y)
                       HWY_ATTR { StoreElements<T, kStore>(y, out + k * half + j, n); });
             });
}

// Softmax over the sequence, from finished columns.
template <typename T, Store kStore>
void ForwardSequence(const Problem& problem, const Region& region, const AngleTable& table,
                     float* /*row*/, const Columns& columns) {
  const std::size_t half = problem.D / 2;
  const std::size_t width = table.width;
  ForEachRow(problem, region, table,
             [&](std::int64_t b, std::int64_t t, std::int64_t h, const RowAngles& angles) HWY_ATTR {
               const T* x = RowOf<const T>(problem.x, b, t, h);
               T* out = RowOf<T>(problem.out, b, t, h);
               const float* shift = columns.At(b, h);
               const float* scale = shift + 2 * width;
               RotateRow<Pass::kForward, T>(
                   angles,
                   [&](std::size_t k, std::size_t j, std::size_t n) HWY_ATTR {
                     const Chunk e = ExpDifference(LoadChunkN(x + k * half + j, n),
                                                   LoadChunk(shift + k * width + j));
                     return MulChunk(e, LoadChunk(scale + k * width + j));
                   },
                   [&](std::size_t k, std::size_t j, std::size_t n, const Chunk& y)
                       HWY_ATTR { StoreElements<T, kStore>(y, out + k * half + j, n); });
             });
}

// Adds the tokens of a region to the columns' sums.
template <typename T>
void AddColumnsForward(const Problem& problem, const Region& region, const AngleTable& table,
                       const Columns& columns) {
  const std::size_t half = problem.D / 2;
  const std::size_t width = table.width;
  const std::size_t chunk = ChunkSize();
  for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
    for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
      float* stats = columns.At(b, h);
      for (std::size_t k = 0; k < 2; ++k) {
        for (std::size_t j = 0; j < half; j += chunk) {
          const std::size_t n = std::min(chunk, half - j);
          ColumnSums<2> sums;
          const auto add_tokens = [&]() HWY_ATTR {
            for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
              sums.Add(LoadChunkN(RowOf<const T>(problem.x, b, t, h) + k * half + j, n));
            }
          };
          sums.Start(LoadChunk(stats + k * width + j));
          add_tokens();
          if (HWY_UNLIKELY(sums.ExceedsShift())) {
            sums.Start(sums.max);
            add_tokens();
          }
          sums.Finish(stats + k * width + j, 2 * width);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
