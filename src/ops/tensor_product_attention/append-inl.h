// Writing tokens to a cache: rotation of bk, and rounding to int8.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_APPEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_APPEND_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_APPEND_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_APPEND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "src/core/dtype_switch.h"
#include "src/ops/tensor_product_attention/factors-inl.h"
#include "src/positions/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// A row as float32 in natural order, rotated in halves by the angles of a token if there are any.
template <typename T>
HWY_INLINE void LoadNatural(const T* from, std::int64_t columns, const float* cos,
                            std::int64_t width, float* to) {
  if (cos == nullptr) {
    ForEachChunk(columns,
                 [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                   StoreFloatsFrom<T>(LoadChunkN(from + column, n), to + column, n);
                 });
    return;
  }
  const std::int64_t half = columns / 2;
  const TableAngles angles{cos, static_cast<std::size_t>(width)};
  ForEachChunk(half, [&](std::int64_t j, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
    const Strip<2, 1> row = Join(LoadChunkN(from + j, n), LoadChunkN(from + half + j, n));
    const Strip<2, 1> turned =
        RotateRows::Encode<1>(row, angles.At<1>(static_cast<std::size_t>(j)));
    StoreFloatsFrom<T>(FirstHalf(turned), to + j, n);
    StoreFloatsFrom<T>(SecondHalf(turned), to + half + j, n);
  });
}

// The largest magnitude of n numbers; NaN or infinite if one of them is.
HWY_INLINE float LargestMagnitude(const float* row, std::int64_t n) {
  const DF d;
  Chunk most = Fill<2>(0.0f), check = Fill<2>(0.0f);
  ForEachChunk(n, [&](std::int64_t i, std::size_t count, std::int64_t) ATTNOPS_INLINE_LAMBDA {
    const Chunk x = Abs(LoadChunkN(row + i, count));
    most = Max(x, most);
    check = MulAdd(x, Fill<2>(0.0f), check);
  });
  const float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(most.v[0], most.v[1])));
  return largest + hn::GetLane(hn::SumOfLanes(d, hn::Add(check.v[0], check.v[1])));
}

// Rounds n numbers to multiples of the scale that is returned.
HWY_INLINE float StoreInt8(const float* row, std::int64_t n, std::int8_t* to) {
  const DI di;
  const hn::Rebind<std::int8_t, DI> d8;
  const float scale = LargestMagnitude(row, n) / 127.0f;
  if (!std::isfinite(scale) || scale < 0x1p-126f) {
    // All zero, or a row that only a NaN can stand for: the scale is one.
    std::fill_n(to, n, std::int8_t{1});
    return scale < 0x1p-126f ? 0.0f : std::nanf("");
  }
  const Chunk inverse = Fill<2>(1 / scale);
  ForEachChunk(n, [&](std::int64_t i, std::size_t count, std::int64_t) ATTNOPS_INLINE_LAMBDA {
    const Chunk steps = Mul(LoadChunkN(row + i, count), inverse);
    alignas(64) std::int8_t bytes[kMaxChunk];
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(steps.v[0])), d8, bytes);
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(steps.v[1])), d8, bytes + hn::Lanes(di));
    std::memcpy(to + i, bytes, count);
  });
  return scale;
}

// Writes one row of a token: `rows` parts of `columns` numbers, `stride` elements apart, which are
// contiguous in the cache.
template <typename T>
HWY_INLINE void WriteRow(const T* from, std::int64_t stride, std::int64_t rows,
                         std::int64_t columns, const float* cos, std::int64_t width,
                         const AppendTarget& to, float* buffer) {
  if (to.scale == nullptr && cos == nullptr) {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(static_cast<T*>(to.data) + r * columns, from + r * stride,
                  static_cast<std::size_t>(columns) * sizeof(T));
    }
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    LoadNatural(from + r * stride, columns, cos, width, buffer + r * columns);
  }
  if (to.scale != nullptr) {
    *to.scale = StoreInt8(buffer, rows * columns, static_cast<std::int8_t*>(to.data));
    return;
  }
  T* data = static_cast<T*>(to.data);
  ForEachChunk(rows * columns,
               [&](std::int64_t i, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                 StoreChunkN(LoadFloatsAs<T>(buffer + i, n), data + i, n);
               });
}

inline void AppendRow(DType dtype, const void* from, std::int64_t stride, std::int64_t rows,
                      std::int64_t columns, const float* cos, std::int64_t width,
                      const AppendTarget& to, float* buffer) {
  WithType(dtype, [&](auto tag) HWY_ATTR {
    using T = typename decltype(tag)::Type;
    WriteRow(static_cast<const T*>(from), stride, rows, columns, cos, width, to, buffer);
  });
}

inline AppendKernel AppendKernelOfTarget() { return AppendRow; }

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_APPEND_INL_H_
