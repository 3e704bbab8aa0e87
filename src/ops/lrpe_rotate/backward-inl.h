// dx = f'(x)ᵀ · rotate⁻¹(d_out).

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/lrpe_rotate/rotate-inl.h"
#include "src/simd/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

// p·(dy − mean)
HWY_INLINE Chunk SoftmaxBackward(const Chunk& p, const Chunk& dy, const Chunk& mean) {
  return {hn::Mul(p.v0, hn::Sub(dy.v0, mean.v0)), hn::Mul(p.v1, hn::Sub(dy.v1, mean.v1))};
}

template <typename T, class Act, Store kStore>
void BackwardElements(const Problem& problem, const Region& region, const AngleTable& table,
                      float* /*row*/, const Columns& /*columns*/) {
  const std::size_t half = problem.D / 2;
  ForEachRow(problem, region, table,
             [&](std::int64_t b, std::int64_t t, std::int64_t h, const RowAngles& angles) HWY_ATTR {
               const T* x = Act::kUsesX ? RowOf<const T>(problem.x, b, t, h) : nullptr;
               const T* d_out = RowOf<const T>(problem.d_out, b, t, h);
               T* dx = RowOf<T>(problem.out, b, t, h);
               RotateRow<Pass::kBackward, T>(
                   angles,
                   [&](std::size_t k, std::size_t j, std::size_t n)
                       HWY_ATTR { return LoadChunkN(d_out + k * half + j, n); },
                   [&](std::size_t k, std::size_t j, std::size_t n, const Chunk& dy) HWY_ATTR {
                     Chunk result = dy;
                     if constexpr (Act::kUsesX) {
                       result = ActivateBackward<Act>(LoadChunkN(x + k * half + j, n), dy);
                     }
                     StoreElements<T, kStore>(result, dx + k * half + j, n);
                   });
             });
}

template <typename T, Store kStore>
void BackwardFeatures(const Problem& problem, const Region& region, const AngleTable& table,
                      float* row, const Columns& /*columns*/) {
  const DF d;
  const std::size_t half = problem.D / 2;
  const std::size_t width = table.width;
  const std::size_t chunk = ChunkSize();
  float* dy_row = row + 2 * width;
  ForEachRow(problem, region, table,
             [&](std::int64_t b, std::int64_t t, std::int64_t h, const RowAngles& angles) HWY_ATTR {
               const T* d_out = RowOf<const T>(problem.d_out, b, t, h);
               T* dx = RowOf<T>(problem.out, b, t, h);
               const float sum = ExpOfRow(RowOf<const T>(problem.x, b, t, h), half, 2, width, row);
               Chunk dot = SetChunk(0.0f);
               RotateRow<Pass::kBackward, T>(
                   angles,
                   [&](std::size_t k, std::size_t j, std::size_t n)
                       HWY_ATTR { return LoadChunkN(d_out + k * half + j, n); },
                   [&](std::size_t k, std::size_t j, std::size_t, const Chunk& dy) HWY_ATTR {
                     // The padding of exp is 0, so that of dy does not count.
                     dot = MulAddChunk(LoadChunk(row + k * width + j), dy, dot);
                     StoreChunk(dy, dy_row + k * width + j);
                   });
               const float inverse = 1.0f / sum;
               const Chunk scale = SetChunk(inverse);
               const Chunk mean =
                   SetChunk(hn::GetLane(hn::SumOfLanes(d, hn::Add(dot.v0, dot.v1))) * inverse);
               for (std::size_t k = 0; k < 2; ++k) {
                 for (std::size_t j = 0; j < half; j += chunk) {
                   const Chunk p = MulChunk(LoadChunk(row + k * width + j), scale);
                   const Chunk dy = LoadChunk(dy_row + k * width + j);
                   StoreElements<T, kStore>(SoftmaxBackward(p, dy, mean), dx + k * half + j,
                                            std::min(chunk, half - j));
                 }
               }
             });
}

template <typename T, Store kStore>
void BackwardSequence(const Problem& problem, const Region& region, const AngleTable& table,
                      float* /*row*/, const Columns& columns) {
  const std::size_t half = problem.D / 2;
  const std::size_t width = table.width;
  ForEachRow(problem, region, table,
             [&](std::int64_t b, std::int64_t t, std::int64_t h, const RowAngles& angles) HWY_ATTR {
               const T* x = RowOf<const T>(problem.x, b, t, h);
               const T* d_out = RowOf<const T>(problem.d_out, b, t, h);
               T* dx = RowOf<T>(problem.out, b, t, h);
               const float* shift = columns.At(b, h);
               const float* scale = shift + 2 * width;
               const float* mean = scale + 2 * width;
               RotateRow<Pass::kBackward, T>(
                   angles,
                   [&](std::size_t k, std::size_t j, std::size_t n)
                       HWY_ATTR { return LoadChunkN(d_out + k * half + j, n); },
                   [&](std::size_t k, std::size_t j, std::size_t n, const Chunk& dy) HWY_ATTR {
                     const std::size_t at = k * width + j;
                     const Chunk e =
                         ExpDifference(LoadChunkN(x + k * half + j, n), LoadChunk(shift + at));
                     const Chunk p = MulChunk(e, LoadChunk(scale + at));
                     StoreElements<T, kStore>(SoftmaxBackward(p, dy, LoadChunk(mean + at)),
                                              dx + k * half + j, n);
                   });
             });
}

template <typename T>
void AddColumnsBackward(const Problem& problem, const Region& region, const AngleTable& table,
                        const Columns& columns) {
  const std::size_t half = problem.D / 2;
  const std::size_t width = table.width;
  const std::size_t chunk = ChunkSize();
  const auto rotated = static_cast<std::size_t>(problem.rotated);
  for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
    for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
      float* stats = columns.At(b, h);
      for (std::size_t j = 0; j < half; j += chunk) {
        const std::size_t n = std::min(chunk, half - j);
        const std::size_t turned = std::min(n, std::max(rotated, j) - j);
        ColumnSums<3> lo;
        ColumnSums<3> hi;
        const auto add_tokens = [&]() HWY_ATTR {
          for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
            const T* x = RowOf<const T>(problem.x, b, t, h) + j;
            const T* d_out = RowOf<const T>(problem.d_out, b, t, h) + j;
            const float* cos = table.Cos(t - region.token_begin, h - region.head_begin) + j;
            Chunk dy_lo = LoadChunkN(d_out, n);
            Chunk dy_hi = LoadChunkN(d_out + half, n);
            if (HWY_LIKELY(turned == chunk)) {
              RotateChunk<Pass::kBackward>(dy_lo, dy_hi, cos, cos + width);
            } else {
              RotateChunkN<Pass::kBackward, T>(dy_lo, dy_hi, cos, cos + width, turned);
            }
            lo.Add(LoadChunkN(x, n), dy_lo);
            hi.Add(LoadChunkN(x + half, n), dy_hi);
          }
        };
        lo.Start(LoadChunk(stats + j));
        hi.Start(LoadChunk(stats + width + j));
        add_tokens();
        if (HWY_UNLIKELY(lo.ExceedsShift() || hi.ExceedsShift())) {
          lo.Start(lo.max);
          hi.Start(hi.max);
          add_tokens();
        }
        lo.Finish(stats + j, 2 * width);
        hi.Finish(stats + width + j, 2 * width);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
