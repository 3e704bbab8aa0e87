// Filling angle tables for tokens with positions of their own, from theta or from the caller's
// cosines and sines.

#if defined(ATTNOPS_SRC_POSITIONS_IDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_POSITIONS_IDS_INL_H_
#undef ATTNOPS_SRC_POSITIONS_IDS_INL_H_
#else
#define ATTNOPS_SRC_POSITIONS_IDS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/core/dtype_switch.h"
#include "src/positions/angles.h"
#include "src/positions/ids.h"
#include "src/positions/tables-inl.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Fills angles.stream_of; padding has the first stream.
template <typename T>
void FillStreams(const Dims& sections, bool interleaved, const Angles& angles) {
  std::fill_n(angles.stream_of, angles.width, 0);
  const auto set = [&](std::int64_t angle, int stream) {
    if (angle >= angles.count) return;
    angles.stream_of[StorageOffset<T>(static_cast<std::size_t>(angle))] =
        static_cast<std::uint32_t>(stream);
  };
  std::int64_t begin = 0;
  for (int s = 0; s < sections.rank(); begin += sections[s++]) {
    for (std::int64_t i = 0; i < sections[s]; ++i) {
      set(interleaved ? i * sections.rank() + s : begin + i, s);
    }
  }
}

// Calls f(stream, mask) for the streams of the angles at `j`; the mask has their lanes.
template <class F>
HWY_INLINE void ForEachStream(const Angles& angles, std::int64_t j, const F& f) {
  const DF d;
  const DU du;
  if (angles.streams == 1) return f(0, hn::FirstN(d, hn::Lanes(d)));
  const VU streams = hn::Load(du, angles.stream_of + j);
  for (int s = 0; s < angles.streams; ++s) {
    const auto mask =
        hn::RebindMask(d, hn::Eq(streams, hn::Set(du, static_cast<std::uint32_t>(s))));
    if (!hn::AllFalse(d, mask)) f(s, mask);
  }
}

HWY_INLINE void StoreMasked(const SinCos& value, MF mask, float* cos, std::int64_t width) {
  const SinCos before = LoadSinCos(cos, width);
  StoreSinCos(
      {hn::IfThenElse(mask, value.sin, before.sin), hn::IfThenElse(mask, value.cos, before.cos)},
      cos, width);
}

// Fills one row of the table from theta. A run of positions with one base costs one exact sincos.
HWY_INLINE void FillPositionsRow(const Angles& angles, std::int64_t row,
                                 const BlockPositions& positions, float* to, std::int64_t stride) {
  const std::int64_t width = angles.width;
  for (std::int64_t j = 0; j < width; j += hn::Lanes(DF())) {
    ForEachStream(angles, j, [&](int s, MF mask) ATTNOPS_INLINE_LAMBDA {
      const std::int64_t* bases = positions.base[s];
      SinCos base = BaseSinCos(angles, row, j, bases[0]);
      float* cos = to + j;
      for (std::int64_t i = 0; i < positions.tokens; ++i, cos += stride) {
        if (i > 0 && bases[i] != bases[i - 1]) base = BaseSinCos(angles, row, j, bases[i]);
        const std::int64_t step = positions.step[s][i];
        const SinCos value =
            step == 0 ? base : AddAngles(base, LoadSinCos(angles.Step(row, step) + j, width));
        if (angles.streams == 1) {
          StoreSinCos(value, cos, width);
        } else {
          StoreMasked(value, mask, cos, width);
        }
      }
    });
  }
}

// A chunk in the storage order of T from one in that of C.
template <typename T, typename C>
HWY_INLINE Chunk ToOrderOf(const Chunk& chunk) {
#if !ATTNOPS_ONE_LANE
  const DF d;
  if constexpr (IsInterleaved<T>::kValue && !IsInterleaved<C>::kValue) {
    return {{hn::ConcatEven(d, chunk.v[1], chunk.v[0]), hn::ConcatOdd(d, chunk.v[1], chunk.v[0])}};
  }
  if constexpr (!IsInterleaved<T>::kValue && IsInterleaved<C>::kValue) {
    alignas(64) float natural[kMaxChunk];
    hn::StoreInterleaved2(chunk.v[0], chunk.v[1], d, natural);
    return LoadChunk(natural);
  }
#endif
  return chunk;
}

// Fills one token's row from the caller's cosines and sines.
template <typename T, typename C>
HWY_INLINE void FillCosSinRow(const Angles& angles, const BlockPositions& positions,
                              std::int64_t token, float* to) {
  const DF d;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t lanes = hn::Lanes(d);
  const VF scale = hn::Set(d, angles.scale);
  VF nan = hn::Zero(d);
  for (std::int64_t j = 0; j < angles.width; j += chunk) {
    const auto n = static_cast<std::size_t>(std::min(chunk, angles.count - j));
    for (int s = 0; s < angles.streams; ++s) {
      const C* row =
          static_cast<const C*>(angles.cos_sin) + positions.At(s, token) * angles.cos_sin_row + j;
      const Chunk cos = ToOrderOf<T, C>(LoadChunkN(row, n));
      const Chunk sin = ToOrderOf<T, C>(LoadChunkN(row + angles.count, n));
      for (int v = 0; v < 2; ++v) {
        const SinCos value{hn::Mul(sin.v[v], scale), hn::Mul(cos.v[v], scale)};
        nan = hn::Add(nan, hn::Mul(hn::Add(value.sin, value.cos), hn::Zero(d)));
        float* at = to + j + v * lanes;
        ForEachStream(angles, j + v * lanes, [&](int stream, MF mask) ATTNOPS_INLINE_LAMBDA {
          if (stream == s) StoreMasked(value, mask, at, angles.width);
        });
      }
    }
  }
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::IsNaN(nan)))) ReplaceNans(to, angles.RowSize());
}

// Fills the table of a block's tokens for the rows [row_begin, row_end).
template <typename T>
void FillPositions(const Angles& angles, std::int64_t row_begin, std::int64_t row_end,
                   const BlockPositions& positions, float* table) {
  const std::int64_t stride = (row_end - row_begin) * angles.RowSize();
  if (angles.cos_sin != nullptr) {
    const auto fill = [&](auto tag) HWY_ATTR {
      using C = typename decltype(tag)::Type;
      for (std::int64_t i = 0; i < positions.tokens; ++i) {
        FillCosSinRow<T, C>(angles, positions, i, table + i * stride);
      }
    };
    return WithType(angles.cos_sin_type, fill);
  }
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    FillPositionsRow(angles, row, positions, table + (row - row_begin) * angles.RowSize(), stride);
  }
}

// The positions that theta is multiplied by, for its gradient.
template <typename T>
void FillFactors(const Angles& angles, const BlockPositions* positions, std::int64_t first,
                 std::int64_t tokens, float* factors) {
  for (std::int64_t i = 0; i < tokens; ++i, factors += angles.width) {
    const GridIndex index(angles.shape, positions == nullptr ? first + i : 0);
    for (std::int64_t c = 0; c < angles.width; ++c) {
      const std::size_t to = StorageOffset<T>(static_cast<std::size_t>(c));
      const std::int64_t position =
          positions != nullptr
              ? positions->At(
                    angles.stream_of == nullptr ? 0 : static_cast<int>(angles.stream_of[to]), i)
              : angles.offset + index.at[angles.AxisOf(std::min(c, angles.count - 1))];
      factors[to] = static_cast<float>(position);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_POSITIONS_IDS_INL_H_
