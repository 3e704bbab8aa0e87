// md_lrpe_cosine, both passes against the reference.
#include <gtest/gtest.h>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// `dim` counts from either end.
TEST(MdLrpeCosinePasses, EveryNameOfTheSoftmaxAxis) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kAllCosineActivations) {
      CosineCase c({.dtype = dtype,
                    .batch = 2,
                    .heads = 3,
                    .shape = {4, 5},
                    .l = 3,
                    .features = 48,
                    .theta_heads = 3,
                    .act = act});
      OnEveryTarget([&] { c.CheckBoth(); });
    }
  }
}

TEST(MdLrpeCosinePasses, EveryPrefixAndFormOfTheta) {
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    for (const Activation& act : kCosineActivations) {
      for (const Dims& shape : {Dims{20}, Dims{3, 7}, Dims{2, 3, 4}, Dims{2, 2, 3, 2}}) {
        for (const std::int64_t l : {0, 1, 10}) {
          for (const std::int64_t theta_heads : {2, 1}) {
            CosineCase c({.dtype = dtype,
                          .theta_dtype = theta_dtype,
                          .heads = 2,
                          .shape = shape,
                          .l = l,
                          .features = 19,
                          .theta_heads = theta_heads,
                          .act = act});
            OnEveryTarget([&] { c.CheckBoth(); });
          }
        }
      }
    }
  }
}

// Whatever the block of positions that a kernel works on, and where the prefix ends in it.
TEST(MdLrpeCosinePasses, EveryShortLengthAndPrefix) {
  for (std::int64_t n = 1; n <= 70; n += n < 36 ? 1 : 3) {
    for (const Activation& act : kCosinePaths) {
      const std::int64_t l = n * 7 % 40;
      CosineCase line({.batch = 2, .shape = {n}, .l = l, .features = 10, .offset = -3, .act = act});
      CosineCase grid({.heads = 2, .shape = {3, n}, .l = l, .features = 9, .act = act});
      OnEveryTarget([&] {
        line.CheckBoth();
        grid.CheckBoth();
      });
    }
  }
}

// Whatever the number of lanes, and where an axis ends in a vector: D is not a multiple of k.
TEST(MdLrpeCosinePasses, EveryFeatureSize) {
  for (std::int64_t features = 1; features <= 140; features += features < 70 ? 1 : 7) {
    for (const DType dtype : kAllTypes) {
      for (const Activation& act : kCosinePaths) {
        for (const Dims& shape : {Dims{5}, Dims{2, 3}, Dims{2, 2, 2}}) {
          if (features > 36 && shape.rank() != features % 3 + 1) continue;
          CosineCase c({.dtype = dtype, .shape = shape, .l = 1, .features = features, .act = act});
          OnEveryTarget([&] { c.CheckBoth(); });
        }
      }
    }
  }
}

// E from the least that serves to more than D: then the last axes have no features.
TEST(MdLrpeCosinePasses, EveryNumberOfThetas) {
  for (const DType dtype : kAllTypes) {
    for (const Dims& shape : {Dims{7}, Dims{3, 4}, Dims{2, 3, 2}}) {
      for (std::int64_t extra = 0; extra < 40; extra += extra < 20 ? 1 : 4) {
        CosineCase c({.dtype = dtype,
                      .heads = 2,
                      .shape = shape,
                      .l = 1,
                      .features = 33,
                      .theta_heads = 2,
                      .extra = extra});
        OnEveryTarget([&] { c.CheckBoth(); });
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
