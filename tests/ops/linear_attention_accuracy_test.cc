// Both passes of linear_attention against the recurrence: types, decays, awkward sizes, layouts,
// grouped heads, packed sequences, targets.
#include <gtest/gtest.h>

#include <vector>

#include "tests/ops/case.h"
#include "tests/ops/linear_attention_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Every decay on the side of the keys, and one on the side of the values with each.
void CheckDecays(LinearAttentionSpec spec) {
  for (const DecayKind decay : kAllDecays) {
    for (const bool on_values : {false, true}) {
      spec.decay = decay;
      spec.on_values = on_values;
      LinearAttentionCase c(spec);
      OnEveryTarget([&] { c.CheckBoth(); });
    }
  }
}

struct Sizes {
  std::int64_t n, d, e;
};

// Sequences around a block of 64 tokens, features around a chunk of every target.
TEST(LinearAttentionAccuracy, AwkwardSizes) {
  static constexpr Sizes kSizes[] = {{1, 1, 1},    {2, 7, 5},    {63, 33, 5}, {64, 8, 16},
                                     {65, 17, 18}, {131, 5, 33}, {3, 64, 31}};
  int i = 0;
  for (const Sizes& s : kSizes) {
    CheckDecays({.dtype = kAllTypes[i++ % 3], .n = s.n, .d = s.d, .e = s.e});
  }
}

TEST(LinearAttentionAccuracy, CommonSizes) {
  for (const DecayKind decay : kAllDecays) {
    for (const DType dtype : kAllTypes) {
      LinearAttentionCase c({.dtype = dtype,
                             .n = 200,
                             .key_heads = 1,
                             .heads = 1,
                             .d = 128,
                             .e = 128,
                             .decay = decay});
      c.CheckBoth();
    }
  }
  LinearAttentionCase large({.dtype = DType::kBFloat16,
                             .n = 70,
                             .key_heads = 1,
                             .heads = 1,
                             .d = 256,
                             .e = 256,
                             .decay = DecayKind::kFeature});
  large.CheckBoth();
}

TEST(LinearAttentionAccuracy, NothingAtAll) {
  for (const DType dtype : kAllTypes) {
    CheckDecays({.dtype = dtype, .batch = 0});
    CheckDecays({.dtype = dtype, .key_heads = 0, .heads = 0});
    CheckDecays({.dtype = dtype, .n = 0});
    CheckDecays({.dtype = dtype, .d = 0});
    CheckDecays({.dtype = dtype, .e = 0});
  }
}

TEST(LinearAttentionAccuracy, LayoutsAndTypesOfDecays) {
  for (const DType dtype : kAllTypes) {
    for (const bool float_decay : {false, true}) {
      CheckDecays({.dtype = dtype,
                   .batch = 2,
                   .n = 9,
                   .d = 5,
                   .e = 18,
                   .scale = 0.7,
                   .heads_first = true,
                   .float_decay = float_decay});
    }
  }
}

TEST(LinearAttentionAccuracy, GroupedHeads) {
  CheckDecays({.batch = 2, .n = 70, .key_heads = 2, .heads = 6, .d = 9, .e = 4});
  CheckDecays({.dtype = DType::kBFloat16, .n = 20, .key_heads = 1, .heads = 3, .states = false});
}

TEST(LinearAttentionAccuracy, PackedSequences) {
  for (const bool states : {false, true}) {
    CheckDecays({.n = 80,
                 .key_heads = 1,
                 .heads = 2,
                 .d = 4,
                 .e = 7,
                 .states = states,
                 .cu_seqlens = {0, 0, 1, 3, 3, 70, 80, 80}});
    CheckDecays({.n = 2, .d = 20, .e = 40, .states = states, .cu_seqlens = {0, 1, 1, 2}});
  }
}

// More than one piece: a run is 1024 tokens.
TEST(LinearAttentionAccuracy, Pieces) {
  for (const DecayKind decay : kAllDecays) {
    for (const bool on_values : {false, true}) {
      LinearAttentionCase c({.n = 2100,
                             .key_heads = 1,
                             .heads = 2,
                             .d = 3,
                             .e = 4,
                             .decay = decay,
                             .on_values = on_values,
                             .decay_size = -0.01});
      c.CheckBoth();
    }
  }
}

// One token is a path of its own.
TEST(LinearAttentionAccuracy, OneToken) {
  for (const DType dtype : kAllTypes) {
    for (const std::int64_t e : {1, 31, 64, 100, 130}) {
      CheckDecays({.dtype = dtype, .batch = 2, .n = 1, .key_heads = 1, .d = 19, .e = e});
    }
    CheckDecays({.dtype = dtype, .n = 1, .d = 70, .e = 9, .states = false});
  }
}

}  // namespace
}  // namespace attnops::testing
