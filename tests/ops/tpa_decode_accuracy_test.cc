// tpa_decode against the reference: types, awkward sizes, scales, layouts, targets.
#include <gtest/gtest.h>

#include <vector>

#include "tests/ops/tpa_decode_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

struct Sizes {
  std::int64_t m, heads, rank, d, e;
};

void Check(const TpaSpec& spec, TpaSplit split = TpaSplit::kAuto) {
  TpaCase c(spec);
  OnEveryTarget([&] { c.Check(split); });
}

// Tokens around a block of 128 and a piece of 512, features around a chunk and a tile of every
// target, and both orders of the products.
TEST(TpaDecodeAccuracy, AwkwardSizes) {
  static constexpr Sizes kSizes[] = {
      {1, 1, 1, 1, 1},       {130, 31, 17, 127, 65}, {127, 3, 40, 9, 5},   {129, 7, 1, 33, 128},
      {16, 40, 2, 64, 3},    {511, 5, 3, 17, 31},    {513, 4, 65, 16, 16}, {1500, 33, 16, 40, 70},
      {33, 16, 4, 300, 200}, {5, 70, 70, 8, 8}};
  for (const DType dtype : kTpaTypes) {
    for (const Sizes& s : kSizes) {
      for (const TpaSplit split : kTpaSplits) {
        Check({.dtype = dtype,
               .batch = 2,
               .m = s.m,
               .heads = s.heads,
               .rank = s.rank,
               .d = s.d,
               .e = s.e},
              split);
      }
    }
  }
}

TEST(TpaDecodeAccuracy, EverySmallSize) {
  for (std::int64_t size = 1; size <= 70; ++size) {
    const DType dtype = kTpaTypes[size % 3];
    Check({.dtype = dtype, .m = size, .heads = 71 - size, .rank = 2, .d = size, .e = 71 - size});
    Check({.dtype = dtype, .m = 9, .heads = size, .rank = 71 - size, .d = 5, .e = size});
  }
}

TEST(TpaDecodeAccuracy, SizesOfTheTables) {
  for (const DType dtype : kTpaTypes) {
    Check({.dtype = dtype, .batch = 2, .m = 700, .heads = 32, .rank = 16, .d = 128, .e = 128});
  }
}

TEST(TpaDecodeAccuracy, LongSequences) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaSplit split : kTpaSplits) {
      Check({.dtype = dtype, .m = 20000, .heads = 2, .rank = 2, .d = 5, .e = 7}, split);
    }
  }
}

TEST(TpaDecodeAccuracy, Scales) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaDecodeOptions& options :
         {TpaDecodeOptions{.scale = 0.7}, TpaDecodeOptions{.scale_q = -0.3},
          TpaDecodeOptions{.scale_k = 2.5}, TpaDecodeOptions{.scale_v = -3},
          TpaDecodeOptions{.scale = 0.0},
          TpaDecodeOptions{.scale = 0.2, .scale_q = 0.9, .scale_k = 1.1, .scale_v = 0.01}}) {
      Check({.dtype = dtype, .m = 40, .heads = 6, .rank = 3, .options = options});
      Check({.dtype = dtype, .m = 40, .heads = 2, .rank = 9, .options = options});
    }
  }
}

TEST(TpaDecodeAccuracy, NothingAtAll) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaSplit split : kTpaSplits) {
      Check({.dtype = dtype, .batch = 0}, split);
      Check({.dtype = dtype, .heads = 0}, split);
      Check({.dtype = dtype, .e = 0}, split);
      Check({.dtype = dtype, .batch = 2, .m = 0}, split);  // zeros
    }
  }
}

// Scores that are sums of nothing are 0: the result is a mean.
TEST(TpaDecodeAccuracy, NothingToSum) {
  TpaDecodeOptions options;
  options.scale = options.scale_q = 1;
  for (const DType dtype : kTpaTypes) {
    for (const TpaSplit split : kTpaSplits) {
      for (const std::int64_t m : {7, 300}) {
        Check({.dtype = dtype, .m = m, .heads = 33, .d = 0, .options = options}, split);
        Check({.dtype = dtype, .m = m, .heads = 33, .rank = 0, .options = options}, split);
      }
    }
  }
}

TEST(TpaDecodeAccuracy, Layouts) {
  for (const DType dtype : kTpaTypes) {
    for (const TpaLayout layout : kTpaLayouts) {
      for (const TpaSplit split : kTpaSplits) {
        Check({.dtype = dtype,
               .batch = 3,
               .m = 530,
               .heads = 5,
               .rank = 3,
               .d = 20,
               .e = 33,
               .layout = layout},
              split);
      }
    }
  }
}

// One cache for all batches, one token for the whole sequence.
TEST(TpaDecodeAccuracy, BroadcastInputs) {
  constexpr DType kType = DType::kBFloat16;
  TpaCase c({.dtype = kType, .batch = 2, .m = 40, .heads = 3, .d = 8, .e = 10});
  GuardedTensor bk(kType, c.bk.shape(), {0, 8, 1});
  GuardedTensor av(kType, c.av.shape(), {3, 0, 1});
  bk.Fill(c.bk.Values());
  av.Fill(c.av.Values());
  c.bk.Fill(bk.Values());
  c.av.Fill(av.Values());
  OnEveryTarget([&] {
    c.Run(TpaSplit::kAuto);
    GuardedTensor out(kType, c.out.shape());
    TpaDecode(c.aq.view(), c.ak.view(), av.view(), c.bq.view(), bk.view(), c.bv.view(), out.view(),
              {.precision = c.precision});
    EXPECT_EQ(out.Bits(), c.out.Bits());
  });
}

}  // namespace
}  // namespace attnops::testing
