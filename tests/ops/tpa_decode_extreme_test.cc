// tpa_decode with scores far apart, equal scores, NaN and infinities.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/tpa_decode_case.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

void Set(GuardedTensor& tensor, std::int64_t index, double value) {
  Values values = tensor.Values();
  values[index] = value;
  tensor.Fill(values);
}

// Scores of ±10⁴ and more, of random size and in an order that makes the maximum grow at every
// block.
TEST(TpaDecodeExtreme, LargeScores) {
  for (const DType dtype : kTpaTypes) {
    for (const double scale : {1e2, 1e4, -1e4}) {
      TpaCase c({.dtype = dtype,
                 .m = 1300,
                 .heads = 9,
                 .rank = 3,
                 .d = 16,
                 .e = 20,
                 .options = {.scale = scale}});
      OnEveryTarget([&] {
        for (const TpaSplit split : kTpaSplits) c.Check(split);
      });
    }
  }
}

TEST(TpaDecodeExtreme, ScoresThatRiseAndFall) {
  for (const DType dtype : kTpaTypes) {
    for (const double step : {16.0, -16.0}) {
      TpaCase c({.dtype = dtype,
                 .m = 1300,
                 .heads = 2,
                 .rank = 1,
                 .d = 1,
                 .e = 3,
                 .options = {.scale = 1, .scale_q = 1}});
      c.aq.Fill(Values(2, 1));
      c.bq.Fill(Values(1, 1));
      c.ak.Fill(Values(c.ak.size(), 1));
      Values bk(c.bk.size());
      for (std::size_t t = 0; t < bk.size(); ++t) bk[t] = step * std::floor(t / 2.0);
      c.bk.Fill(bk);
      OnEveryTarget([&] {
        for (const TpaSplit split : kTpaSplits) c.Check(split);
      });
    }
  }
}

TEST(TpaDecodeExtreme, EqualScoresAverageTheValues) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t m : {1, 2, 64, 1024}) {
      for (const double score : {0.0, 1e4, -1e4}) {
        TpaCase c({.dtype = dtype,
                   .m = m,
                   .heads = 2,
                   .rank = 1,
                   .d = 1,
                   .e = 2,
                   .options = {.scale = score, .scale_q = 1}});
        for (GuardedTensor* tensor : {&c.aq, &c.ak, &c.av, &c.bq, &c.bk}) {
          tensor->Fill(Values(tensor->size(), 1));
        }
        Values bv(c.bv.size(), 3);
        for (std::size_t i = 0; i < bv.size(); i += 4) bv[i] = 1;
        c.bv.Fill(bv);
        const double mean = m == 1 ? 1 : 2;
        OnEveryTarget([&] {
          for (const TpaSplit split : kTpaSplits) {
            c.Run(split);
            EXPECT_EQ(c.out.Values(), (Values{mean, 3, mean, 3}));
          }
        });
      }
    }
  }
}

constexpr std::int64_t kB = 2, kM = 600, kH = 5, kD = 9, kE = 7;

// One element of an input becomes NaN: in batch 1, token 570, head 2, rank 1, feature 4. Which
// (batch, head, feature) of the output must be NaN then; −1 for all.
struct Spoilt {
  GuardedTensor TpaCase::*tensor;
  std::int64_t index;
  std::int64_t head, feature;
};
std::vector<Spoilt> SpoiltInputs(std::int64_t rank) {
  return {{&TpaCase::aq, (kH + 2) * rank + 1, 2, -1},  {&TpaCase::ak, (kM + 570) * kH + 2, 2, -1},
          {&TpaCase::av, (kM + 570) * kH + 2, 2, -1},  {&TpaCase::bq, (rank + 1) * kD + 4, -1, -1},
          {&TpaCase::bk, (kM + 570) * kD + 4, -1, -1}, {&TpaCase::bv, (kM + 570) * kE + 4, -1, 4}};
}

// Ranks for both orders of the products.
TEST(TpaDecodeExtreme, NanStaysWhereItBelongs) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t rank : {3, 9}) {
      for (const Spoilt& spoilt : SpoiltInputs(rank)) {
        TpaCase c(
            {.dtype = dtype, .batch = kB, .m = kM, .heads = kH, .rank = rank, .d = kD, .e = kE});
        Set(c.*spoilt.tensor, spoilt.index, std::nan(""));
        OnEveryTarget([&] {
          for (const TpaSplit split : kTpaSplits) {
            c.Run(split);
            const Values out = c.out.Values();
            for (std::int64_t i = 0; i < c.out.size(); ++i) {
              const bool nan = i / (kH * kE) == 1 &&
                               (spoilt.head < 0 || i / kE % kH == spoilt.head) &&
                               (spoilt.feature < 0 || i % kE == spoilt.feature);
              EXPECT_EQ(std::isnan(out[i]), nan) << i;
            }
          }
        });
      }
    }
  }
}

// As torch's softmax: a score of −Inf is a weight of 0, all of them are NaN, +Inf is NaN.
TEST(TpaDecodeExtreme, InfiniteScores) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t rank : {1, 7}) {
      TpaCase c({.dtype = dtype,
                 .m = 700,
                 .heads = 3,
                 .rank = rank,
                 .d = 2,
                 .e = 2,
                 .options = {.scale = 1}});
      for (GuardedTensor* tensor : {&c.aq, &c.ak, &c.av, &c.bq, &c.bk}) {
        tensor->Fill(Values(tensor->size(), 1));
      }
      Values ak(c.ak.size(), 1), bv(c.bv.size(), 5);
      for (std::int64_t t = 0; t < 700; ++t) {
        if (t != 650) {  // the only one with a score in head 0, behind a piece without any
          ak[t * 3] = -kInf;
          bv[t * 2] = 9;
        }
        ak[t * 3 + 1] = -kInf;
      }
      ak[30 * 3 + 2] = kInf;
      c.ak.Fill(ak);
      c.bv.Fill(bv);
      OnEveryTarget([&] {
        for (const TpaSplit split : kTpaSplits) {
          c.Run(split);
          const Values out = c.out.Values();
          EXPECT_EQ(out[0], 5);
          EXPECT_EQ(out[1], 5);
          for (int i = 2; i < 6; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
        }
      });
    }
  }
}

// An infinity in bk is a score of ±Inf with the sign of q·bk, in both orders of the products: −Inf
// is a weight of 0. Through the rank it meets factors of both signs, which must not make a NaN of
// it.
TEST(TpaDecodeExtreme, InfiniteKey) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t rank : {2, 40}) {
      const std::int64_t heads = 37, d = 20, m = 70;
      TpaCase c({.dtype = dtype, .m = m, .heads = heads, .rank = rank, .d = d, .e = 3});
      // Of every head's factors the first two are 2 and 1, of every feature's −1 and 1: q is −1/R.
      Values aq(c.aq.size(), 0), bq(c.bq.size(), 0);
      for (std::int64_t h = 0; h < heads; ++h) {
        aq[h * rank] = 2;
        aq[h * rank + 1] = 1;
      }
      for (std::int64_t j = 0; j < d; ++j) {
        bq[j] = -1;
        bq[d + j] = 1;
      }
      c.aq.Fill(aq);
      c.bq.Fill(bq);
      c.ak.Fill(Values(c.ak.size(), 1));
      c.av.Fill(Values(c.av.size(), 1));
      Set(c.bk, 66 * d + 7, kInf);
      Values bv(c.bv.size(), 4);
      for (int e = 0; e < 3; ++e) bv[66 * 3 + e] = 1e4;  // of weight 0
      c.bv.Fill(bv);
      const double bound = 4 * (kSoftmax + 2 * SumError(m)) + StorageError(dtype, 4);
      OnEveryTarget([&] {
        for (const TpaSplit split : kTpaSplits) {
          c.Run(split);
          for (const double value : c.out.Values()) EXPECT_NEAR(value, 4, bound);
        }
      });
    }
  }
}

// An infinite value fills its feature and nothing else, whatever the padding.
TEST(TpaDecodeExtreme, InfiniteValue) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t m : {1, 3, 17, 33, 129}) {
      TpaCase c({.dtype = dtype, .m = m, .heads = 3, .d = 3, .e = 5});
      c.av.Fill(Values(c.av.size(), 1));
      c.bv.Fill(Values(c.bv.size(), 1));
      Set(c.bv, (m - 1) * 5 + 2, kInf);
      OnEveryTarget([&] {
        for (const TpaSplit split : kTpaSplits) {
          c.Run(split);
          const Values out = c.out.Values();
          for (std::int64_t i = 0; i < c.out.size(); ++i) {
            EXPECT_EQ(out[i] == kInf, i % 5 == 2) << i;
            EXPECT_FALSE(std::isnan(out[i])) << i;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace attnops::testing
