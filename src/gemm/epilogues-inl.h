// Epilogues: adding the sums of a product to a matrix, or storing them in a tensor.

#if defined(ATTNOPS_SRC_GEMM_EPILOGUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_EPILOGUES_INL_H_
#undef ATTNOPS_SRC_GEMM_EPILOGUES_INL_H_
#else
#define ATTNOPS_SRC_GEMM_EPILOGUES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "src/core/tensor.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/panels.h"
#include "src/gemm/prefetch.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// An epilogue is called with the sums of a product while they are in registers: Elements(chunk)
// says how many of a chunk's columns count, operator() takes the sums of one row and chunk.

// Adds sums to a matrix in panels, or sets it to them.
struct AddToMatrix {
  const Panels& to;
  bool add;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = to.data + chunk * to.panel + row * static_cast<std::int64_t>(ChunkSize());
    StoreChunk(add ? Add(sums, LoadChunk(at)) : sums, at);
  }
};

// How many elements the chunk with number `chunk` of a row of `columns` columns has.
HWY_INLINE std::size_t ChunkCount(std::int64_t columns, std::int64_t chunk) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  return static_cast<std::size_t>(std::min(size, columns - chunk * size));
}
template <typename T>
HWY_INLINE T* ChunkOf(T* row, std::int64_t chunk) {
  return row + chunk * static_cast<std::int64_t>(ChunkSize());
}

// Stores sums in rows of a tensor.
template <typename T, Payload kPayload>
struct StoreInRows {
  Rows<T> to;
  std::int64_t columns;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return ChunkCount(columns, chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    StoreChunkN<kPayload>(sums, ChunkOf(to[row], chunk), n);
  }
};

// The factor that sums are multiplied by: rows of a tensor, or of a matrix in panels.
template <typename T>
struct RowsFactor {
  Rows<const T> rows;

  HWY_INLINE Chunk operator()(std::int64_t row, std::int64_t chunk, std::size_t n) const {
    return LoadChunkN(ChunkOf(rows[row], chunk), n);
  }
};
struct PanelsFactor {
  Panels panels;

  HWY_INLINE Chunk operator()(std::int64_t row, std::int64_t chunk, std::size_t /*n*/) const {
    return LoadChunk(panels.data + chunk * panels.panel +
                     row * static_cast<std::int64_t>(ChunkSize()));
  }
};

// Stores sums times a factor in `to` and, if `kept` is given, the sums themselves there.
template <typename T, typename Kept, class Factor, Payload kPayload>
struct StoreProduct {
  Factor factor;
  Rows<T> to;
  Rows<Kept> kept;
  std::int64_t columns;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return ChunkCount(columns, chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    StoreChunkN<kPayload>(Mul(factor(row, chunk, n), sums), ChunkOf(to[row], chunk), n);
    if (kept.data != nullptr) {
      Kept* at = ChunkOf(kept[row], chunk);
      if constexpr (std::is_same_v<Kept, T>) {
        StoreChunkN<kPayload>(sums, at, n);
      } else {
        StoreFloatsFrom<T>(sums, at, n);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_EPILOGUES_INL_H_
