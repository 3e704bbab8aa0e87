// The tile of bfloat16 products with AVX512_BF16. Intrinsics with a target attribute, chosen by
// CPUID: older versions of Highway have no target with these instructions.
#include "src/gemm/dot_tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace attnops {
namespace {

#define ATTNOPS_BF16_ATTRIBUTE __attribute__((target("avx512f,avx512bf16")))

constexpr int kLanes = 16;
constexpr int kChunk = 2 * kLanes;
// Steps ahead that lines of a left operand are fetched which has a line for each step.
constexpr int kStepsAhead = 8;

template <int kRows, int kVectors>
ATTNOPS_BF16_ATTRIBUTE void Run(const DotTileArguments& tile) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[row][v] = _mm512_setzero_ps();
  }
  const char* left = static_cast<const char*>(tile.left);
  const float* right = tile.right;
  const bool far_steps = tile.left_step >= 64;
  for (std::int64_t k = 0; k < tile.depth; k += DotTileArguments::kSteps) {
    tile.prefetcher->Step();
    if (!far_steps) {
      // The rows of the next tile.
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        __builtin_prefetch(left + (row + kRows) * tile.left_row, 0, 3);
      }
    }
    const std::int64_t steps = std::min(DotTileArguments::kSteps, tile.depth - k);
    for (std::int64_t step = 0; step < steps; ++step) {
      if (far_steps) __builtin_prefetch(left + kStepsAhead * tile.left_step, 0, 3);
      __m512bh vectors[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        vectors[v] = reinterpret_cast<__m512bh>(
            _mm512_load_ps(right + v / 2 * tile.right_panel + v % 2 * kLanes));
      }
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        int pair;
        std::memcpy(&pair, left + row * tile.left_row, sizeof(pair));
        const auto broadcast = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sums[row][v] = _mm512_dpbf16_ps(sums[row][v], broadcast, vectors[v]);
        }
      }
      left += tile.left_step;
      right += kChunk;
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      _mm512_store_ps(tile.sums + row * tile.sums_row + v / 2 * tile.sums_chunk + v % 2 * kLanes,
                      sums[row][v]);
    }
  }
}

template <int kVectors>
void RunRows(const DotTileArguments& tile) {
  switch (tile.rows) {
    case 1:
      return Run<1, kVectors>(tile);
    case 2:
      return Run<2, kVectors>(tile);
    case 3:
      return Run<3, kVectors>(tile);
    case 4:
      return Run<4, kVectors>(tile);
    case 5:
      return Run<5, kVectors>(tile);
    default:
      return Run<6, kVectors>(tile);
  }
}

// Rows of one vector: as many at a time as have a function of their own.
void RunNarrow(DotTileArguments tile) {
  const auto take = [&](int rows) {
    tile.left = static_cast<const char*>(tile.left) + rows * tile.left_row;
    tile.sums += rows * tile.sums_row;
    tile.rows -= rows;
  };
  if (tile.rows >= DotTileArguments::kMaxNarrowRows) {
    return Run<DotTileArguments::kMaxNarrowRows, 1>(tile);
  }
  for (; tile.rows > 0; take(std::min(tile.rows, DotTileArguments::kMaxRows))) RunRows<1>(tile);
}

void RunTile(const DotTileArguments& tile) {
  switch (tile.vectors) {
    case 1:
      return RunNarrow(tile);
    case 2:
      return RunRows<2>(tile);
    default:
      return RunRows<4>(tile);
  }
}

}  // namespace

// As many independent chains as hide the latency of two units: 12 are too few for Zen 5, which then
// shows 0.92 of its peak.
ATTNOPS_BF16_ATTRIBUTE double DotPairsAvx512(std::int64_t rounds, float* sink) {
  constexpr int kChains = 24;
  const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f003f00));  // 0.5, 0.5
  __m512 sums[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
#pragma GCC unroll 24
  for (int i = 1; i < kChains; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  *sink = _mm512_cvtss_f32(sums[0]);
  constexpr double kOperations = 4.0 * kLanes * kChains;
  return kOperations * static_cast<double>(rounds);
}

DotTile DotTileAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16") ? RunTile
                                                                                   : nullptr;
}

}  // namespace attnops

#else

namespace attnops {

DotTile DotTileAvx512() { return nullptr; }
double DotPairsAvx512(std::int64_t, float*) { return 0; }

}  // namespace attnops

#endif
