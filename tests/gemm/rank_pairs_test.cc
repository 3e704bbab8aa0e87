// Scores and weights of pairs of ranks: what they compute, in plain code, and the same bits by the
// instructions where the CPU has them.
#include "src/gemm/rank_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/core/numeric.h"
#include "tests/support/random.h"

namespace attnops {
namespace {

using testing::RandomNormal;

constexpr std::int64_t kLanes = RankScores::kLanes;

struct Spec {
  std::int64_t tokens, heads, ranks, features;
  bool bytes = false;
  bool unusual = false;
};

float Flushed(float value) {
  return std::abs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}
std::uint16_t Rounded(float value) {
  const std::uint32_t bits = BitsFromFloat(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// Memory that starts at a multiple of a vector's size.
template <typename T>
class Aligned {
 public:
  explicit Aligned(std::int64_t size) : storage_(size + 64 / sizeof(T)) {
    void* at = storage_.data();
    std::size_t space = storage_.size() * sizeof(T);
    data_ = static_cast<T*>(std::align(64, size * sizeof(T), at, space));
  }
  T* data() const { return data_; }
  T& operator[](std::int64_t i) const { return data_[i]; }

 private:
  std::vector<T> storage_;
  T* data_;
};

// The arguments of both functions, with random numbers.
class Case {
 public:
  explicit Case(const Spec& spec)
      : spec_(spec),
        steps_(DivideUp(spec.features, RankScores::kFeatures)),
        groups_(DivideUp(spec.ranks, RankScores::kRanks)),
        pairs_(DivideUp(spec.ranks, 2)),
        places_(RoundUp(spec.heads, kLanes)),
        keys_(2 * spec.tokens * KeyStride()),
        bq_(groups_ * steps_ * kLanes),
        aq_(places_ * pairs_),
        scales_(2 * spec.tokens),
        products_(spec.tokens * groups_ * RankScores::kRanks),
        scores_(spec.tokens * places_),
        max_(places_),
        new_max_(places_),
        factors_(spec.tokens * (4 * spec.heads + 3)),
        rows_(spec.tokens) {
    std::fill_n(bq_.data(), groups_ * steps_ * kLanes, 0u);
    std::fill_n(aq_.data(), places_ * pairs_, 0u);
    for (std::int64_t row = 0; row < 2 * spec.tokens; ++row) {
      for (std::int64_t i = 0; i < spec.features; ++i) keys_[row * KeyStride() + i].bits = Next();
    }
    for (std::int64_t r = 0; r < spec.ranks; ++r) {
      for (std::int64_t i = 0; i < spec.features; ++i) {
        Put(bq_[(r / 8 * steps_ + i / 4) * kLanes + r % 8 * 2 + i / 2 % 2], i % 2, Next());
      }
    }
    for (std::int64_t h = 0; h < spec.heads; ++h) {
      for (std::int64_t r = 0; r < spec.ranks; ++r) {
        Put(aq_[(h / kLanes * pairs_ + r / 2) * kLanes + h % kLanes], r % 2, Next());
      }
    }
    for (std::int64_t i = 0; i < 2 * spec.tokens; ++i) scales_[i] = 0.05f + 0.01f * (i % 7);
    std::fill_n(max_.data(), places_, -1.0f);
    for (std::int64_t token = 0; token < spec.tokens; ++token) {
      // Rows at odd addresses, the last one at the end of its memory.
      std::uint8_t* row = factors_.data() + token * (4 * spec.heads + 3);
      rows_[token] = row;
      for (std::int64_t i = 0; i < 2 * spec.heads; ++i) {
        const std::uint16_t bits = Next();
        if (spec.bytes) {
          row[i] = static_cast<std::uint8_t>(bits);
        } else {
          std::memcpy(row + 2 * i, &bits, 2);
        }
      }
    }
  }

  std::vector<float> Scores(const RankPairKernels& kernels) {
    kernels.score({spec_.tokens, keys_.data(), KeyStride(), steps_, spec_.ranks, bq_.data(),
                   aq_.data(), scales_.data(), products_.data(), Heads(), scores_.data(), places_,
                   max_.data(), new_max_.data()});
    std::vector<float> result;
    for (std::int64_t token = 0; token < spec_.tokens; ++token) {
      result.insert(result.end(), &scores_[token * places_],
                    &scores_[token * places_] + spec_.heads);
    }
    result.insert(result.end(), new_max_.data(), new_max_.data() + spec_.heads);
    return result;
  }
  // Of weights p between 0 and 1, as numbers.
  std::vector<float> Weights(const RankPairKernels& kernels) {
    for (std::int64_t i = 0; i < spec_.tokens * places_; ++i) scores_[i] = P(i);
    kernels.weigh({spec_.tokens, Heads(), scales_.data(), scores_.data(), places_});
    std::vector<float> result;
    for (std::int64_t token = 0; token < spec_.tokens; ++token) {
      for (std::int64_t h = 0; h < spec_.heads; ++h) {
        const std::uint32_t pair = BitsFromFloat(scores_[token * places_ + h]);
        result.push_back(FloatFromBits(pair << 16));
        result.push_back(FloatFromBits(pair & 0xffff0000u));
      }
    }
    return result;
  }

  // In double, from P as it is rounded.
  void CheckScores() {
    const std::vector<float> scores = Scores(RankPairsPlain());
    std::vector<double> most(spec_.heads, -1.0);
    for (std::int64_t token = 0; token < spec_.tokens; ++token) {
      for (std::int64_t h = 0; h < spec_.heads; ++h) {
        double score = 0, size = 0;
        for (int s = 0; s < 2; ++s) {
          for (std::int64_t r = 0; r < spec_.ranks; ++r) {
            double product = 0, product_size = 0;
            for (std::int64_t i = 0; i < spec_.features; ++i) {
              const double term =
                  Half(bq_[(r / 8 * steps_ + i / 4) * kLanes + r % 8 * 2 + i / 2 % 2], i % 2) *
                  ToFloat(keys_[(2 * token + s) * KeyStride() + i]);
              product += term;
              product_size += std::abs(term);
            }
            const double aq = Half(aq_[(h / kLanes * pairs_ + r / 2) * kLanes + h % kLanes], r % 2);
            const double factor = scales_[2 * token + s] * aq * Factor(token, h, s);
            score += factor * product;
            size += std::abs(factor) * product_size;
          }
        }
        const float result = scores[token * spec_.heads + h];
        ASSERT_NEAR(result, score, size * 0x1p-8) << "token " << token << ", head " << h;
        most[h] = std::max<double>(most[h], result);
      }
    }
    for (std::int64_t h = 0; h < spec_.heads; ++h) {
      ASSERT_EQ(scores[spec_.tokens * spec_.heads + h], most[h]);
    }
  }
  void CheckWeights() {
    const std::vector<float> weights = Weights(RankPairsPlain());
    for (std::int64_t token = 0; token < spec_.tokens; ++token) {
      for (std::int64_t h = 0; h < spec_.heads; ++h) {
        for (int u = 0; u < 2; ++u) {
          const float scale = spec_.bytes ? scales_[2 * token + u] : 1.0f;
          const float weight = Factor(token, h, u) * scale * P(token * places_ + h);
          ASSERT_EQ(weights[2 * (token * spec_.heads + h) + u],
                    FloatFromBits(std::uint32_t{Rounded(Flushed(weight))} << 16));
        }
      }
    }
  }

 private:
  std::int64_t KeyStride() const { return steps_ * RankScores::kFeatures + 4; }
  HeadPairs Heads() const { return {rows_.data(), spec_.bytes, spec_.heads}; }
  static float P(std::int64_t i) { return static_cast<float>(i % 101) / 101.0f; }
  static void Put(std::uint32_t& pair, std::int64_t half, std::uint16_t bits) {
    pair |= static_cast<std::uint32_t>(bits) << (16 * half);
  }
  static float Half(std::uint32_t pair, std::int64_t half) {
    return FloatFromBits(half == 0 ? pair << 16 : pair & 0xffff0000u);
  }
  float Factor(std::int64_t token, std::int64_t h, int r) const {
    const std::uint8_t* row = static_cast<const std::uint8_t*>(rows_[token]);
    if (spec_.bytes) return static_cast<float>(static_cast<std::int8_t>(row[2 * h + r]));
    std::uint16_t bits;
    std::memcpy(&bits, row + 2 * (2 * h + r), 2);
    return FloatFromBits(std::uint32_t{bits} << 16);
  }
  std::uint16_t Next() {
    static constexpr float kUnusual[] = {0.0f,     -0.0f,     0x1p-127f, -0x1p-130f,
                                         0x1p-70f, -0x1p-63f, INFINITY,  NAN};
    if (used_ == static_cast<std::int64_t>(values_.size())) {
      values_ = RandomNormal(4096, ++seed_);
      used_ = 0;
    }
    const auto value = static_cast<float>(values_[used_++]);
    const bool takes = spec_.unusual && used_ % 97 == 0;
    return Rounded(takes ? kUnusual[used_ / 97 % 8] : value);
  }

  Spec spec_;
  std::vector<double> values_;
  std::int64_t used_ = 0;
  std::uint32_t seed_ = 100;
  std::int64_t steps_, groups_, pairs_, places_;
  std::vector<BFloat16> keys_;
  Aligned<std::uint32_t> bq_, aq_;
  std::vector<float> scales_;
  Aligned<std::uint32_t> products_;
  Aligned<float> scores_;
  Aligned<float> max_, new_max_;
  std::vector<std::uint8_t> factors_;
  std::vector<const void*> rows_;
};

std::vector<Spec> Specs() {
  std::vector<Spec> specs;
  for (const std::int64_t heads : {1, 15, 16, 17, 34, 47, 61, 78, 97, 130}) {
    for (const std::int64_t ranks : {1, 2, 5, 6, 8, 9, 16, 17}) {
      specs.push_back({.tokens = heads % 2 == 0 ? 64 : 13,
                       .heads = heads,
                       .ranks = ranks,
                       .features = heads % 3 == 0 ? 64 : 30,
                       .bytes = (heads + ranks) % 2 == 0});
    }
  }
  return specs;
}

TEST(RankPairs, Scores) {
  for (const Spec& spec : Specs()) Case(spec).CheckScores();
}

TEST(RankPairs, Weights) {
  for (const Spec& spec : Specs()) Case(spec).CheckWeights();
}

// NaNs may have other payloads.
std::vector<std::uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::isnan(value) ? 0x7fc00000u : BitsFromFloat(value));
  }
  return bits;
}

TEST(RankPairs, SameBitsByInstructions) {
  if (DotTileAvx512() == nullptr) return;
  for (Spec spec : Specs()) {
    for (const bool unusual : {false, true}) {
      spec.unusual = unusual;
      Case c(spec);
      EXPECT_EQ(BitsOf(c.Scores(RankPairsAvx512())), BitsOf(c.Scores(RankPairsPlain())))
          << spec.heads << " heads, " << spec.ranks << " ranks";
      EXPECT_EQ(BitsOf(c.Weights(RankPairsAvx512())), BitsOf(c.Weights(RankPairsPlain())))
          << spec.heads << " heads";
    }
  }
}

}  // namespace
}  // namespace attnops
