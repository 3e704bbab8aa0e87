// Scores and weights of pairs of ranks with AVX512_BF16, by intrinsics with a target attribute (as
// microkernel_bf16_avx512.cc).
#include "src/gemm/rank_pairs.h"

#if defined(__x86_64__)

// g++ 12's own header passes registers on that are not set, and warns of them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace attnops {
namespace {

#define ATTNOPS_BF16_ATTRIBUTE \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define ATTNOPS_BF16_LAMBDA ATTNOPS_BF16_ATTRIBUTE __attribute__((always_inline))
#define ATTNOPS_BF16_INLINE ATTNOPS_BF16_LAMBDA inline

constexpr int kLanes = RankScores::kLanes;
// R_q of the published models: their aq stays in registers.
constexpr int kPublishedPairs = 3, kAnyPairs = 0;

ATTNOPS_BF16_INLINE __m512 Dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
// Two vectors rounded to bfloat16, one behind the other.
ATTNOPS_BF16_INLINE __m512i Round(__m512 lower, __m512 upper) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, lower));
}

// P of kTokens tokens from `first` on.
template <int kTokens>
ATTNOPS_BF16_INLINE void Products(const RankScores& of, std::int64_t first) {
  constexpr int kRows = 2 * kTokens;
  const std::int64_t groups = (of.ranks + RankScores::kRanks - 1) / RankScores::kRanks;
  const __m512i pairs_of_ranks =
      _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30, 28, 26, 24, 22, 20, 18,
                       16, 14, 12, 10, 8, 6, 4, 2, 0);
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::uint32_t* bq = of.bq + group * of.steps * kLanes;
    // Four rows share a base: an offset for each of 16 rows would not fit the registers.
    const std::ptrdiff_t stride = of.key_stride * sizeof(BFloat16);
    const char* keys[(kRows + 3) / 4];
#pragma GCC unroll 4
    for (int i = 0; i < (kRows + 3) / 4; ++i) {
      keys[i] = reinterpret_cast<const char*>(of.keys) + (2 * first + 4 * i) * stride;
    }
    __m512 sums[kRows];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) sums[row] = _mm512_setzero_ps();
    for (std::int64_t step = 0; step < of.steps; ++step) {
      const __m512i right = _mm512_load_si512(bq + step * kLanes);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        long long two_pairs;
        std::memcpy(&two_pairs, keys[row / 4] + row % 4 * stride, sizeof(two_pairs));
        sums[row] = Dot(sums[row], right, _mm512_set1_epi64(two_pairs));
      }
#pragma GCC unroll 4
      for (int i = 0; i < (kRows + 3) / 4; ++i) {
        keys[i] += sizeof(BFloat16) * RankScores::kFeatures;
        asm("" : "+r"(keys[i]));  // or the compiler makes those offsets again
      }
    }
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      __m512 rows[2];
#pragma GCC unroll 2
      for (int s = 0; s < 2; ++s) {
        const __m512 sum = sums[2 * token + s];
        rows[s] = _mm512_mul_ps(_mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1)),
                                _mm512_set1_ps(of.scales[2 * (first + token) + s]));
      }
      const __m512i pairs = _mm512_permutexvar_epi16(pairs_of_ranks, Round(rows[0], rows[1]));
      _mm256_store_si256(reinterpret_cast<__m256i*>(
                             of.products + ((first + token) * groups + group) * RankScores::kRanks),
                         _mm512_castsi512_si256(pairs));
    }
  }
}

// The two numbers of each pair of vector i of a token, as float32.
struct TwoRanks {
  __m512 first, second;
};
template <bool kBytes>
ATTNOPS_BF16_INLINE TwoRanks Load(const void* row, int i, __mmask16 mask) {
  if constexpr (kBytes) {
    const __m512i pairs = _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(mask, static_cast<const char*>(row) + i * kLanes * 2));
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24)),
            _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 24))};
  } else {
    __m512i pairs = _mm512_maskz_loadu_epi32(mask, static_cast<const char*>(row) + i * kLanes * 4);
    // Or both instructions below would load it, which often crosses a line.
    asm("" : "+v"(pairs));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
  }
}
// The lanes of a vector with `left` heads from its first one on.
ATTNOPS_BF16_INLINE __mmask16 MaskOf(std::int64_t left) {
  return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

// Scores of V vectors of heads from vector `begin` on.
template <bool kBytes, int V, int kPairs>
ATTNOPS_BF16_ATTRIBUTE void ScoreVectors(const RankScores& of, std::int64_t begin) {
  const std::int64_t count = (of.ranks + 1) / 2;
  const std::int64_t token_pairs =
      (of.ranks + RankScores::kRanks - 1) / RankScores::kRanks * RankScores::kRanks;
  const std::uint32_t* aq = of.aq + begin * count * kLanes;
  const __mmask16 mask = MaskOf(of.ak.heads - (begin + V - 1) * kLanes);
  __m512i factors[std::max(kPairs, 1)][V];
  if constexpr (kPairs > 0) {
#pragma GCC unroll 4
    for (int r = 0; r < kPairs; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) factors[r][v] = _mm512_load_si512(aq + (v * kPairs + r) * kLanes);
    }
  }
  __m512 most[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) most[v] = _mm512_loadu_ps(of.max + (begin + v) * kLanes);
  for (std::int64_t token = 0; token < of.tokens; ++token) {
    const std::uint32_t* products = of.products + token * token_pairs;
    __m512 sums[2][V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[0][v] = sums[1][v] = _mm512_setzero_ps();
    // The pairs of rank s of bk are 4 behind those of rank 0, group after group.
    const auto add = [&](std::int64_t at, const __m512i* factor) ATTNOPS_BF16_LAMBDA {
#pragma GCC unroll 2
      for (int s = 0; s < 2; ++s) {
        const __m512i product = _mm512_set1_epi32(static_cast<int>(products[at + 4 * s]));
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[s][v] = Dot(sums[s][v], factor[v], product);
      }
    };
    if constexpr (kPairs > 0) {
#pragma GCC unroll 4
      for (int r = 0; r < kPairs; ++r) add(r, factors[r]);
    } else {
      for (std::int64_t r = 0; r < count; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          factors[0][v] = _mm512_load_si512(aq + (v * count + r) * kLanes);
        }
        add(r / 4 * RankScores::kRanks + r % 4, factors[0]);
      }
    }
    const void* row = of.ak.rows[token];
    float* to = of.scores + token * of.score_stride + begin * kLanes;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const TwoRanks ak =
          Load<kBytes>(row, static_cast<int>(begin) + v, v == V - 1 ? mask : 0xffff);
      const __m512 score =
          _mm512_fmadd_ps(ak.second, sums[1][v], _mm512_mul_ps(ak.first, sums[0][v]));
      _mm512_store_ps(to + v * kLanes, score);
      most[v] = _mm512_max_ps(score, most[v]);  // never a NaN where there is a head
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) _mm512_storeu_ps(of.new_max + (begin + v) * kLanes, most[v]);
}

template <bool kBytes, int kPairs>
ATTNOPS_BF16_ATTRIBUTE void ScoreHeads(const RankScores& of) {
  const std::int64_t vectors = (of.ak.heads + kLanes - 1) / kLanes;
  for (std::int64_t v = 0; v < vectors;) {
    const std::int64_t left = vectors - v;
    // aq and the sums of up to four vectors fit into the registers. Five are three and two: the
    // sums of a single vector are too few to hide their latency.
    const std::int64_t taken = left <= 4 ? left : left == 5 ? 3 : 4;
    switch (taken) {
      case 1:
        ScoreVectors<kBytes, 1, kPairs>(of, v);
        break;
      case 2:
        ScoreVectors<kBytes, 2, kPairs>(of, v);
        break;
      case 3:
        ScoreVectors<kBytes, 3, kPairs>(of, v);
        break;
      default:
        ScoreVectors<kBytes, 4, kPairs>(of, v);
    }
    v += taken;
  }
}

ATTNOPS_BF16_ATTRIBUTE void Score(const RankScores& of) {
  constexpr int kTokens = 8;  // as many independent sums as hide the latency of two units
  std::int64_t first = 0;
  for (; first + kTokens <= of.tokens; first += kTokens) Products<kTokens>(of, first);
  for (; first < of.tokens; ++first) Products<1>(of, first);
  const bool published = (of.ranks + 1) / 2 == kPublishedPairs;
  if (of.ak.bytes) {
    published ? ScoreHeads<true, kPublishedPairs>(of) : ScoreHeads<true, kAnyPairs>(of);
  } else {
    published ? ScoreHeads<false, kPublishedPairs>(of) : ScoreHeads<false, kAnyPairs>(of);
  }
}

template <bool kBytes>
ATTNOPS_BF16_ATTRIBUTE void WeighAs(const RankWeights& of) {
  alignas(64) std::uint16_t order[2 * kLanes];
  for (int i = 0; i < kLanes; ++i) {
    order[2 * i] = static_cast<std::uint16_t>(i);
    order[2 * i + 1] = static_cast<std::uint16_t>(kLanes + i);
  }
  const __m512i pairs = _mm512_load_si512(order);
  const auto vectors = static_cast<int>((of.av.heads + kLanes - 1) / kLanes);
  const __mmask16 mask = MaskOf(of.av.heads - (vectors - 1) * kLanes);
  for (std::int64_t token = 0; token < of.tokens; ++token) {
    const void* row = of.av.rows[token];
    float* at = of.weights + token * of.stride;
    const auto weigh = [&](int v, __mmask16 lanes) ATTNOPS_BF16_LAMBDA {
      TwoRanks av = Load<kBytes>(row, v, lanes);
      if constexpr (kBytes) {
        av.first = _mm512_mul_ps(av.first, _mm512_set1_ps(of.scales[2 * token]));
        av.second = _mm512_mul_ps(av.second, _mm512_set1_ps(of.scales[2 * token + 1]));
      }
      const __m512 p = _mm512_load_ps(at + v * kLanes);
      _mm512_store_si512(at + v * kLanes,
                         _mm512_permutexvar_epi16(pairs, Round(_mm512_mul_ps(av.first, p),
                                                               _mm512_mul_ps(av.second, p))));
    };
    for (int v = 0; v < vectors - 1; ++v) weigh(v, 0xffff);
    weigh(vectors - 1, mask);
  }
}

ATTNOPS_BF16_ATTRIBUTE void Weigh(const RankWeights& of) {
  of.av.bytes ? WeighAs<true>(of) : WeighAs<false>(of);
}

}  // namespace

const RankPairKernels& RankPairsAvx512() {
  static constexpr RankPairKernels kKernels{Score, Weigh};
  return kKernels;
}

}  // namespace attnops

#else

namespace attnops {

const RankPairKernels& RankPairsAvx512() { return RankPairsPlain(); }

}  // namespace attnops

#endif
