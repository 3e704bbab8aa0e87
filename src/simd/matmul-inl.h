// Products of float32 matrices that fit into the caches, in registers.
//
// A Panels matrix is cut into panels of one chunk (two vectors) of columns, in each of which
// the rows follow one another. Conversion of a tensor's rows writes this layout directly, and it
// serves every operand: rows of a panel are the vectors of the right one, its elements are
// broadcast for the left one, straight or transposed, and a result is the operand of a later
// product. Columns are in the storage order of the tensors' type, as chunks of them are loaded.

#if defined(ATTNOPS_SRC_SIMD_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_MATMUL_INL_H_
#undef ATTNOPS_SRC_SIMD_MATMUL_INL_H_
#else
#define ATTNOPS_SRC_SIMD_MATMUL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/simd/fetch_ahead.h"
#include "src/simd/io-inl.h"
#include "src/simd/pack-inl.h"
#include "src/simd/panels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// How far ahead the transposed left operand is fetched into L1.
constexpr std::size_t kStepsAhead = 8;

// A register tile is kTileRows rows and up to kTileChunks chunks of a product. A step takes the
// tile's vectors of the right operand, and broadcasts one element of the left one for each row:
// at one broadcast a cycle (measured; loads of whole vectors are two) a tile of few rows and
// many columns keeps both multiply-add units busy, one of many rows and two vectors does not.
// Two units with a latency of 4 cycles need at least 8 independent sums.
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 4;    // 6 are no faster and divide neither 64 nor 128
constexpr int kTileChunks = 2;  // 16 sums, four vectors and a broadcast in 32 registers
#else
constexpr int kTileRows = 6;
constexpr int kTileChunks = 1;  // 12 sums, two vectors and a broadcast in 16 registers
#endif

static_assert(kTileChunks <= 2);

// f(0), …, f(N−1) with constants, written out.
template <int N, class F>
HWY_INLINE void ForEach(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) ATTNOPS_INLINE_LAMBDA {
    (f(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, N>());
}

// Whether the left operand is the matrix or its transpose.
enum class Left { kStraight, kTransposed };

// Where the elements of the left operand's rows [first, first+kTileRows) are, relative to
// those of row 0. Rows past the last take its elements: their sums are not used.
template <Left kLeft>
HWY_INLINE void TileOffsets(const Panels& a, std::size_t first, std::size_t rows,
                            std::size_t* HWY_RESTRICT offsets) {
  const std::size_t chunk = ChunkSize();
  for (std::size_t i = 0; i < kTileRows; ++i) {
    const std::size_t row = std::min(first + i, rows - 1);
    offsets[i] = kLeft == Left::kStraight
                     ? row * chunk
                     : row / chunk * static_cast<std::size_t>(a.panel) + row % chunk;
  }
}

// The sums of a tile: 2·C vectors for each row.
template <int C>
using Sums = Pack<2 * C * kTileRows>;

// The register tile of every product: adds `depth` steps to the sums of kRows rows and C chunks.
// Step k takes a[offsets(row)] of each row, after which a moves by `step` floats, and the 2·C
// vectors right(k).
template <int kRows, int C, class Offsets, class Right>
HWY_INLINE Pack<2 * C * kRows> AddSteps(const float* HWY_RESTRICT a, const Offsets& offsets,
                                        std::size_t step, std::size_t depth, const Right& right,
                                        Pack<2 * C * kRows> sums) {
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
constexpr std::int64_t kRunSteps = 32;
HWY_INLINE std::int64_t RunsOf(std::int64_t depth) { return DivideUp(depth, kRunSteps); }

// Fetches what the next tile takes of a panel of the straight left operand, from this tile's.
HWY_INLINE void FetchNextRows(const float* rows) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t size = kTileRows * ChunkSize();
  for (std::size_t i = size; i < 2 * size; i += kLine) __builtin_prefetch(rows + i, 0, 3);
}

// The tile of rows [first, first+kTileRows) of the product and C panels of b, of which b is the
// first row.
template <Left kLeft, int C, class Pause>
HWY_INLINE Sums<C> MultiplyTile(const Panels& a, std::size_t first, std::size_t rows,
                                const float* HWY_RESTRICT b, std::size_t b_panel, std::size_t depth,
                                const Pause& pause) {
  const std::size_t chunk = ChunkSize();
  const std::size_t lanes = hn::Lanes(DF());
  const std::size_t step = kLeft == Left::kStraight ? 1 : chunk;
  const auto multiply = [&](const auto& offsets, const float* from) ATTNOPS_INLINE_LAMBDA {
    Sums<C> sums = Fill<2 * C * kTileRows>(0.0f);
    // A run of a straight left operand ends with its panel, or is a few panels.
    const std::size_t steps =
        kLeft == Left::kStraight ? chunk : static_cast<std::size_t>(kRunSteps);
    for (std::size_t k = 0; k < depth; k += steps) {
      if (k % kRunSteps == 0) pause(static_cast<std::int64_t>(k / kRunSteps));
      if constexpr (kLeft == Left::kStraight) {
        FetchNextRows(a.data + first * chunk + k / chunk * static_cast<std::size_t>(a.panel));
      }
      const float* HWY_RESTRICT rows_of_b = b + k * chunk;
      sums = AddSteps<kTileRows, C>(
          from, offsets, step, std::min(steps, depth - k),
          [&](std::size_t i) ATTNOPS_INLINE_LAMBDA {
            // Each step begins a line of a transposed a, which all its broadcasts would wait for.
            if constexpr (kLeft == Left::kTransposed) {
              __builtin_prefetch(from + (i + kStepsAhead) * step, 0, 3);
            }
            return MakePack<2 * C>([&](int v) ATTNOPS_INLINE_LAMBDA {
              return hn::Load(DF(), rows_of_b + i * chunk + v / 2 * b_panel + v % 2 * lanes);
            });
          },
          sums);
      from += kLeft == Left::kStraight ? static_cast<std::size_t>(a.panel) : steps * chunk;
    }
    return sums;
  };
  if constexpr (kMaxChunk % kTileRows == 0) {
    // No tile straddles panels, and a panel has room for whole tiles: the offsets are constants.
    (void)rows;
    if constexpr (kLeft == Left::kStraight) {
      return multiply([](auto row) ATTNOPS_INLINE_LAMBDA { return row() * kMaxChunk; },
                      a.data + first * chunk);
    } else {
      return multiply([](auto row)
                          ATTNOPS_INLINE_LAMBDA { return static_cast<std::size_t>(row()); },
                      a.data + first / chunk * static_cast<std::size_t>(a.panel) + first % chunk);
    }
  } else {
    std::size_t at[kTileRows];
    TileOffsets<kLeft>(a, first, rows, at);
    return multiply([&](auto row) ATTNOPS_INLINE_LAMBDA { return at[row()]; }, a.data);
  }
}

// What part of a product a tile is: rows [first, first+rows) of its chunks [chunk, chunk+chunks).
struct TilePlace {
  std::int64_t first, rows, chunk, chunks;
};

// All tiles of C panels of b.
template <Left kLeft, int C, class Finish>
HWY_INLINE void MultiplyPanels(const Panels& a, const Panels& b, std::int64_t rows,
                               std::int64_t depth, std::int64_t chunk, const Finish& finish) {
  const std::int64_t runs = RunsOf(depth);
  for (std::int64_t first = 0; first < rows; first += kTileRows) {
    const TilePlace place{first, std::min<std::int64_t>(kTileRows, rows - first), chunk, C};
    const Sums<C> sums = MultiplyTile<kLeft, C>(
        a, static_cast<std::size_t>(first), static_cast<std::size_t>(rows),
        b.data + chunk * b.panel, static_cast<std::size_t>(b.panel),
        static_cast<std::size_t>(depth),
        [&](std::int64_t run) ATTNOPS_INLINE_LAMBDA { finish.Fetch(place, run, runs); });
    ForEach<kTileRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      constexpr int r = decltype(row)::value;
      if (r >= place.rows) return;
      ForEach<C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
        constexpr int i = 2 * (r * C + decltype(column)::value);
        finish(first + r, chunk + column(), Chunk{{sums.v[i], sums.v[i + 1]}});
      });
    });
  }
}

// a·b or aᵀ·b: a is (rows, depth), or (depth, rows) if transposed, b (depth, chunks·chunk). Calls
// finish.Fetch(place, run, runs) before each of the RunsOf(depth) parts of a tile, to fetch memory
// ahead, and then finish(row, chunk, sums) for each chunk of the tile.
template <Left kLeft, class Finish>
HWY_NOINLINE void Multiply(const Panels& a, const Panels& b, std::int64_t rows, std::int64_t depth,
                           std::int64_t chunks, const Finish& finish) {
  // The panels of b stay in L1 while a passes by.
  std::int64_t chunk = 0;
  for (; chunk + kTileChunks <= chunks; chunk += kTileChunks) {
    MultiplyPanels<kLeft, kTileChunks>(a, b, rows, depth, chunk, finish);
  }
  if constexpr (kTileChunks > 1) {
    if (chunk < chunks) MultiplyPanels<kLeft, 1>(a, b, rows, depth, chunk, finish);
  }
}

// How often a product pauses to fetch memory.
HWY_INLINE std::int64_t PausesOf(std::int64_t rows, std::int64_t depth, std::int64_t columns) {
  return DivideUp(rows, kTileRows) * DivideUp(ChunksOf(columns), kTileChunks) * RunsOf(depth);
}

// Adds sums to a matrix or sets it to them.
struct AddToMatrix {
  const Panels& to;
  bool add;
  FetchAhead& ahead;

  HWY_INLINE void Fetch(const TilePlace&, std::int64_t, std::int64_t) const { ahead.Step(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, const Chunk& sums) const {
    float* at = to.data + chunk * to.panel + row * static_cast<std::int64_t>(ChunkSize());
    StoreChunk(add ? Add(sums, LoadChunk(at)) : sums, at);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_MATMUL_INL_H_
