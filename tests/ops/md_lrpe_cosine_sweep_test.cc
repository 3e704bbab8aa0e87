// Both passes of md_lrpe_cosine, on the fly and with a table, over everything that they
// distinguish.
#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Every activation × type × feature size, each with every other grid of 1 to 4 and 8 axes; l, the
// form of theta, the offset, batches, heads and alignment vary.
TEST(MdLrpeCosineSweep, EveryActivationTypeFeatureSizeAndGrid) {
  static constexpr std::int64_t kFeatures[] = {1, 2, 6, 48, 63, 64, 65, 130};
  static constexpr std::int64_t kPrefixes[] = {0, 1, 10};
  static constexpr std::int64_t kOffsets[] = {
      0, 5, -7, 1'000'000, 1'000'000'000, -(std::int64_t{1} << 31), std::int64_t{1} << 31};
  // Last axes of 1, 15, 16, 17 and 33; more than a block of 16 or 64 tokens; nothing.
  const std::vector<Dims> shapes = {
      {33},    {1},       {0},       {70},         {3, 15},
      {2, 33}, {5, 16},   {17, 1},   {0, 3},       {2, 3, 17},
      {1, 1},  {3, 5, 2}, {4, 0, 2}, {2, 3, 1, 4}, {2, 1, 2, 1, 3, 1, 2, 2}};
  std::mt19937 generator(2024);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(generator() % n); };
  const auto pick = [&](const auto& values) { return values[below(std::size(values))]; };
  std::size_t turn = 0;
  for (const auto& [dtype, theta_dtype] : kTypePairs) {
    for (const Activation& act : kCosineActivations) {
      for (const std::int64_t features : kFeatures) {
        for (const Dims& shape : shapes) {
          if (++turn % 2 == 0) continue;
          const std::int64_t heads = below(3) + 1;
          CosineCase c({.dtype = dtype,
                        .theta_dtype = theta_dtype,
                        .batch = heads == 1 ? below(3) : 1,
                        .heads = heads,
                        .shape = shape,
                        .l = pick(kPrefixes),
                        .features = features,
                        .theta_heads = below(2) == 0 ? 1 : heads,
                        .extra = below(2) * below(5),
                        .offset = shape.rank() == 1 ? pick(kOffsets) : 0,
                        .act = act,
                        .shift = static_cast<int>(below(3))});
          OnEveryTarget([&] { c.CheckAll(); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
