// Filling, transposing and storing matrices in panels.

#if defined(ATTNOPS_SRC_GEMM_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_PANELS_INL_H_
#undef ATTNOPS_SRC_GEMM_PANELS_INL_H_
#else
#define ATTNOPS_SRC_GEMM_PANELS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/core/numeric.h"
#include "src/gemm/panels.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// A chunk in T's storage order from up to a chunk of float32 in natural order, and back.
template <typename T>
HWY_INLINE Chunk LoadFloatsAs(const float* from, std::size_t n) {
  const Chunk natural = LoadChunkN(from, n);
#if !ATTNOPS_ONE_LANE
  if constexpr (IsInterleaved<T>::kValue) {
    const DF d;
    return {{hn::ConcatEven(d, natural.v[1], natural.v[0]),
             hn::ConcatOdd(d, natural.v[1], natural.v[0])}};
  }
#endif
  return natural;
}

template <typename T>
HWY_INLINE void StoreFloatsFrom(const Chunk& chunk, float* to, std::size_t n) {
#if !ATTNOPS_ONE_LANE
  if constexpr (IsInterleaved<T>::kValue) {
    const DF d;
    alignas(64) float pairs[2 * kMaxChunk];
    alignas(64) float natural[kMaxChunk];
    // Each 128 bits hold four elements in their order, by turns of the lower and the upper vector.
    hn::Store(hn::InterleaveLower(d, chunk.v[0], chunk.v[1]), d, pairs);
    hn::Store(hn::InterleaveUpper(d, chunk.v[0], chunk.v[1]), d, pairs + kMaxChunk);
    for (std::size_t i = 0; i < hn::Lanes(d); i += 4) {
      std::memcpy(natural + 2 * i, pairs + i, 4 * sizeof(float));
      std::memcpy(natural + 2 * i + 4, pairs + kMaxChunk + i, 4 * sizeof(float));
    }
    std::memcpy(to, natural, n * sizeof(float));
    return;
  }
#endif
  StoreChunkN(chunk, to, n);
}

// How far the first n elements of a row reach in T's storage order; beyond it is padding.
template <typename T>
HWY_INLINE std::int64_t StorageExtent(std::int64_t n) {
  if (n == 0) return 0;
  const auto last = static_cast<std::size_t>(n - 1);
  const std::size_t before = n > 1 ? StorageOffset<T>(last - 1) : 0;
  return static_cast<std::int64_t>(std::max(StorageOffset<T>(last), before)) + 1;
}

// Calls f(column, n, chunk) for each chunk of a row: its first column, how many elements it has,
// and its number.
template <class F>
HWY_INLINE void ForEachChunk(std::int64_t columns, const F& f) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  std::int64_t chunk = 0;
  for (std::int64_t column = 0; column < columns; column += size) {
    f(column, static_cast<std::size_t>(std::min(size, columns - column)), chunk++);
  }
}

// The rows of a chunk from `row` on, in a matrix whose columns are one or two parts of part_chunks
// chunks.
HWY_INLINE ChunkRows RowsOfChunk(const Panels& matrix, std::int64_t row, std::int64_t chunk,
                                 std::int64_t part_chunks) {
  float* at = matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
  return {{at, at + part_chunks * matrix.panel}};
}

// Converts `count` rows of a tensor, `stride` elements apart, to float32 panels padded with zeros.
// Panel by panel: consecutive stores, most of which go to L2, are then neighbours in memory.
template <typename T>
HWY_INLINE void LoadRows(const T* from, std::int64_t stride, std::int64_t count,
                         std::int64_t columns, const Panels& to) {
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                 float* at = to.data + chunk * to.panel;
                 for (std::int64_t row = 0; row < count; ++row, at += ChunkSize()) {
                   StoreChunk(LoadChunkN(from + row * stride + column, n), at);
                 }
               });
}

// Sets the padding of a (rows, columns) matrix to 0. Both axes are in T's storage order and padded
// to whole chunks.
template <typename T>
HWY_INLINE void ZeroPadding(std::int64_t rows, std::int64_t columns, const Panels& matrix) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t all_rows = RoundUp(rows, chunk);
  const std::int64_t all_columns = RoundUp(columns, chunk);
  for (std::int64_t i = rows; i < all_rows; ++i) {
    const auto row = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    for (std::int64_t at = 0; at < all_columns; at += chunk) {
      std::fill_n(matrix.data + at / chunk * matrix.panel + row * chunk, chunk, 0.0f);
    }
  }
  for (std::int64_t i = columns; i < all_columns; ++i) {
    const auto column = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    float* from = matrix.data + column / chunk * matrix.panel + column % chunk;
    for (std::int64_t row = 0; row < all_rows; ++row) from[row * chunk] = 0.0f;
  }
}

// A float32 tensor of (rows, columns) to and from a matrix with both axes in T's storage order.
template <typename T>
HWY_INLINE void StoreMatrix(const Panels& from, std::int64_t rows, std::int64_t columns, float* to,
                            std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto row = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    ForEachChunk(columns, [&](std::int64_t column, std::size_t n,
                              std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
      StoreFloatsFrom<T>(
          LoadChunk(from.data + chunk * from.panel + row * static_cast<std::int64_t>(ChunkSize())),
          to + i * stride + column, n);
    });
  }
}
template <typename T>
HWY_INLINE void LoadMatrix(const float* from, std::int64_t stride, std::int64_t rows,
                           std::int64_t columns, const Panels& to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto row = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    ForEachChunk(
        columns, [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
          StoreChunk(LoadFloatsAs<T>(from + i * stride + column, n),
                     to.data + chunk * to.panel + row * static_cast<std::int64_t>(ChunkSize()));
        });
  }
  ZeroPadding<T>(rows, columns, to);
}

// to = fromᵀ, where from is (rows, columns), both whole chunks.
HWY_INLINE void TransposePanels(const Panels& from, std::int64_t rows, std::int64_t columns,
                                const Panels& to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const auto at = [chunk](const Panels& matrix, std::int64_t row, std::int64_t column) {
    return matrix.data + column / chunk * matrix.panel + row * chunk + column % chunk;
  };
#if ATTNOPS_ONE_LANE
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) *at(to, j, i) = *at(from, i, j);
  }
#else
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    for (std::int64_t i = 0; i < rows; i += kLanes) {
      const float* corner = at(from, i, j);
      const Square square = MakeSquare([&](int n) ATTNOPS_INLINE_LAMBDA {
        return hn::BitCast(DU(), hn::Load(DF(), corner + n * chunk));
      });
      float* result = at(to, j, i);
      ForEachVector(TransposeSquare(square), [&](int n, VU vector) ATTNOPS_INLINE_LAMBDA {
        hn::Store(hn::BitCast(DF(), vector), DF(), result + n * chunk);
      });
    }
  }
#endif
}

// Converts `count` rows of a tensor, `stride` elements apart, to the columns of a float32 matrix.
// Its `columns` rows are in T's storage order. Both axes are padded with zeros to whole chunks.
template <typename T>
HWY_INLINE void LoadTransposed(const T* from, std::int64_t stride, std::int64_t count,
                               std::int64_t columns, const Panels& to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const DF d;
  for (std::int64_t first = 0; first < Padded(count); first += kLanes) {
    const std::int64_t rows = std::clamp<std::int64_t>(count - first, 0, kLanes);
    float* panel = to.data + first / chunk * to.panel + first % chunk;
    ForEachChunk(
        columns, [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
          const T* at = from + first * stride + column;
          float* result = panel + column * chunk;
          alignas(64) T padded[kLanes * kMaxChunk];
          std::int64_t step = stride;
          if (HWY_UNLIKELY(rows < kLanes || n < ChunkSize())) {
            std::memset(padded, 0, sizeof(padded));
            for (std::int64_t i = 0; i < rows; ++i) {
              // A copy of a constant size is inlined.
              if (n == kLanes) {
                std::memcpy(padded + i * chunk, at + i * stride, kLanes * sizeof(T));
              } else {
                std::memcpy(padded + i * chunk, at + i * stride, n * sizeof(T));
              }
            }
            at = padded;
            step = chunk;
          }
#if !ATTNOPS_ONE_LANE
          if constexpr (IsInterleaved<T>::kValue) {
            // A pair of elements moves as one lane and is split afterwards.
            const Square pairs =
                MakeSquare([&](int i) ATTNOPS_INLINE_LAMBDA { return LoadPacked(at + i * step); });
            ForEachVector(TransposeSquare(pairs), [&](int i, VU pair) ATTNOPS_INLINE_LAMBDA {
              const Chunk split = SplitPacked<T>(pair);
              hn::Store(split.v[0], d, result + i * chunk);
              hn::Store(split.v[1], d, result + (kLanes + i) * chunk);
            });
            return;
          }
#endif
          for (int half = 0; half < 2; ++half) {
            const Square square = MakeSquare([&](int i) ATTNOPS_INLINE_LAMBDA {
              return hn::BitCast(DU(), LoadChunk(at + i * step).v[half]);
            });
            ForEachVector(TransposeSquare(square), [&](int i, VU vector) ATTNOPS_INLINE_LAMBDA {
              hn::Store(hn::BitCast(d, vector), d, result + (half * kLanes + i) * chunk);
            });
          }
        });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_PANELS_INL_H_
