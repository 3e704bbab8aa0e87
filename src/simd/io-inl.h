// Loading and storing float32, float16 and bfloat16 as float32 vectors.
//
// The unit is a chunk of 2·Lanes elements, held in two vectors. Which element is
// in which lane is the storage order of the type: natural, or with the even
// elements in the first vector and the odd ones in the second, since a pair of
// 16-bit values in a 32-bit lane is split by a shift and a mask without moving
// anything across lanes. Element-wise work does not care; tables of float32 that
// meet such vectors are laid out in the same order with StorageOffset.

#if defined(ATTNOPS_SRC_SIMD_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_IO_INL_H_
#undef ATTNOPS_SRC_SIMD_IO_INL_H_
#else
#define ATTNOPS_SRC_SIMD_IO_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attnops/types.h"
#include "src/core/numeric.h"
#include "src/simd/capabilities-inl.h"
#include "src/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Two vectors: the elements of one chunk.
using Chunk = Pack<2>;

HWY_INLINE std::size_t ChunkSize() { return 2 * hn::Lanes(DF()); }
constexpr std::size_t kMaxChunk = 2 * hn::MaxLanes(DF());

// How many chunks a row of `columns` elements has, and its length padded to whole chunks.
HWY_INLINE std::int64_t ChunksOf(std::int64_t columns) {
  return DivideUp(columns, static_cast<std::int64_t>(ChunkSize()));
}
HWY_INLINE std::int64_t Padded(std::int64_t columns) {
  return RoundUp(columns, static_cast<std::int64_t>(ChunkSize()));
}

template <typename T>
struct IsInterleaved {
  static constexpr bool kValue = false;
};
template <>
struct IsInterleaved<BFloat16> {
  static constexpr bool kValue = true;
};
template <>
struct IsInterleaved<Float16> {
  static constexpr bool kValue = ATTNOPS_HAS_F16_CONVERSION == 0;
};

// Where element i of a row goes in a float32 row of the type's storage order.
template <typename T>
HWY_INLINE std::size_t StorageOffset(std::size_t i) {
  if constexpr (IsInterleaved<T>::kValue) {
    const std::size_t lanes = hn::Lanes(DF());
    const std::size_t in_chunk = i % (2 * lanes);
    return i - in_chunk + in_chunk / 2 + (in_chunk % 2) * lanes;
  } else {
    return i;
  }
}

// Which element is at `offset` of such a row: the inverse of StorageOffset.
template <typename T>
HWY_INLINE std::size_t ElementAt(std::size_t offset) {
  if constexpr (IsInterleaved<T>::kValue) {
    const std::size_t lanes = hn::Lanes(DF());
    const std::size_t in_chunk = offset % (2 * lanes);
    return offset - in_chunk + in_chunk % lanes * 2 + in_chunk / lanes;
  } else {
    return offset;
  }
}

// The lanes of a chunk that hold its first n elements.
using ChunkMask = Pack<2, MF>;
template <typename T>
HWY_INLINE ChunkMask FirstElements(std::size_t n) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  if constexpr (IsInterleaved<T>::kValue) {
    return {{hn::FirstN(d, (n + 1) / 2), hn::FirstN(d, n / 2)}};
  } else {
    return {{hn::FirstN(d, std::min(n, lanes)), hn::FirstN(d, n < lanes ? 0 : n - lanes)}};
  }
}

// Which bits of a NaN's payload may be set: any, or only those that bfloat16 keeps. kUpper saves
// a check when rounding. It holds for all results computed from 16-bit tensors: arithmetic passes
// an operand's payload on or makes a NaN of its own.
enum class Payload { kAny, kUpper };

// The upper 16 bits of the result are v rounded to bfloat16, to nearest even; the
// lower ones are arbitrary. A NaN stays one: quiet, with its upper payload.
template <Payload kPayload>
HWY_INLINE VU RoundToBFloat16(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
#if ATTNOPS_HAS_AVX512
  const VU rounded =
      hn::IfThenElse(hn::TestBit(bits, hn::Set(du, 0x10000u)), hn::Add(bits, hn::Set(du, 0x8000u)),
                     hn::Add(bits, hn::Set(du, 0x7fffu)));
#else
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
#endif
  if constexpr (kPayload == Payload::kUpper) return rounded;
  const VU quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

// A float16 in the lower half of each lane, upper half 0, as float32.
HWY_INLINE VF PromoteFloat16Bits(VU half) {
  const DF d;
  const DU du;
  const VU sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const VU magnitude = hn::And(half, hn::Set(du, 0x7fffu));
  // Rebiased by 112; Inf and NaN (exponent 31) by another 112 to 255.
  VU bits = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, 112u << 23));
  const hn::RebindToSigned<DU> di;
  const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff));
  bits = hn::Add(bits, hn::IfThenElseZero(hn::RebindMask(du, special), hn::Set(du, 112u << 23)));
  // Subnormals are the integer times 2^-24.
  const auto small = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x400));
  const VF tiny = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24f));
  const VF value = hn::IfThenElse(hn::RebindMask(d, small), tiny, hn::BitCast(d, bits));
  return hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
}

// v rounded to float16, to nearest even, in the lower half of each lane.
HWY_INLINE VU DemoteToFloat16Bits(VF v) {
  const DF d;
  const DU du;
  const hn::RebindToSigned<DU> di;
  const VU all = hn::BitCast(du, v);
  const VU sign = hn::And(hn::ShiftRight<16>(all), hn::Set(du, 0x8000u));
  const VU bits = hn::And(all, hn::Set(du, 0x7fffffffu));
  // Normal results: rebias by −112 and round off 13 bits; a carry runs into the
  // exponent, and from 65520 on into Inf.
  const VU odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
  const VU normal = hn::ShiftRight<13>(
      hn::Add(hn::Sub(hn::Add(bits, odd), hn::Set(du, 112u << 23)), hn::Set(du, 0xfffu)));
  // Below 2^-14 a unit is 2^-24, the last bit of a float32 next to 0.5.
  const VU magic = hn::Set(du, 126u << 23);
  const VU tiny =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, bits), hn::BitCast(d, magic))), magic);
  const auto signed_bits = hn::BitCast(di, bits);
  const auto is_tiny = hn::Lt(signed_bits, hn::Set(di, 113 << 23));
  const auto is_large = hn::Gt(signed_bits, hn::Set(di, (143 << 23) - 1));
  const auto is_nan = hn::Gt(signed_bits, hn::Set(di, 255 << 23));
  VU result = hn::IfThenElse(hn::RebindMask(du, is_tiny), tiny, normal);
  result = hn::IfThenElse(hn::RebindMask(du, is_large), hn::Set(du, 0x7c00u), result);
  result = hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, 0x7e00u), result);
  return hn::Or(result, sign);
}

HWY_INLINE Chunk LoadChunk(const float* from) {
  const DF d;
  return {{hn::LoadU(d, from), hn::LoadU(d, from + hn::Lanes(d))}};
}

#if ATTNOPS_ONE_LANE

// One lane: two elements, each in a vector of its own.
HWY_INLINE Chunk LoadChunk(const BFloat16* from) {
  const DF d;
  return {{hn::Set(d, ToFloat(from[0])), hn::Set(d, ToFloat(from[1]))}};
}
HWY_INLINE Chunk LoadChunk(const Float16* from) {
  const DF d;
  return {{hn::Set(d, ToFloat(from[0])), hn::Set(d, ToFloat(from[1]))}};
}

#else

// A chunk of 16-bit values, two in each 32-bit lane.
using DU16 = hn::Repartition<std::uint16_t, DU>;
template <typename T>
HWY_INLINE VU LoadPacked(const T* from) {
  return hn::BitCast(DU(), hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(from)));
}

// Splits lanes that hold two elements each into two vectors, for the interleaved types.
template <typename T>
HWY_INLINE Chunk SplitPacked(VU packed) {
  const DF d;
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {{hn::BitCast(d, hn::ShiftLeft<16>(packed)),
             hn::BitCast(d, hn::And(packed, hn::Set(DU(), 0xffff0000u)))}};
  } else {
    return {{PromoteFloat16Bits(hn::And(packed, hn::Set(DU(), 0xffffu))),
             PromoteFloat16Bits(hn::ShiftRight<16>(packed))}};
  }
}

HWY_INLINE Chunk LoadChunk(const BFloat16* from) { return SplitPacked<BFloat16>(LoadPacked(from)); }

HWY_INLINE Chunk LoadChunk(const Float16* from) {
#if ATTNOPS_HAS_F16_CONVERSION
  const DF d;
  const hn::Rebind<hwy::float16_t, DF> d16;
  const auto* p = reinterpret_cast<const hwy::float16_t*>(from);
  return {
      {hn::PromoteTo(d, hn::LoadU(d16, p)), hn::PromoteTo(d, hn::LoadU(d16, p + hn::Lanes(d)))}};
#else
  return SplitPacked<Float16>(LoadPacked(from));
#endif
}

#endif  // ATTNOPS_ONE_LANE

// A chunk as it is stored: in the type's bits, one vector of 16-bit values or two of float32.
template <Payload kPayload = Payload::kAny>
HWY_INLINE Chunk ToStored(const Chunk& chunk, const float* /*type*/) {
  return chunk;
}

#if ATTNOPS_ONE_LANE

// One lane: two elements, each in a vector of its own.
using DU16 = hn::ScalableTag<std::uint16_t>;
using VU16 = hn::Vec<DU16>;
HWY_INLINE Pack<2, VU16> PackScalars(VU first, VU second) {
  const DU16 d;
  return {{hn::Set(d, static_cast<std::uint16_t>(hn::GetLane(first))),
           hn::Set(d, static_cast<std::uint16_t>(hn::GetLane(second)))}};
}
template <Payload kPayload = Payload::kAny>
HWY_INLINE Pack<2, VU16> ToStored(const Chunk& chunk, const BFloat16* /*type*/) {
  return PackScalars(hn::ShiftRight<16>(RoundToBFloat16<kPayload>(chunk.v[0])),
                     hn::ShiftRight<16>(RoundToBFloat16<kPayload>(chunk.v[1])));
}
template <Payload kPayload = Payload::kAny>
HWY_INLINE Pack<2, VU16> ToStored(const Chunk& chunk, const Float16* /*type*/) {
  return PackScalars(DemoteToFloat16Bits(chunk.v[0]), DemoteToFloat16Bits(chunk.v[1]));
}

#else

using VU16 = hn::Vec<DU16>;
template <Payload kPayload = Payload::kAny>
HWY_INLINE Pack<1, VU16> ToStored(const Chunk& chunk, const BFloat16* /*type*/) {
  const VU even = hn::ShiftRight<16>(RoundToBFloat16<kPayload>(chunk.v[0]));
  const VU odd = RoundToBFloat16<kPayload>(chunk.v[1]);
  return {{hn::OddEven(hn::BitCast(DU16(), odd), hn::BitCast(DU16(), even))}};
}

template <Payload kPayload = Payload::kAny>
HWY_INLINE Pack<1, VU16> ToStored(const Chunk& chunk, const Float16* /*type*/) {
#if ATTNOPS_HAS_F16_CONVERSION
  const hn::Rebind<hwy::float16_t, DF> d16;
  const hn::Half<DU16> half;
  return {{hn::Combine(DU16(), hn::BitCast(half, hn::DemoteTo(d16, chunk.v[1])),
                       hn::BitCast(half, hn::DemoteTo(d16, chunk.v[0])))}};
#else
  return {{hn::BitCast(DU16(), hn::Or(DemoteToFloat16Bits(chunk.v[0]),
                                      hn::ShiftLeft<16>(DemoteToFloat16Bits(chunk.v[1]))))}};
#endif
}

#endif  // ATTNOPS_ONE_LANE

// The bits of an element: float for float32, else 16 bits.
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, float, std::uint16_t>;

// Writes a chunk through the caches or, if streamed, past them; a streamed `to` must be aligned to
// the vector size.
template <typename T, int N, class V>
HWY_INLINE void StoreBits(const Pack<N, V>& stored, T* to, bool streamed) {
  const hn::DFromV<V> d;
  auto* bits = reinterpret_cast<BitsOf<T>*>(to);
  for (int i = 0; i < N; ++i) {
    if (streamed) {
      hn::Stream(stored.v[i], d, bits + i * hn::Lanes(d));
    } else {
      hn::StoreU(stored.v[i], d, bits + i * hn::Lanes(d));
    }
  }
}

template <Payload kPayload = Payload::kAny, typename T>
HWY_INLINE void StoreChunk(const Chunk& chunk, T* to) {
  StoreBits(ToStored<kPayload>(chunk, to), to, false);
}

// LoadChunk and StoreChunk for the first n ≤ ChunkSize() elements: nothing is read or written
// past them, and the missing ones are loaded as 0.
template <typename T>
HWY_INLINE Chunk LoadChunkN(const T* from, std::size_t n) {
  if (HWY_LIKELY(n == ChunkSize())) return LoadChunk(from);
#if ATTNOPS_HAS_AVX512
  // Lanes that are masked out are not read.
  if constexpr (std::is_same_v<T, BFloat16>) {
    const DU16 d;
    const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
    return SplitPacked<T>(hn::BitCast(DU(), hn::MaskedLoad(hn::FirstN(d, n), d, bits)));
  }
#endif
  alignas(64) T buffer[kMaxChunk];
  std::memset(buffer, 0, sizeof(buffer));
  std::memcpy(buffer, from, n * sizeof(T));
  return LoadChunk(buffer);
}

template <Payload kPayload = Payload::kAny, typename T>
HWY_INLINE void StoreChunkN(const Chunk& chunk, T* to, std::size_t n) {
  if (HWY_LIKELY(n == ChunkSize())) return StoreChunk<kPayload>(chunk, to);
  alignas(64) T buffer[kMaxChunk];
  StoreChunk<kPayload>(chunk, buffer);
  std::memcpy(to, buffer, n * sizeof(T));
}

// K consecutive chunks, K a power of two.
template <int K, typename T>
HWY_INLINE Pack<2 * K> LoadChunks(const T* from) {
  if constexpr (K == 1) {
    return LoadChunk(from);
  } else {
    return Join(LoadChunks<K / 2>(from), LoadChunks<K / 2>(from + K / 2 * ChunkSize()));
  }
}
template <int K, Payload kPayload = Payload::kAny, typename T>
HWY_INLINE void StoreChunks(const Pack<2 * K>& chunks, T* to, bool streamed = false) {
  if constexpr (K == 1) {
    StoreBits(ToStored<kPayload>(chunks, to), to, streamed);
  } else {
    StoreChunks<K / 2, kPayload>(FirstHalf(chunks), to, streamed);
    StoreChunks<K / 2, kPayload>(SecondHalf(chunks), to + K / 2 * ChunkSize(), streamed);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_IO_INL_H_
