// Rows of factors as float32 matrices, and products whose operands may be rounded to bfloat16.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FACTORS_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FACTORS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FACTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/core/numeric.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/multiply_pairs-inl.h"
#include "src/gemm/panels-inl.h"
#include "src/ops/tensor_product_attention/block-inl.h"
#include "src/ops/tensor_product_attention/ranks.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// Multiply, or MultiplyPairs of the operands rounded to bfloat16. For those the depth of a straight
// left operand is whole chunks.
template <Left kLeft, class Epilogue>
HWY_INLINE void Product([[maybe_unused]] const PairSpace& pairs, const Panels& a, const Panels& b,
                        std::int64_t rows, std::int64_t depth, std::int64_t chunks,
                        const Epilogue& epilogue) {
#if !ATTNOPS_ONE_LANE
  if (pairs.dot != nullptr) {
    if constexpr (kLeft == Left::kStraight) {
      RoundRows(a, rows, ChunksOf(depth), pairs.rows);
      PairRows(b, depth, chunks, pairs.right);
      const Rows<const BFloat16> left{pairs.rows.data, pairs.rows.stride};
      MultiplyPairs<kLeft>(pairs.dot, PairLeft::OfRows(left), pairs.right, rows, depth / 2, chunks,
                           epilogue);
    } else {
      PairTokens(a, depth, ChunksOf(rows), pairs.left);
      PairTokens(b, depth, chunks, pairs.right);
      MultiplyPairs<kLeft>(pairs.dot, PairLeft::OfPanels(pairs.left), pairs.right, rows,
                           DivideUp(depth, 2), chunks, epilogue);
    }
    return;
  }
#endif
  Multiply<kLeft>(a, b, rows, depth, chunks, epilogue);
}

// LoadChunkN and ToFloat for the types of a cache; int8 is in natural order.
template <typename T>
HWY_INLINE Chunk LoadNumbers(const T* from, std::size_t n) {
  if constexpr (std::is_same_v<T, std::int8_t>) {
    const DF d;
    const DI di;
    const hn::Rebind<std::int8_t, DI> d8;
    alignas(64) std::int8_t buffer[kMaxChunk];
    if (HWY_UNLIKELY(n < ChunkSize())) {
      std::memset(buffer, 0, sizeof(buffer));
      std::memcpy(buffer, from, n);
      from = buffer;
    }
    return {{hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from))),
             hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from + hn::Lanes(d))))}};
  } else {
    return LoadChunkN(from, n);
  }
}
template <typename T>
HWY_INLINE float NumberOf(T value) {
  if constexpr (std::is_same_v<T, std::int8_t>) {
    return static_cast<float>(value);
  } else {
    return ToFloat(value);
  }
}

// Two chunks of pairs (a head's two ranks) as a chunk of the first ranks and one of the second.
struct TwoRanks {
  Chunk first, second;
};
template <typename T>
HWY_INLINE TwoRanks SplitRanks(const Chunk& lower, const Chunk& upper) {
#if !ATTNOPS_ONE_LANE
  if constexpr (!IsInterleaved<T>::kValue) {
    const DF d;
    return {
        {{hn::ConcatEven(d, lower.v[1], lower.v[0]), hn::ConcatEven(d, upper.v[1], upper.v[0])}},
        {{hn::ConcatOdd(d, lower.v[1], lower.v[0]), hn::ConcatOdd(d, upper.v[1], upper.v[0])}}};
  }
#endif
  return {{{lower.v[0], upper.v[0]}}, {{lower.v[1], upper.v[1]}}};
}

#if !ATTNOPS_ONE_LANE
// The first n ≤ ChunkSize() of a vector of pairs, taken apart; places without a pair are 0. A pair
// is the bytes of a 16-bit number: no element crosses lanes.
HWY_INLINE Chunk LoadBytePairs(const std::int8_t* from, std::size_t n) {
  const DF d;
  const DI di;
  const hn::Rebind<std::int16_t, DI> d16;
  alignas(64) std::int8_t buffer[kMaxChunk];
  if (HWY_UNLIKELY(n < ChunkSize())) {
    std::memset(buffer, 0, sizeof(buffer));
    std::memcpy(buffer, from, n);
    from = buffer;
  }
  const auto pairs = hn::PromoteTo(di, hn::LoadU(d16, reinterpret_cast<const std::int16_t*>(from)));
  return {{hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24>(pairs))),
           hn::ConvertTo(d, hn::ShiftRight<8>(pairs))}};
}
#endif

// The first `n` numbers of pairs, at most two chunks of them, taken apart; places without a pair
// are 0.
template <typename T>
HWY_INLINE TwoRanks LoadPairs(const T* from, std::int64_t n) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
#if !ATTNOPS_ONE_LANE
  if constexpr (std::is_same_v<T, std::int8_t>) {
    const auto load = [&](std::int64_t begin) ATTNOPS_INLINE_LAMBDA {
      const std::int64_t left = std::clamp<std::int64_t>(n - begin, 0, chunk);
      return LoadBytePairs(from + begin, static_cast<std::size_t>(left));
    };
    const Chunk lower = load(0), upper = load(chunk);
    return {{{lower.v[0], upper.v[0]}}, {{lower.v[1], upper.v[1]}}};
  }
#endif
  const Chunk lower = LoadNumbers(from, static_cast<std::size_t>(std::min(chunk, n)));
  const Chunk upper =
      n <= chunk ? Fill<2>(0.0f) : LoadNumbers(from + chunk, static_cast<std::size_t>(n - chunk));
  return SplitRanks<T>(lower, upper);
}

// A token's heads of ak or av, `row` elements apart, as `ranks` rows of a matrix in panels: heads
// in natural order. Places without a head are arbitrary: the `readable` elements from the token on,
// of which there are at least its own, may be loaded. `buffer` has room for heads·ranks numbers.
template <bool kScaled, typename T>
HWY_INLINE void LoadHeads(const T* from, std::int64_t row, std::int64_t heads, std::int64_t ranks,
                          std::int64_t readable, float scale, float* buffer, const Panels& to,
                          std::int64_t first) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const Chunk factor = Fill<2>(scale);
  const auto scaled = [&](const Chunk& x)
                          ATTNOPS_INLINE_LAMBDA { return kScaled ? Mul(x, factor) : x; };
  if (ranks == 2 && row == 2) {
    for (std::int64_t c = 0; c < ChunksOf(heads); ++c) {
      const TwoRanks split =
          LoadPairs(from + 2 * c * chunk, std::min(readable - 2 * c * chunk, 2 * chunk));
      StoreChunk(scaled(split.first), RowOf(to, c, first));
      StoreChunk(scaled(split.second), RowOf(to, c, first + 1));
    }
    return;
  }
  // Converted to natural order, then gathered with the step of the ranks.
  const DF d;
  const DI di;
  if (row == ranks) {
    ForEachChunk(heads * ranks,
                 [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                   StoreFloatsFrom<T>(LoadNumbers(from + column, n), buffer + column, n);
                 });
  } else {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < ranks; ++r) buffer[h * ranks + r] = NumberOf(from[h * row + r]);
    }
  }
  const auto step = hn::Set(di, static_cast<std::int32_t>(ranks));
  for (std::int64_t c = 0; c < ChunksOf(heads); ++c) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const std::int64_t head = c * chunk + half * kLanes;
      // Lanes without a head read the last one.
      const auto last = hn::Set(di, static_cast<std::int32_t>(std::max<std::int64_t>(
                                        0, std::min<std::int64_t>(kLanes, heads - head) - 1)));
      const auto index = hn::Mul(hn::Min(hn::Iota(di, 0), last), step);
      const float* at = buffer + std::min(head, heads - 1) * ranks;
      for (std::int64_t r = 0; r < ranks; ++r) {
        const VF x = hn::GatherIndex(d, at + r, index);
        hn::Store(kScaled ? hn::Mul(x, factor.v[0]) : x, d,
                  RowOf(to, c, first + r) + half * kLanes);
      }
    }
  }
}

// One row of `columns` numbers as a row of a matrix in panels, padded with zeros.
template <bool kScaled, typename T>
HWY_INLINE void LoadRow(const T* from, std::int64_t columns, float scale, const Panels& to,
                        std::int64_t row) {
  const Chunk factor = Fill<2>(scale);
  ForEachChunk(columns,
               [&](std::int64_t column, std::size_t n, std::int64_t c) ATTNOPS_INLINE_LAMBDA {
                 const Chunk x = LoadNumbers(from + column, n);
                 StoreChunk(kScaled ? Mul(x, factor) : x, RowOf(to, c, row));
               });
}

// a·b of at most one vector of columns: half the work of a chunk of them, which few ranks leave
// empty. a is (rows, depth), of which some rows past the end may be read, b (depth, columns); `to`
// gets the first vector of its only chunk.
HWY_NOINLINE inline void MultiplyNarrow(const Panels& a, const Panels& b, std::int64_t rows,
                                        std::int64_t depth, const Panels& to) {
  constexpr int kRows = ATTNOPS_ONE_LANE ? 2 : 12;
  const DF d;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t first = 0; first < rows; first += kRows) {
    // The last rows are computed once more where they do not fill a tile.
    const std::int64_t row = std::max<std::int64_t>(0, std::min(first, rows - kRows));
    Pack<kRows> sums = Fill<kRows>(0.0f);
    for (std::int64_t k = 0; k < depth; k += chunk) {
      const float* HWY_RESTRICT left = RowOf(a, k / chunk, row);
      const float* HWY_RESTRICT right = RowOf(b, 0, k);
      const std::int64_t steps = std::min(chunk, depth - k);
      for (std::int64_t i = 0; i < steps; ++i) {
        const VF vector = hn::Load(d, right + i * chunk);
        ForEach<kRows>([&](auto r) ATTNOPS_INLINE_LAMBDA {
          constexpr int kRow = decltype(r)::value;
          sums.v[kRow] = hn::MulAdd(hn::Set(d, left[kRow * kMaxChunk + i]), vector, sums.v[kRow]);
        });
      }
    }
    ForEach<kRows>([&](auto r) ATTNOPS_INLINE_LAMBDA {
      hn::Store(sums.v[decltype(r)::value], d, RowOf(to, 0, row + r()));
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_FACTORS_INL_H_
