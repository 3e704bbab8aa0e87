// The SIMD layer's functions on arrays, on the chosen target, for its tests.
#ifndef ATTNOPS_TESTS_SIMD_FUNCTIONS_H_
#define ATTNOPS_TESTS_SIMD_FUNCTIONS_H_

#include <cstddef>
#include <cstdint>

#include "attnops/types.h"

namespace attnops::simd {

void ConvertFromFloat(const float* from, Float16* to, std::size_t n);
void ConvertFromFloat(const float* from, BFloat16* to, std::size_t n);
void ConvertToFloat(const Float16* from, float* to, std::size_t n);
void ConvertToFloat(const BFloat16* from, float* to, std::size_t n);
void Exp(const float* x, float* y, std::size_t n);
void Sigmoid(const float* x, float* y, std::size_t n);
// As they are computed for tensors of 16-bit types; exp for x ≤ 88.
void ExpFor16Bit(const float* x, float* y, std::size_t n);
void SigmoidFor16Bit(const float* x, float* y, std::size_t n);
// The angle is phase · 2π/2^32.
void SinCosTurns(const std::uint32_t* phase, float* sin, float* cos, std::size_t n);

}  // namespace attnops::simd

#endif  // ATTNOPS_TESTS_SIMD_FUNCTIONS_H_
