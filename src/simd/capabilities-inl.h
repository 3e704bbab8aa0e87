// Capabilities of the target that is being compiled. Kernels ask for these and never for a target's
// name: newer versions of Highway have more targets.

#if defined(ATTNOPS_SRC_SIMD_CAPABILITIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_CAPABILITIES_INL_H_
#undef ATTNOPS_SRC_SIMD_CAPABILITIES_INL_H_
#else
#define ATTNOPS_SRC_SIMD_CAPABILITIES_INL_H_
#endif

#include <hwy/highway.h>

#undef ATTNOPS_ONE_LANE
#undef ATTNOPS_HAS_AVX512
#undef ATTNOPS_HAS_FMA
#undef ATTNOPS_HAS_F16_CONVERSION
#undef ATTNOPS_REGISTERS
#undef ATTNOPS_VECTOR_BYTES
#undef ATTNOPS_MIN_MAX_GIVE_SECOND

// Whether a vector has a single lane: nothing can be moved between lanes.
#if HWY_TARGET == HWY_SCALAR
#define ATTNOPS_ONE_LANE 1
#else
#define ATTNOPS_ONE_LANE 0
#endif

// Whether AVX-512 (F, BW, CD, DQ and VL) and its intrinsics may be used. Highway numbers better
// targets lower: all up to AVX3 contain it.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define ATTNOPS_HAS_AVX512 1
#else
#define ATTNOPS_HAS_AVX512 0
#endif

// Whether MulAdd rounds once.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
#define ATTNOPS_HAS_FMA 0
#else
#define ATTNOPS_HAS_FMA 1
#endif

// Whether the CPU converts float16. Elsewhere some versions of Highway store wrong values.
#define ATTNOPS_HAS_F16_CONVERSION ATTNOPS_HAS_FMA

// How many vectors fit into registers.
#if ATTNOPS_HAS_AVX512 || (HWY_ARCH_ARM_A64 && ATTNOPS_HAS_FMA)
#define ATTNOPS_REGISTERS 32
#else
#define ATTNOPS_REGISTERS 16
#endif

// The size of a vector of more than one lane.
#define ATTNOPS_VECTOR_BYTES HWY_MAX_BYTES

// Whether Min and Max give their second operand where one is a NaN. Elsewhere they give the number.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#define ATTNOPS_MIN_MAX_GIVE_SECOND 1
#else
#define ATTNOPS_MIN_MAX_GIVE_SECOND 0
#endif

#endif  // ATTNOPS_SRC_SIMD_CAPABILITIES_INL_H_
