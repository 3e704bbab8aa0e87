// Scores and weights of rank_pairs.h in plain code, with the bits of the instructions.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/core/numeric.h"
#include "src/gemm/rank_pairs.h"

namespace attnops {
namespace {

constexpr int kLanes = RankScores::kLanes;

float WithoutDenormals(float value) {
  return std::abs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}
float HalfOf(std::uint32_t pair, int half) {
  return FloatFromBits(half == 0 ? pair << 16 : pair & 0xffff0000u);
}
// (sum + second·second) + first·first. A product of two bfloat16 is exact.
float Dot(float sum, std::uint32_t a, std::uint32_t b) {
  for (const int half : {1, 0}) {
    const float product = WithoutDenormals(HalfOf(a, half)) * WithoutDenormals(HalfOf(b, half));
    sum = WithoutDenormals(product + sum);
  }
  return sum;
}
std::uint32_t Round(float value) {
  value = WithoutDenormals(value);
  const std::uint32_t bits = BitsFromFloat(value);
  if (std::isnan(value)) return (bits | 0x400000u) >> 16;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// Number r of the pair of head h of a token.
float Factor(const HeadPairs& of, std::int64_t token, std::int64_t h, int r) {
  if (h >= of.heads) return 0;
  const char* row = static_cast<const char*>(of.rows[token]);
  if (of.bytes) return static_cast<float>(static_cast<signed char>(row[2 * h + r]));
  std::uint32_t pair;
  std::memcpy(&pair, row + 4 * h, sizeof(pair));
  return HalfOf(pair, r);
}

// Whole vectors, if a row has room for them.
std::int64_t PlacesOf(const HeadPairs& of, std::ptrdiff_t stride) {
  return std::min<std::int64_t>(RoundUp(of.heads, std::int64_t{kLanes}), stride);
}

void Score(const RankScores& of) {
  const std::int64_t groups = DivideUp(of.ranks, RankScores::kRanks);
  const std::int64_t pairs = DivideUp(of.ranks, std::int64_t{2});
  const std::int64_t places = PlacesOf(of.ak, of.score_stride);
  std::copy_n(of.max, places, of.new_max);
  for (std::int64_t token = 0; token < of.tokens; ++token) {
    std::uint32_t* products = of.products + token * groups * RankScores::kRanks;
    for (std::int64_t group = 0; group < groups; ++group) {
      for (int s = 0; s < 2; ++s) {
        std::uint32_t rounded[RankScores::kRanks];
        for (int r = 0; r < RankScores::kRanks; ++r) {
          float sums[2] = {0, 0};
          for (std::int64_t i = 0; i < 2 * of.steps; ++i) {
            std::uint32_t key;
            std::memcpy(&key, of.keys + (2 * token + s) * of.key_stride + 2 * i, sizeof(key));
            float& sum = sums[i % 2];
            sum = Dot(sum, of.bq[(group * of.steps + i / 2) * kLanes + 2 * r + i % 2], key);
          }
          rounded[r] = Round((sums[0] + sums[1]) * of.scales[2 * token + s]);
        }
        for (int j = 0; j < 4; ++j) {
          products[group * RankScores::kRanks + 4 * s + j] = rounded[2 * j] | rounded[2 * j + 1]
                                                                                  << 16;
        }
      }
    }
    for (std::int64_t h = 0; h < places; ++h) {
      float sums[2] = {0, 0};
      for (int s = 0; s < 2; ++s) {
        for (std::int64_t j = 0; j < pairs; ++j) {
          const std::uint32_t aq = of.aq[(h / kLanes * pairs + j) * kLanes + h % kLanes];
          sums[s] = Dot(sums[s], aq, products[j / 4 * RankScores::kRanks + 4 * s + j % 4]);
        }
      }
      const float score =
          std::fma(Factor(of.ak, token, h, 1), sums[1], Factor(of.ak, token, h, 0) * sums[0]);
      of.scores[token * of.score_stride + h] = score;
      if (score > of.new_max[h]) of.new_max[h] = score;
    }
  }
}

void Weigh(const RankWeights& of) {
  const std::int64_t places = PlacesOf(of.av, of.stride);
  for (std::int64_t token = 0; token < of.tokens; ++token) {
    for (std::int64_t h = 0; h < places; ++h) {
      float* at = of.weights + token * of.stride + h;
      std::uint32_t halves[2];
      for (int u = 0; u < 2; ++u) {
        const float scale = of.av.bytes ? of.scales[2 * token + u] : 1.0f;
        halves[u] = Round(Factor(of.av, token, h, u) * scale * *at);
      }
      const std::uint32_t pair = halves[0] | halves[1] << 16;
      std::memcpy(at, &pair, sizeof(pair));
    }
  }
}

}  // namespace

const RankPairKernels& RankPairsPlain() {
  static constexpr RankPairKernels kKernels{Score, Weigh};
  return kKernels;
}

}  // namespace attnops
