// The microkernel of float32 products, which computes one register tile; README.md has its
// contract.

#if defined(ATTNOPS_SRC_GEMM_MICROKERNEL_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_GEMM_MICROKERNEL_F32_INL_H_
#undef ATTNOPS_SRC_GEMM_MICROKERNEL_F32_INL_H_
#else
#define ATTNOPS_SRC_GEMM_MICROKERNEL_F32_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "src/gemm/panels-inl.h"
#include "src/gemm/panels.h"
#include "src/gemm/prefetch.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// How far ahead the transposed left operand is fetched into L1.
constexpr std::size_t kStepsAhead = 8;

// A register tile is kTileRows rows and up to kTileChunks chunks of a product, or kShortRows rows
// where the product's rows are no multiple of kTileRows. A step loads the tile's vectors of the
// right operand and broadcasts one element of the left one for each row. With vectors of 512 bits
// little more than one of these loads a cycle was measured, so a tile needs many multiply-adds for
// each: 24 for 10. Two units with a latency of 4 cycles need at least 8 independent sums.
#if ATTNOPS_REGISTERS >= 32
constexpr int kTileRows = 6;
constexpr int kTileChunks = 2;  // 24 sums, four vectors and a broadcast in 32 registers
#elif ATTNOPS_ONE_LANE
constexpr int kTileRows = 2;
constexpr int kTileChunks = 1;
#else
constexpr int kTileRows = 6;
constexpr int kTileChunks = 1;  // 12 sums, two vectors and a broadcast in 16 registers
#endif
constexpr int kShortRows = std::min(kTileRows, 4);

static_assert(kTileChunks <= 2);
// A panel of the transposed left operand is whole tiles.
static_assert(kMaxChunk % kShortRows == 0);

// Whether the left operand is the matrix or its transpose.
enum class Left { kStraight, kTransposed };

// The sums of a tile: 2·C vectors for each row.
template <int kRows, int C>
using TileSums = Pack<2 * C * kRows>;

// The inner loop: adds `depth` steps to the sums of kRows rows and C chunks.
// Step k takes a[offsets(row)] of each row, after which a moves by `step` floats, and the 2·C
// vectors right(k).
template <int kRows, int C, class Offsets, class Right>
HWY_INLINE TileSums<kRows, C> AddSteps(const float* HWY_RESTRICT a, const Offsets& offsets,
                                       std::size_t step, std::size_t depth, const Right& right,
                                       TileSums<kRows, C> sums) {
  const DF d;
  for (std::size_t k = 0; k < depth; ++k) {
    const Pack<2 * C> vectors = right(k);
    // One row after the other: all broadcasts first would need a register each.
    ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      const VF left = hn::Set(d, a[offsets(row)]);
      ForEach<2 * C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
        constexpr int i = decltype(row)::value * 2 * C + decltype(column)::value;
        sums.v[i] = hn::MulAdd(left, vectors.v[decltype(column)::value], sums.v[i]);
      });
    });
    a += step;
  }
  return sums;
}

// Steps after which a product pauses to fetch memory ahead: often enough that the requests do
// not come in bursts, for which there are too few line fill buffers.
constexpr std::int64_t kRunSteps = 16;

// Prefetches the next tile's rows of a panel of the straight left operand; `rows` are this tile's.
template <int kRows>
HWY_INLINE void PrefetchNextRows(const float* rows) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t size = kRows * ChunkSize();
  for (std::size_t i = size; i < 2 * size; i += kLine) __builtin_prefetch(rows + i, 0, 3);
}

// The right operand of a tile in panels. From(row) is the operand from that row on.
struct FromPanels {
  const float* panels;
  std::size_t panel;

  HWY_INLINE FromPanels From(std::size_t row) const { return {panels + row * ChunkSize(), panel}; }
  template <int C>
  HWY_INLINE Pack<2 * C> Load(std::size_t row) const {
    return MakePack<2 * C>([&](int v) ATTNOPS_INLINE_LAMBDA {
      return hn::Load(DF(), panels + row * ChunkSize() + v / 2 * panel + v % 2 * hn::Lanes(DF()));
    });
  }
};
// The right operand in rows of a tensor. Loading converts them and leaves them in panels, for the
// tiles after this one.
template <typename T>
struct FromRows {
  const T* rows;
  std::size_t stride;
  float* panels;
  std::size_t panel;

  HWY_INLINE FromRows From(std::size_t row) const {
    return {rows + row * stride, stride, panels + row * ChunkSize(), panel};
  }
  template <int C>
  HWY_INLINE Pack<2 * C> Load(std::size_t row) const {
    const Pack<2 * C> vectors = LoadChunks<C>(rows + row * stride);
    for (int i = 0; i < C; ++i) {
      StoreChunk({{vectors.v[2 * i], vectors.v[2 * i + 1]}},
                 panels + row * ChunkSize() + i * panel);
    }
    return vectors;
  }
};

// Adds to `sums` the tile of kRows rows of the product, from `first` on, and C panels of the right
// operand. With a transposed left operand these rows must be in one panel of it.
template <Left kLeft, int kRows, int C, class Right>
HWY_INLINE TileSums<kRows, C> AddTile(const Panels& a, std::size_t first, const Right& b,
                                      std::size_t depth, Prefetcher& prefetcher,
                                      TileSums<kRows, C> sums) {
  const std::size_t chunk = ChunkSize();
  const auto a_panel = static_cast<std::size_t>(a.panel);
  constexpr bool kStraight = kLeft == Left::kStraight;
  constexpr std::size_t kRow = kStraight ? kMaxChunk : 1;
  constexpr std::size_t kStep = kStraight ? 1 : kMaxChunk;
  // A run of a straight left operand is in one panel.
  constexpr std::size_t kSteps =
      kStraight ? std::min<std::size_t>(kMaxChunk, kRunSteps) : std::size_t{kRunSteps};
  for (std::size_t k = 0; k < depth; k += kSteps) {
    if (k % kRunSteps == 0) prefetcher.Step();
    const std::size_t row = kStraight ? first : k;
    const std::size_t column = kStraight ? k : first;
    const float* from = a.data + column / chunk * a_panel + row * chunk + column % chunk;
    if (kStraight && k % chunk == 0) PrefetchNextRows<kRows>(from);
    const Right right = b.From(k);
    sums = AddSteps<kRows, C>(
        from, [](auto row) ATTNOPS_INLINE_LAMBDA { return static_cast<std::size_t>(row()) * kRow; },
        kStep, std::min(kSteps, depth - k),
        [&](std::size_t i) ATTNOPS_INLINE_LAMBDA {
          // Each step begins a line of a transposed a, which all its broadcasts would wait for.
          if constexpr (!kStraight) __builtin_prefetch(from + (i + kStepsAhead) * kStep, 0, 3);
          return right.template Load<C>(i);
        },
        sums);
  }
  return sums;
}

// The tile itself.
template <Left kLeft, int kRows, int C, class Right>
HWY_INLINE TileSums<kRows, C> MultiplyTile(const Panels& a, std::size_t first, const Right& b,
                                           std::size_t depth, Prefetcher& prefetcher) {
  return AddTile<kLeft, kRows, C>(a, first, b, depth, prefetcher, Fill<2 * C * kRows>(0.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_GEMM_MICROKERNEL_F32_INL_H_
