// Scores and weights of tensor product attention where a token's two ranks are a pair, in bfloat16
// products that are too small for a tile: functions, so that each way to compute them is one file.
#ifndef ATTNOPS_SRC_GEMM_RANK_PAIRS_H_
#define ATTNOPS_SRC_GEMM_RANK_PAIRS_H_

#include <cstddef>
#include <cstdint>

#include "attnops/types.h"
#include "src/gemm/dot_tile.h"

namespace attnops {

// Pairs of bfloat16 are 32 bits, the first number in the lower half. A product of two pairs is
// added to a sum as by a DotTile. Heads are in natural order, `kLanes` of them a vector.

// The factors of heads in ak or av: for each token the address of the pair of its first head. int8
// has 16 bits a pair.
struct HeadPairs {
  const void* const* rows;
  bool bytes;
  std::int64_t heads;
};

// s[m,h] = Σ_s ak[m,h,s]·Σ_r aq[h,r]·P[m,s,r] with P[m,s,r] = scales[m,s]·⟨bk[m,s], bq[r]⟩ rounded.
struct RankScores {
  static constexpr int kLanes = 16;
  // Ranks of bq whose products are a vector, two lanes each: the pairs of even and of odd steps.
  static constexpr std::int64_t kRanks = 8;
  // Features of a step.
  static constexpr std::int64_t kFeatures = 4;

  std::int64_t tokens;
  const BFloat16* keys;  // rows (token, rank) of bk, a whole number of steps
  std::ptrdiff_t key_stride;
  std::int64_t steps;
  std::int64_t ranks;       // R_q
  const std::uint32_t* bq;  // (⌈R_q/8⌉, steps, 16)
  const std::uint32_t* aq;  // (vectors of heads, ⌈R_q/2⌉, 16): pairs of ranks
  const float* scales;      // (tokens, 2)
  std::uint32_t* products;  // for P: (tokens, ⌈R_q/8⌉, 2, 4) pairs of ranks
  HeadPairs ak;
  float* scores;  // (tokens, heads), whole vectors
  std::ptrdiff_t score_stride;
  const float* max;  // of each head before
  float* new_max;    // the larger of it and of the scores
};

// w = p·av in pairs, rounded, in the place of p. The numbers of int8 are times scales[m,u].
struct RankWeights {
  std::int64_t tokens;
  HeadPairs av;
  const float* scales;
  float* weights;
  std::ptrdiff_t stride;
};

struct RankPairKernels {
  void (*score)(const RankScores& scores);
  void (*weigh)(const RankWeights& weights);
};

// With AVX512_BF16, and in plain code, for tests: the same bits.
const RankPairKernels& RankPairsAvx512();
const RankPairKernels& RankPairsPlain();

// Those that go with a tile.
inline const RankPairKernels& RankPairsFor(DotTile dot) {
  return dot == DotTileAvx512() ? RankPairsAvx512() : RankPairsPlain();
}

}  // namespace attnops

#endif  // ATTNOPS_SRC_GEMM_RANK_PAIRS_H_
