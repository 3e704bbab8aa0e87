// Rotations of other pairs than the halves of a row, without an activation; and rows whose pairs
// are gathered into halves, for the kernels with one.

#if defined(ATTNOPS_SRC_OPS_POSITION_ENCODING_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_POSITION_ENCODING_PAIRS_INL_H_
#undef ATTNOPS_SRC_OPS_POSITION_ENCODING_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "src/core/pass.h"
#include "src/ops/position_encoding/rows-inl.h"
#include "src/positions/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::position_encoding {
namespace HWY_NAMESPACE {

// A kernel reads x in the forward and d_out in the backward, one row at a time.
template <Pass kPass>
struct PairsKernel {
  static constexpr int kRowSet = 1;
  static constexpr int kPlainParts = 2;
  static constexpr bool kReadsX = kPass == Pass::kForward;
  static constexpr bool kReadsGradient = !kReadsX;

  template <typename T>
  static HWY_INLINE const T* Input(const Row<T>& row) {
    return kReadsX ? row.x : row.d_out;
  }
  template <int N>
  static HWY_INLINE Complex<N> Rotate(const Complex<N>& y, const Complex<N>& angle) {
    return kReadsX ? Turn(y, angle) : TurnBack(y, angle);
  }
};

// Copies the n features from j on, bit by bit.
template <typename T>
HWY_INLINE void CopyFeatures(const RowShape& shape, const T* from, T* to, std::size_t n) {
  if (from == to) return;
#if ATTNOPS_ONE_LANE
  static_cast<void>(shape);
  std::memcpy(to, from, n * sizeof(T));
#else
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const hn::ScalableTag<Bits> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* bits = reinterpret_cast<const Bits*>(from);
  auto* to_bits = reinterpret_cast<Bits*>(to);
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    if (shape.stream) {
      hn::Stream(hn::LoadU(d, bits + j), d, to_bits + j);
    } else {
      hn::StoreU(hn::LoadU(d, bits + j), d, to_bits + j);
    }
  }
  std::memcpy(to + j, from + j, (n - j) * sizeof(T));
#endif
}

// Halves (j, j+part) of the row's first features.
template <Pass kPass>
struct RotateWithTail : PairsKernel<kPass> {
  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const T* from = PairsKernel<kPass>::Input(rows[0]);
    ForEachStrip<RotateRows::kStripChunks>(
        shape, shape.encoded, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          const auto y = LoadStrip<2, K>(shape, from, j, n);
          const TableAngles angles = RotateRows::AnglesOf(shape, rows[0]);
          if constexpr (kPass == Pass::kForward) {
            StoreStrip<2, K>(shape, EncodeStrip<RotateRows, K, T>(shape, y, angles, j, n),
                             rows[0].out, j, n);
          } else {
            StoreStrip<2, K>(shape, DecodeStrip<RotateRows, K, T>(shape, y, angles, j, n),
                             rows[0].out, j, n);
          }
        });
    CopyFeatures(shape, from + 2 * shape.part, rows[0].out + 2 * shape.part, shape.tail);
  }
};

// The even and the odd elements of a chunk of T's storage order, and back.
template <typename T>
HWY_INLINE Chunk SplitNeighbours(const Chunk& chunk) {
#if !ATTNOPS_ONE_LANE
  if constexpr (!IsInterleaved<T>::kValue) {
    const DF d;
    return {{hn::ConcatEven(d, chunk.v[1], chunk.v[0]), hn::ConcatOdd(d, chunk.v[1], chunk.v[0])}};
  }
#endif
  return chunk;
}
template <typename T>
HWY_INLINE Chunk JoinNeighbours(const Chunk& chunk) {
#if !ATTNOPS_ONE_LANE
  if constexpr (!IsInterleaved<T>::kValue) {
    const DF d;
    alignas(64) float natural[kMaxChunk];
    hn::StoreInterleaved2(chunk.v[0], chunk.v[1], d, natural);
    return LoadChunk(natural);
  }
#endif
  return chunk;
}

// Neighbours (2j, 2j+1): a vector of angles, in natural order, for each chunk of features.
template <Pass kPass>
struct RotateNeighbours : PairsKernel<kPass> {
  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const DF d;
    const std::size_t chunk = ChunkSize();
    const std::size_t features = 2 * shape.part + shape.tail;
    const std::size_t with_angle = 2 * shape.encoded;
    const T* from = PairsKernel<kPass>::Input(rows[0]);
    T* to = rows[0].out;
    std::size_t j = 0;
    for (; j < with_angle; j += chunk) {
      const std::size_t n = std::min(chunk, features - j);
      const Chunk loaded = LoadChunkN(from + j, n);
      const Chunk y = SplitNeighbours<T>(loaded);
      const float* cos = rows[0].cos + j / 2;
      const Complex<1> turned = PairsKernel<kPass>::Rotate(
          Complex<1>{{{y.v[0]}}, {{y.v[1]}}},
          Complex<1>{{{hn::Load(d, cos)}}, {{hn::Load(d, cos + shape.width)}}});
      Chunk out = JoinNeighbours<T>({{turned.re.v[0], turned.im.v[0]}});
      if (HWY_UNLIKELY(j + n > with_angle)) {
        out = Select(FirstElements<T>(with_angle - j), out, loaded);
      }
      StoreStrip<1, 1>(shape, out, to, j, n);
    }
    if (j < features) CopyFeatures(shape, from + j, to + j, features - j);
  }
};

// Copies `n` pairs of neighbours into halves, or back.
template <typename T>
HWY_INLINE void SplitRow(const T* from, T* first, T* second, std::size_t n) {
  std::size_t j = 0;
#if !ATTNOPS_ONE_LANE
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const hn::ScalableTag<Bits> d;
  for (; j + hn::Lanes(d) <= n; j += hn::Lanes(d)) {
    hn::Vec<decltype(d)> even, odd;
    hn::LoadInterleaved2(d, reinterpret_cast<const Bits*>(from + 2 * j), even, odd);
    hn::StoreU(even, d, reinterpret_cast<Bits*>(first + j));
    hn::StoreU(odd, d, reinterpret_cast<Bits*>(second + j));
  }
#endif
  for (; j < n; ++j) {
    first[j] = from[2 * j];
    second[j] = from[2 * j + 1];
  }
}
template <typename T>
HWY_INLINE void JoinRow(const T* first, const T* second, T* to, std::size_t n) {
  std::size_t j = 0;
#if !ATTNOPS_ONE_LANE
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const hn::ScalableTag<Bits> d;
  for (; j + hn::Lanes(d) <= n; j += hn::Lanes(d)) {
    hn::StoreInterleaved2(hn::LoadU(d, reinterpret_cast<const Bits*>(first + j)),
                          hn::LoadU(d, reinterpret_cast<const Bits*>(second + j)), d,
                          reinterpret_cast<Bits*>(to + 2 * j));
  }
#endif
  for (; j < n; ++j) {
    to[2 * j] = first[j];
    to[2 * j + 1] = second[j];
  }
}

// The row's pairs become halves (j, j+D/2). The features without a pair follow those with one, a
// half of them in each half.
struct GatheredRow {
  std::size_t pairs, tail;  // of a half

  explicit GatheredRow(const Pairs& of)
      : pairs(static_cast<std::size_t>(of.rotated / 2)),
        tail(static_cast<std::size_t>((of.features - of.rotated) / 2)) {}
  std::size_t Half() const { return pairs + tail; }
};

template <typename T>
void Gather(const Pairs& of, const void* row, void* to) {
  const GatheredRow shape(of);
  const T* from = static_cast<const T*>(row);
  T* first = static_cast<T*>(to);
  T* second = first + shape.Half();
  if (of.interleaved) {
    SplitRow(from, first, second, shape.pairs);
  } else {
    std::copy_n(from, shape.pairs, first);
    std::copy_n(from + shape.pairs, shape.pairs, second);
  }
  std::copy_n(from + of.rotated, shape.tail, first + shape.pairs);
  std::copy_n(from + of.rotated + shape.tail, shape.tail, second + shape.pairs);
}

template <typename T>
void Scatter(const Pairs& of, const void* gathered, void* row) {
  const GatheredRow shape(of);
  const T* first = static_cast<const T*>(gathered);
  const T* second = first + shape.Half();
  T* to = static_cast<T*>(row);
  if (of.interleaved) {
    JoinRow(first, second, to, shape.pairs);
  } else {
    std::copy_n(first, shape.pairs, to);
    std::copy_n(second, shape.pairs, to + shape.pairs);
  }
  std::copy_n(first + shape.pairs, shape.tail, to + of.rotated);
  std::copy_n(second + shape.pairs, shape.tail, to + of.rotated + shape.tail);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::position_encoding
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_PAIRS_INL_H_
