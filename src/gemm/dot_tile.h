// The microkernel of bfloat16 products: a function, so that each way to compute it is one file.
#ifndef ATTNOPS_SRC_GEMM_DOT_TILE_H_
#define ATTNOPS_SRC_GEMM_DOT_TILE_H_

#include <cstddef>
#include <cstdint>

#include "src/core/target.h"
#include "src/gemm/prefetch.h"

namespace attnops {

// A tile of a product whose operands are bfloat16, in pairs along the summed axis: a pair is 32
// bits, its first element the lower half. For each row i, and each column of some chunks,
//   sums[i] = Σ_k left[i,k].first·right[k].first + left[i,k].second·right[k].second
// A step computes (sum + second·second) + first·first, each to nearest even in float32; denormal
// operands and sums count as 0.
struct DotTileArguments {
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxChunks = 2;
  // Of a tile of one vector.
  static constexpr int kMaxNarrowRows = 16;

  // Pair k of row i is at left + i·left_row + k·left_step bytes.
  const void* left;
  std::ptrdiff_t left_row, left_step;
  // Pairs of a chunk of columns, step after step; the next chunk is right_panel further.
  const float* right;
  std::ptrdiff_t right_panel;
  std::int64_t depth;  // pairs
  int rows;
  int vectors;  // of columns: those of one or two chunks, or 1, the first one of a chunk
  // The chunk c of row i goes to sums + i·sums_row + c·sums_chunk.
  float* sums;
  std::ptrdiff_t sums_row, sums_chunk;
  Prefetcher* prefetcher;  // stepped every kSteps pairs

  static constexpr std::int64_t kSteps = 16;
};
using DotTile = void (*)(const DotTileArguments& tile);

// The best microkernel for a target: null if the CPU does not multiply bfloat16 faster than
// float32, or the target may not use its instructions.
DotTile FindDotTile(TargetIndex target);

// For tests: while it is switched on, FindDotTile gives one in plain vector code, with the same
// bits, where there are no instructions for it. Each `true` needs its `false`, so that tests may
// overlap. Also switched on by the environment variable ATTNOPS_EMULATE_BF16=1.
void SwitchDotTileEmulation(bool on);

// With AVX512_BF16; null elsewhere.
DotTile DotTileAvx512();
// Many of its instructions in registers, for measuring their peak: returns the operations done,
// `sink` keeps the result. Only where DotTileAvx512() is not null.
double DotPairsAvx512(std::int64_t rounds, float* sink);

}  // namespace attnops

#endif  // ATTNOPS_SRC_GEMM_DOT_TILE_H_
