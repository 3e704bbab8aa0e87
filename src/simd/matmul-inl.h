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
#include <type_traits>
#include <utility>

#include "src/simd/fetch_ahead.h"
#include "src/simd/io-inl.h"
#include "src/simd/pack-inl.h"
#include "src/simd/panels-inl.h"
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

// The right operand of a tile, from one of its rows on: in panels.
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
// Or in rows of a tensor, which the tile leaves in panels for those after it.
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

// The tile of kRows rows of the product, from `first` on, and C panels of the right operand. Its
// rows of a transposed left operand are all of one panel.
template <Left kLeft, int kRows, int C, class Right>
HWY_INLINE TileSums<kRows, C> MultiplyTile(const Panels& a, std::size_t first, const Right& b,
                                           std::size_t depth, FetchAhead& ahead) {
  const std::size_t chunk = ChunkSize();
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
template <Left kLeft, int kRows, int C, class Right, class Finish>
HWY_INLINE void FinishTile(const Panels& a, const Right& b, std::int64_t first, std::int64_t left,
                           std::int64_t depth, std::int64_t chunk, const Finish& finish) {
  const TilePlace place{first, std::min<std::int64_t>(kRows, left), chunk, C};
  const TileSums<kRows, C> sums = MultiplyTile<kLeft, kRows, C>(
      a, static_cast<std::size_t>(first), b, static_cast<std::size_t>(depth), finish.ahead);
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

// f<kRows>(first, end) for the tiles of a product's rows, of which those from `end` on do not
// count; first_f for the first of them. No tile straddles panels of a transposed left operand.
template <Left kLeft, class FirstF, class F>
HWY_INLINE void ForEachTile(std::int64_t rows, const FirstF& first_f, const F& f) {
  const auto tile = [](std::int64_t first, std::int64_t end, const auto& g)
                        ATTNOPS_INLINE_LAMBDA -> std::int64_t {
    if (IsShort(end - first)) {
      g.template operator()<kShortRows>(first, end);
      return first + kShortRows;
    }
    g.template operator()<kTileRows>(first, end);
    return first + kTileRows;
  };
  const std::int64_t together =
      kLeft == Left::kStraight ? rows : static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t begin = 0; begin < rows; begin += together) {
    const std::int64_t end = std::min(begin + together, rows);
    std::int64_t first = begin;
    if constexpr (!std::is_same_v<FirstF, F>) {
      if (begin == 0) first = tile(first, end, first_f);
    }
    while (first < end) first = tile(first, end, f);
  }
}

// All tiles of C panels of b, which the first of them takes from `source`.
template <Left kLeft, int C, class Source, class Finish>
HWY_INLINE void MultiplyPanels(const Panels& a, const Source& source, const FromPanels& b,
                               std::int64_t rows, std::int64_t depth, std::int64_t chunk,
                               const Finish& finish) {
  const auto with = [&](const auto& right) ATTNOPS_INLINE_LAMBDA {
    return [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      FinishTile<kLeft, kRows, C>(a, right, first, end - first, depth, chunk, finish);
    };
  };
  ForEachTile<kLeft>(rows, with(source), with(b));
}

// a·b or aᵀ·b: a is (rows, depth), or (depth, rows) if transposed, b (depth, chunks·chunk). Calls
// finish.ahead.Step() every kRunSteps steps of a tile, then finish(row, chunk, n, sums) for each of
// its chunks, of which n = finish.Elements(chunk) elements are wanted.
template <Left kLeft, class Finish>
HWY_NOINLINE void Multiply(const Panels& a, const Panels& b, std::int64_t rows, std::int64_t depth,
                           std::int64_t chunks, const Finish& finish) {
  // The panels of b stay in L1 while a passes by.
  const auto multiply = [&]<int C>(std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const FromPanels panels{b.data + chunk * b.panel, static_cast<std::size_t>(b.panel)};
    MultiplyPanels<kLeft, C>(a, panels, panels, rows, depth, chunk, finish);
  };
  std::int64_t chunk = 0;
  for (; chunk + kTileChunks <= chunks; chunk += kTileChunks) {
    multiply.template operator()<kTileChunks>(chunk);
  }
  if constexpr (kTileChunks > 1) {
    if (chunk < chunks) multiply.template operator()<1>(chunk);
  }
}

// The same where b is rows of a tensor, `stride` elements apart. As many of its columns as a tile
// has are in `panels` at a time: the first tile converts them, which hides how long they take to
// come from L2, and for the others they are still in L1.
template <Left kLeft, typename T, class Finish>
HWY_NOINLINE void MultiplyRows(const Panels& a, const T* b, std::int64_t stride,
                               const Panels& panels, std::int64_t rows, std::int64_t depth,
                               std::int64_t columns, const Finish& finish) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const FromPanels converted{panels.data, static_cast<std::size_t>(panels.panel)};
  std::int64_t chunk = 0;
  for (; (chunk + kTileChunks) * size <= columns; chunk += kTileChunks) {
    const FromRows<T> source{b + chunk * size, static_cast<std::size_t>(stride), panels.data,
                             converted.panel};
    MultiplyPanels<kLeft, kTileChunks>(a, source, converted, rows, depth, chunk, finish);
  }
  const std::int64_t left = columns - chunk * size;
  if (left <= 0) return;
  LoadRows(b + chunk * size, stride, depth, left, panels);
  if (ChunksOf(left) == kTileChunks) {
    MultiplyPanels<kLeft, kTileChunks>(a, converted, converted, rows, depth, chunk, finish);
  } else {
    MultiplyPanels<kLeft, 1>(a, converted, converted, rows, depth, chunk, finish);
  }
}

// Rows of a chunk of one or two parts, the rows of each one after the other.
struct ChunkRows {
  float* part[2];
};
HWY_INLINE ChunkRows RowsOfChunk(const Panels& matrix, std::int64_t row, std::int64_t chunk,
                                 std::int64_t part_chunks) {
  float* at = matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
  return {{at, at + part_chunks * matrix.panel}};
}

// kRows rows of a product with kChunks panels of b, at `to`.
template <Left kLeft, int kRows, int kChunks>
HWY_INLINE void StoreTile(const Panels& a, std::int64_t first, const FromPanels& b,
                          std::int64_t depth, FetchAhead& ahead, float* HWY_RESTRICT to) {
  constexpr int C = std::min(kChunks, kTileChunks);
  for (int i = 0; i < kChunks; i += C) {
    const FromPanels panels{b.panels + static_cast<std::size_t>(i) * b.panel, b.panel};
    const TileSums<kRows, C> sums = MultiplyTile<kLeft, kRows, C>(
        a, static_cast<std::size_t>(first), panels, static_cast<std::size_t>(depth), ahead);
    ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      ForEach<C>([&](auto column) ATTNOPS_INLINE_LAMBDA {
        constexpr int v = 2 * (decltype(row)::value * C + decltype(column)::value);
        StoreChunk({{sums.v[v], sums.v[v + 1]}},
                   to + static_cast<std::size_t>((i + column()) * kRows + row()) * ChunkSize());
      });
    });
  }
}

// The same product where what becomes of the sums is more than registers have room for: they are
// left in L1, and finish.Tile(first, rows, chunk, sums) takes a chunk of each of `parts` parts, of
// which the product's columns consist and each has part_chunks.
template <Left kLeft, class Finish>
HWY_NOINLINE void MultiplyToTiles(const Panels& a, const Panels& b, std::int64_t rows,
                                  std::int64_t depth, int parts, std::int64_t part_chunks,
                                  const Finish& finish) {
  alignas(64) float sums[2 * kTileRows * kMaxChunk];
  const auto multiply = [&]<int kChunks>(std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    const std::int64_t second = parts == 2 ? part_chunks : 1;
    const FromPanels panels{b.data + chunk * b.panel, static_cast<std::size_t>(second * b.panel)};
    const auto tile = [&]<int kRows>(std::int64_t first, std::int64_t end) ATTNOPS_INLINE_LAMBDA {
      StoreTile<kLeft, kRows, kChunks>(a, first, panels, depth, finish.ahead, sums);
      float* half = kChunks == 2 ? sums + kRows * ChunkSize() : nullptr;
      const std::int64_t count = std::min<std::int64_t>(kRows, end - first);
      finish.Tile(first, count, chunk, ChunkRows{{sums, half}});
      if (kChunks == 2 && parts == 1) {
        finish.Tile(first, count, chunk + 1, ChunkRows{{half, nullptr}});
      }
    };
    ForEachTile<kLeft>(rows, tile, tile);
  };
  // Two chunks at a time: one of each part, or neighbours where a tile has room for them.
  const std::int64_t step = parts == 2 ? 1 : kTileChunks;
  std::int64_t chunk = 0;
  if (parts == 2 || kTileChunks == 2) {
    for (; chunk + step <= part_chunks; chunk += step) multiply.template operator()<2>(chunk);
  }
  for (; chunk < part_chunks; ++chunk) multiply.template operator()<1>(chunk);
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
