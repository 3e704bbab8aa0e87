// Strips of rows: a few chunks of each part of a row, which are loaded, worked on and stored
// together.

#if defined(ATTNOPS_SRC_SIMD_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_STRIPS_INL_H_
#undef ATTNOPS_SRC_SIMD_STRIPS_INL_H_
#else
#define ATTNOPS_SRC_SIMD_STRIPS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Rows are worked on in strips of up to this many chunks, half as many of each of two parts. With
// 32 registers that is eight vectors: they hide the latency of a multiply-add, four do not. Targets
// of old CPUs have small strips, for small kernels.
#undef ATTNOPS_STRIP_CHUNKS
#if ATTNOPS_REGISTERS >= 32
#define ATTNOPS_STRIP_CHUNKS 4
#elif !ATTNOPS_HAS_FMA
#define ATTNOPS_STRIP_CHUNKS 1
#else
#define ATTNOPS_STRIP_CHUNKS 2
#endif

// The shape of all rows of a call.
struct RowShape {
  std::size_t part;     // elements of a part
  std::size_t encoded;  // of these, those with an angle: the first ones
  std::size_t width;    // of a part in tables: padded to chunks
  bool stream;          // whether the output bypasses the caches; then parts are whole chunks
  std::size_t tail;     // elements behind the parts

  RowShape(std::int64_t row_part, std::int64_t row_encoded, std::int64_t row_width,
           bool streams = false, std::int64_t row_tail = 0)
      : part(static_cast<std::size_t>(row_part)),
        encoded(static_cast<std::size_t>(row_encoded)),
        width(static_cast<std::size_t>(row_width)),
        stream(streams),
        tail(static_cast<std::size_t>(row_tail)) {}
};

// K chunks of each of kParts parts, one part after the other.
template <int kParts, int K>
using Strip = Pack<2 * kParts * K>;

// The n elements from j on of each part of a tensor's row; K > 1 only for n of whole chunks.
template <int kParts, int K, typename T>
HWY_INLINE Strip<kParts, K> LoadStrip(const RowShape& shape, const T* row, std::size_t j,
                                      std::size_t n) {
  if constexpr (kParts == 2) {
    return Join(LoadStrip<1, K>(shape, row, j, n), LoadStrip<1, K>(shape, row + shape.part, j, n));
  } else if constexpr (K == 1) {
    return LoadChunkN(row + j, n);
  } else {
    return LoadChunks<K>(row + j);
  }
}
// Results are computed from tensors of type T: see Payload.
template <int kParts, int K, typename T>
HWY_INLINE void StoreStrip(const RowShape& shape, const Strip<kParts, K>& strip, T* row,
                           std::size_t j, std::size_t n) {
  if constexpr (kParts == 2) {
    StoreStrip<1, K>(shape, FirstHalf(strip), row, j, n);
    StoreStrip<1, K>(shape, SecondHalf(strip), row + shape.part, j, n);
  } else if constexpr (K > 1) {
    StoreChunks<K, Payload::kUpper>(strip, row + j, shape.stream);
  } else if (HWY_LIKELY(n == ChunkSize())) {
    StoreChunks<1, Payload::kUpper>(strip, row + j, shape.stream);
  } else {
    StoreChunkN<Payload::kUpper>(strip, row + j, n);
  }
}

// A strip of a float32 row whose parts are padded to `width`.
template <int kParts, int K>
HWY_INLINE Strip<kParts, K> LoadTable(const RowShape& shape, const float* row, std::size_t j) {
  if constexpr (kParts == 2) {
    return Join(LoadChunks<K>(row + j), LoadChunks<K>(row + shape.width + j));
  } else {
    return LoadChunks<K>(row + j);
  }
}
template <int kParts, int K>
HWY_INLINE void StoreTable(const RowShape& shape, const Strip<kParts, K>& strip, float* row,
                           std::size_t j) {
  if constexpr (kParts == 2) {
    StoreChunks<K>(FirstHalf(strip), row + j);
    StoreChunks<K>(SecondHalf(strip), row + shape.width + j);
  } else {
    StoreChunks<K>(strip, row + j);
  }
}

// The lanes of the first n elements of each part of a strip of single chunks.
template <int kParts, typename T>
HWY_INLINE Pack<2 * kParts, MF> FirstOfParts(std::size_t n) {
  const ChunkMask mask = FirstElements<T>(n);
  if constexpr (kParts == 2) {
    return {{mask.v[0], mask.v[1], mask.v[0], mask.v[1]}};
  } else {
    return mask;
  }
}

// Calls body<K>(j, n) for all strips of a row: of up to kStripChunks chunks before element `whole`,
// of single chunks from there on.
template <int kStripChunks, class Body>
HWY_INLINE void ForEachStrip(const RowShape& shape, std::size_t whole, const Body& body) {
  constexpr int K = kStripChunks;
  const std::size_t chunk = ChunkSize();
  std::size_t j = 0;
  if constexpr (K == 4) {
    for (; j + 4 * chunk <= whole; j += 4 * chunk) body.template operator()<4>(j, 4 * chunk);
  }
  if constexpr (K >= 2) {
    for (; j + 2 * chunk <= whole; j += 2 * chunk) body.template operator()<2>(j, 2 * chunk);
  }
  for (; j < shape.part; j += chunk) {
    body.template operator()<1>(j, std::min(chunk, shape.part - j));
  }
}

template <typename T>
HWY_INLINE void PrefetchRow(const T* row, std::int64_t n) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < n; i += kLine) hwy::Prefetch(row + i);
}
// The n elements from j on of each part of a row.
template <int kParts, typename T>
HWY_INLINE void PrefetchStrip(const RowShape& shape, const T* row, std::size_t j, std::size_t n) {
  for (int part = 0; part < kParts; ++part) {
    PrefetchRow(row + static_cast<std::size_t>(part) * shape.part + j,
                static_cast<std::int64_t>(n));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_STRIPS_INL_H_
