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

// A register tile is kTileRows rows and up to kTileChunks chunks of a product; where those do not
// come out even, kShortRows rows. A step takes the tile's vectors of the right operand, and
// broadcasts one element of the left one for each row. With vectors of 512 bits only little more
// than one of these loads a cycle was measured, so a tile needs many sums for each: 24 for 10.
// Two units with a latency of 4 cycles need at least 8 independent sums.
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 6;
constexpr int kTileChunks = 2;  // 24 sums, four vectors and a broadcast in 32 registers
#elif HWY_TARGET == HWY_SCALAR
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

// Whether the next tile is a short one where `left` rows are left: so that the tiles come out even,
// or but for one row, unless there are fewer rows than a short tile has. Panels have room for that.
HWY_INLINE bool IsShort(std::int64_t left) {
  constexpr std::int64_t kShort = kShortRows;
  return left <= kShort || (left > kTileRows && left <= 2 * kShort);
}

// The sums of a tile: 2·C vectors for each row.
template <int kRows, int C>
using TileSums = Pack<2 * C * kRows>;

// The register tile of every product: adds `depth` steps to the sums of kRows rows and C chunks.
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

// Fetches what the next tile takes of a panel of the straight left operand, from this tile's.
template <int kRows>
HWY_INLINE void FetchNextRows(const float* rows) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t size = kRows * ChunkSize();
  for (std::size_t i = size; i < 2 * size; i += kLine) __builtin_prefetch(rows + i, 0, 3);
}

// The tile of kRows rows of the product, from `first` on, and C panels of b, of which b is the
// first row. Its rows of a transposed left operand are all of one panel.
template <Left kLeft, int kRows, int C>
HWY_INLINE TileSums<kRows, C> MultiplyTile(const Panels& a, std::size_t first,
                                           const float* HWY_RESTRICT b, std::size_t b_panel,
                                           std::size_t depth, FetchAhead& ahead) {
  const std::size_t chunk = ChunkSize();
  const std::size_t lanes = hn::Lanes(DF());
  const auto a_panel = static_cast<std::size_t>(a.panel);
  constexpr bool kStraight = kLeft == Left::kStraight;
  constexpr std::size_t kRow = kStraight ? kMaxChunk : 1;
  constexpr std::size_t kStep = kStraight ? 1 : kMaxChunk;
  // A run of a straight left operand is in one panel.
  constexpr std::size_t kSteps =
      kStraight ? std::min<std::size_t>(kMaxChunk, kRunSteps) : std::size_t{kRunSteps};
  TileSums<kRows, C> sums = Fill<2 * C * kRows>(0.0f);
  for (std::size_t k = 0; k < depth; k += kSteps) {
    if (k % kRunSteps == 0) ahead.Step();
    const std::size_t row = kStraight ? first : k;
    const std::size_t column = kStraight ? k : first;
    const float* from = a.data + column / chunk * a_panel + row * chunk + column % chunk;
    if (kStraight && k % chunk == 0) FetchNextRows<kRows>(from);
    const float* HWY_RESTRICT rows_of_b = b + k * chunk;
    sums = AddSteps<kRows, C>(
        from, [](auto row) ATTNOPS_INLINE_LAMBDA { return static_cast<std::size_t>(row()) * kRow; },
        kStep, std::min(kSteps, depth - k),
        [&](std::size_t i) ATTNOPS_INLINE_LAMBDA {
          // Each step begins a line of a transposed a, which all its broadcasts would wait for.
          if constexpr (!kStraight) __builtin_prefetch(from + (i + kStepsAhead) * kStep, 0, 3);
          return MakePack<2 * C>([&](int v) ATTNOPS_INLINE_LAMBDA {
            return hn::Load(DF(), rows_of_b + i * chunk + v / 2 * b_panel + v % 2 * lanes);
          });
        },
        sums);
  }
  return sums;
}

// What part of a product a tile is: rows [first, first+rows) of its chunks [chunk, chunk+chunks).
struct TilePlace {
  std::int64_t first, rows, chunk, chunks;
};

// What is in bounds of a tile at the edge of a product. Apart: it would cost the whole tiles
// registers.
template <class Finish>
HWY_NOINLINE void FinishPart(const float* sums, const TilePlace& place, const Finish& finish) {
  for (std::int64_t row = 0; row < place.rows; ++row) {
    for (std::int64_t i = 0; i < place.chunks; ++i, sums += ChunkSize()) {
      const std::int64_t chunk = place.chunk + i;
      finish(place.first + row, chunk, finish.Elements(chunk), LoadChunk(sums));
    }
  }
}

// One tile, at most `left` rows of it.
template <Left kLeft, int kRows, int C, class Finish>
HWY_INLINE void FinishTile(const Panels& a, const Panels& b, std::int64_t first, std::int64_t left,
                           std::int64_t depth, std::int64_t chunk, const Finish& finish) {
  const TilePlace place{first, std::min<std::int64_t>(kRows, left), chunk, C};
  const TileSums<kRows, C> sums = MultiplyTile<kLeft, kRows, C>(
      a, static_cast<std::size_t>(first), b.data + chunk * b.panel,
      static_cast<std::size_t>(b.panel), static_cast<std::size_t>(depth), finish.ahead);
  if (HWY_UNLIKELY(place.rows < kRows || finish.Elements(chunk + C - 1) < ChunkSize())) {
    alignas(64) float parts[C * kRows * kMaxChunk];
    ForEach<2 * C * kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      hn::Store(sums.v[i()], DF(), parts + i() * hn::Lanes(DF()));
    });
    return FinishPart(parts, place, finish);
  }
  ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
    ForEach<C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
      constexpr int i = 2 * (decltype(row)::value * C + decltype(column)::value);
      finish(first + row(), chunk + column(), ChunkSize(), Chunk{{sums.v[i], sums.v[i + 1]}});
    });
  });
}

// All tiles of C panels of b.
template <Left kLeft, int C, class Finish>
HWY_INLINE void MultiplyPanels(const Panels& a, const Panels& b, std::int64_t rows,
                               std::int64_t depth, std::int64_t chunk, const Finish& finish) {
  // No tile straddles panels of a transposed left operand.
  const std::int64_t together =
      kLeft == Left::kStraight ? rows : static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t begin = 0; begin < rows; begin += together) {
    const std::int64_t end = std::min(begin + together, rows);
    for (std::int64_t first = begin; first < end;) {
      if (IsShort(end - first)) {
        FinishTile<kLeft, kShortRows, C>(a, b, first, end - first, depth, chunk, finish);
        first += kShortRows;
      } else {
        FinishTile<kLeft, kTileRows, C>(a, b, first, end - first, depth, chunk, finish);
        first += kTileRows;
      }
    }
  }
}

// a·b or aᵀ·b: a is (rows, depth), or (depth, rows) if transposed, b (depth, chunks·chunk). Calls
// finish.ahead.Step() every kRunSteps steps of a tile, then finish(row, chunk, n, sums) for each of
// its chunks, of which n = finish.Elements(chunk) elements are wanted.
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
  return DivideUp(rows, kTileRows) * DivideUp(ChunksOf(columns), kTileChunks) *
         DivideUp(depth, kRunSteps);
}

// Adds sums to a matrix or sets it to them.
struct AddToMatrix {
  const Panels& to;
  bool add;
  FetchAhead& ahead;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = to.data + chunk * to.panel + row * static_cast<std::int64_t>(ChunkSize());
    StoreChunk(add ? Add(sums, LoadChunk(at)) : sums, at);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_MATMUL_INL_H_
