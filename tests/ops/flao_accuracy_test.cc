// Both passes of flao against the reference: types, policies, awkward sizes, layouts, targets.
#include <gtest/gtest.h>

#include <vector>

#include "tests/ops/flao_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

struct Sizes {
  std::int64_t n, m, d, e;
};

void CheckBoth(const FlaoSpec& spec) {
  FlaoCase c(spec);
  OnEveryTarget([&] {
    for (const Keep keep : kAllKeeps) {
      c.CheckForward(keep);
      c.CheckBackward(keep);
    }
  });
}

// Sequences around a block of 128 tokens, features around a chunk and a tile of every target.
TEST(FlaoAccuracy, AwkwardSizes) {
  static constexpr Sizes kSizes[] = {
      {1, 1, 1, 1},       {0, 5, 7, 5},     {5, 0, 7, 5},      {1, 33, 7, 129},  {3, 2, 33, 5},
      {129, 128, 33, 64}, {127, 257, 8, 9}, {17, 130, 64, 96}, {9, 6, 300, 200}, {40, 31, 65, 31}};
  for (const DType dtype : kFlaoTypes) {
    for (const Sizes& s : kSizes) {
      CheckBoth({.dtype = dtype, .n = s.n, .m = s.m, .d = s.d, .e = s.e});
    }
  }
}

TEST(FlaoAccuracy, EverySmallNumberOfFeatures) {
  for (std::int64_t size = 1; size <= 70; ++size) {
    const DType dtype = kFlaoTypes[size % 3];
    CheckBoth({.dtype = dtype, .heads = 1, .n = 6, .m = 5, .d = size, .e = 71 - size});
  }
}

TEST(FlaoAccuracy, CommonSizes) {
  for (const DType dtype : kFlaoTypes) {
    for (const std::int64_t size : {64, 128}) {
      CheckBoth({.dtype = dtype, .heads = 1, .n = 140, .m = 260, .d = size, .e = size});
    }
  }
  CheckBoth({.dtype = DType::kBFloat16, .heads = 1, .n = 20, .m = 30, .d = 512, .e = 512});
}

TEST(FlaoAccuracy, NothingAtAll) {
  for (const DType dtype : kFlaoTypes) {
    CheckBoth({.dtype = dtype, .batch = 0});
    CheckBoth({.dtype = dtype, .heads = 0});
    CheckBoth({.dtype = dtype, .n = 0, .m = 0});
    CheckBoth({.dtype = dtype, .d = 0});
    CheckBoth({.dtype = dtype, .e = 0});
  }
}

TEST(FlaoAccuracy, Layouts) {
  for (const DType dtype : kFlaoTypes) {
    for (const Layout inputs : kAllLayouts) {
      for (const Layout outputs : kAllLayouts) {
        CheckBoth({.dtype = dtype,
                   .batch = 2,
                   .heads = 3,
                   .n = 5,
                   .m = 9,
                   .d = 33,
                   .e = 40,
                   .inputs = inputs,
                   .outputs = outputs});
      }
    }
  }
}

// Enough heads that each is a task, and few whose sequences are cut into pieces.
TEST(FlaoAccuracy, ManyHeadsAndLongSequences) {
  for (const DType dtype : kFlaoTypes) {
    CheckBoth({.dtype = dtype, .batch = 11, .heads = 7, .n = 9, .m = 4, .d = 17, .e = 6});
    CheckBoth({.dtype = dtype, .heads = 1, .n = 5000, .m = 3100, .d = 9, .e = 16});
  }
}

// One tensor for all heads or tokens.
TEST(FlaoAccuracy, BroadcastInputs) {
  constexpr DType kType = DType::kBFloat16;
  FlaoCase c({.dtype = kType, .batch = 2, .heads = 2, .n = 4, .m = 6, .d = 8, .e = 10});
  GuardedTensor k(kType, c.k.shape(), {0, 0, 8, 1});
  GuardedTensor g(kType, c.g.shape(), {40, 40, 0, 1});
  k.Fill(c.k.Values());
  g.Fill(c.g.Values());
  c.k.Fill(k.Values());
  c.g.Fill(g.Values());
  OnEveryTarget([&] {
    c.Forward();
    GuardedTensor out(kType, c.out.shape());
    Flao(c.q.view(), k.view(), c.v.view(), g.view(), out.view(), {.precision = c.precision});
    EXPECT_EQ(out.Bits(), c.out.Bits());
  });
}

}  // namespace
}  // namespace attnops::testing
