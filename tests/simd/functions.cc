#include "tests/simd/functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/functions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/core/target.h"
#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::simd {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// A row of T and the same row as float32 in natural order, chunk by chunk.
template <typename T>
void FromFloat(const float* from, T* to, std::size_t n) {
  const std::size_t chunk = ChunkSize();
  alignas(64) float ordered[kMaxChunk];
  for (std::size_t i = 0; i < n; i += chunk) {
    const std::size_t count = std::min(chunk, n - i);
    std::fill_n(ordered, kMaxChunk, 0.0f);
    for (std::size_t k = 0; k < count; ++k) ordered[StorageOffset<T>(k)] = from[i + k];
    StoreChunkN(LoadChunk(ordered), to + i, count);
  }
}

template <typename T>
void ToFloats(const T* from, float* to, std::size_t n) {
  const std::size_t chunk = ChunkSize();
  alignas(64) float ordered[kMaxChunk];
  for (std::size_t i = 0; i < n; i += chunk) {
    const std::size_t count = std::min(chunk, n - i);
    StoreChunk(LoadChunkN(from + i, count), ordered);
    for (std::size_t k = 0; k < count; ++k) to[i + k] = ordered[StorageOffset<T>(k)];
  }
}

void Float16FromFloat(const float* from, Float16* to, std::size_t n) { FromFloat(from, to, n); }
void BFloat16FromFloat(const float* from, BFloat16* to, std::size_t n) { FromFloat(from, to, n); }
void FloatFromFloat16(const Float16* from, float* to, std::size_t n) { ToFloats(from, to, n); }
void FloatFromBFloat16(const BFloat16* from, float* to, std::size_t n) { ToFloats(from, to, n); }

template <class Function>
HWY_INLINE void Map(const float* x, float* y, std::size_t n, const Function& function) {
  const std::size_t chunk = ChunkSize();
  for (std::size_t i = 0; i < n; i += chunk) {
    const std::size_t count = std::min(chunk, n - i);
    const Chunk v = LoadChunkN(x + i, count);
    StoreChunkN(Chunk{{function(v.v[0]), function(v.v[1])}}, y + i, count);
  }
}

void ExpOfArray(const float* x, float* y, std::size_t n) {
  Map(x, y, n, [](VF v) HWY_ATTR { return attnops::HWY_NAMESPACE::Exp(v); });
}
void SigmoidOfArray(const float* x, float* y, std::size_t n) {
  Map(x, y, n, [](VF v) HWY_ATTR {
    return attnops::HWY_NAMESPACE::Sigmoid<Accuracy::kFloat32>(Pack<1>{{v}}).v[0];
  });
}
void ExpFor16BitOfArray(const float* x, float* y, std::size_t n) {
  Map(x, y, n, [](VF v) HWY_ATTR { return ExpNoOverflow<Accuracy::k16Bit>(Pack<1>{{v}}).v[0]; });
}
void SigmoidFor16BitOfArray(const float* x, float* y, std::size_t n) {
  Map(x, y, n, [](VF v) HWY_ATTR {
    return attnops::HWY_NAMESPACE::Sigmoid<Accuracy::k16Bit>(Pack<1>{{v}}).v[0];
  });
}

void SinCosOfArray(const std::uint32_t* phase, float* sin, float* cos, std::size_t n) {
  const DU du;
  const std::size_t lanes = hn::Lanes(du);
  alignas(64) std::uint32_t phases[kMaxChunk];
  alignas(64) float result[kMaxChunk];
  for (std::size_t i = 0; i < n; i += lanes) {
    const std::size_t count = std::min(lanes, n - i);
    std::fill_n(phases, kMaxChunk, 0u);
    std::copy_n(phase + i, count, phases);
    const SinCos both = attnops::HWY_NAMESPACE::SinCosTurns(hn::Load(du, phases));
    hn::Store(both.sin, DF(), result);
    std::copy_n(result, count, sin + i);
    hn::Store(both.cos, DF(), result);
    std::copy_n(result, count, cos + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnops::simd {

ATTNOPS_EXPORT(Float16FromFloat);
ATTNOPS_EXPORT(BFloat16FromFloat);
ATTNOPS_EXPORT(FloatFromFloat16);
ATTNOPS_EXPORT(FloatFromBFloat16);
ATTNOPS_EXPORT(ExpOfArray);
ATTNOPS_EXPORT(SigmoidOfArray);
ATTNOPS_EXPORT(ExpFor16BitOfArray);
ATTNOPS_EXPORT(SigmoidFor16BitOfArray);
ATTNOPS_EXPORT(SinCosOfArray);

void ConvertFromFloat(const float* from, Float16* to, std::size_t n) {
  ATTNOPS_DISPATCH(Float16FromFloat, ChosenTarget())(from, to, n);
}
void ConvertFromFloat(const float* from, BFloat16* to, std::size_t n) {
  ATTNOPS_DISPATCH(BFloat16FromFloat, ChosenTarget())(from, to, n);
}
void ConvertToFloat(const Float16* from, float* to, std::size_t n) {
  ATTNOPS_DISPATCH(FloatFromFloat16, ChosenTarget())(from, to, n);
}
void ConvertToFloat(const BFloat16* from, float* to, std::size_t n) {
  ATTNOPS_DISPATCH(FloatFromBFloat16, ChosenTarget())(from, to, n);
}
void Exp(const float* x, float* y, std::size_t n) {
  ATTNOPS_DISPATCH(ExpOfArray, ChosenTarget())(x, y, n);
}
void Sigmoid(const float* x, float* y, std::size_t n) {
  ATTNOPS_DISPATCH(SigmoidOfArray, ChosenTarget())(x, y, n);
}
void ExpFor16Bit(const float* x, float* y, std::size_t n) {
  ATTNOPS_DISPATCH(ExpFor16BitOfArray, ChosenTarget())(x, y, n);
}
void SigmoidFor16Bit(const float* x, float* y, std::size_t n) {
  ATTNOPS_DISPATCH(SigmoidFor16BitOfArray, ChosenTarget())(x, y, n);
}
void SinCosTurns(const std::uint32_t* phase, float* sin, float* cos, std::size_t n) {
  ATTNOPS_DISPATCH(SinCosOfArray, ChosenTarget())(phase, sin, cos, n);
}

}  // namespace attnops::simd
#endif  // HWY_ONCE
