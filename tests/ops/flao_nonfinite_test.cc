// flao with NaN, infinities and values whose products leave float16's range.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/flao_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

void Set(GuardedTensor& tensor, std::int64_t index, double value) {
  Values values = tensor.Values();
  values[index] = value;
  tensor.Fill(values);
}

// With all ones, one infinity in v makes its column infinite and nothing NaN, whatever the padding
// of D and E.
TEST(FlaoNonfinite, InfinityOfVStaysInItsColumn) {
  for (const DType dtype : kFlaoTypes) {
    for (const std::int64_t size : {1, 3, 17, 33}) {
      FlaoCase c({.dtype = dtype, .heads = 1, .n = 3, .m = 4, .d = size, .e = size});
      for (GuardedTensor* tensor : {&c.q, &c.k, &c.v, &c.g, &c.d_out}) {
        tensor->Fill(Values(tensor->size(), 1));
      }
      Set(c.v, size + size / 2, kInf);
      OnEveryTarget([&] {
        for (const Keep keep : kAllKeeps) {
          SCOPED_TRACE(c.spec().Describe());
          c.Forward(keep);
          c.Backward(keep);
          const Values out = c.out.Values();
          for (std::int64_t i = 0; i < c.out.size(); ++i) {
            EXPECT_EQ(out[i], i % size == size / 2 ? kInf : 4.0 * static_cast<double>(size));
          }
          for (const double value : c.dq.Values()) EXPECT_EQ(value, kInf);
          const Values dk = c.dk.Values();
          for (std::int64_t i = 0; i < c.dk.size(); ++i) {
            EXPECT_EQ(dk[i], i / size == 1 ? kInf : 3.0 * static_cast<double>(size));
          }
          for (const double value : c.dv.Values()) {
            EXPECT_EQ(value, 3.0 * static_cast<double>(size));
          }
        }
      });
    }
  }
}

TEST(FlaoNonfinite, NanOfARowOfQ) {
  for (const DType dtype : kFlaoTypes) {
    FlaoCase c({.dtype = dtype, .heads = 2, .n = 5, .m = 6, .d = 7, .e = 9});
    Set(c.q, 2 * 7 + 3, std::nan(""));
    OnEveryTarget([&] {
      for (const Keep keep : kAllKeeps) {
        c.Forward(keep);
        c.Backward(keep);
        const Values out = c.out.Values();
        for (std::int64_t i = 0; i < c.out.size(); ++i) {
          EXPECT_EQ(std::isnan(out[i]), i / 9 == 2) << i;
        }
        // dq does not depend on q; dk's feature 3 and all of dv do, in the first head.
        for (const double value : c.dq.Values()) EXPECT_FALSE(std::isnan(value));
        const Values dk = c.dk.Values();
        for (std::int64_t i = 0; i < c.dk.size(); ++i) {
          EXPECT_EQ(std::isnan(dk[i]), i < 6 * 7 && i % 7 == 3) << i;
        }
        const Values dv = c.dv.Values();
        for (std::int64_t i = 0; i < c.dv.size(); ++i) {
          EXPECT_EQ(std::isnan(dv[i]), i < 6 * 9) << i;
        }
      }
    });
  }
}

// KV is 256·64·64, far beyond 65504, but the gate brings the result back; without it, it is Inf.
TEST(FlaoNonfinite, Float16SumsDoNotOverflow) {
  FlaoCase c({.dtype = DType::kFloat16, .heads = 1, .n = 2, .m = 256, .d = 2, .e = 3});
  c.q.Fill(Values(c.q.size(), 1));
  c.k.Fill(Values(c.k.size(), 64));
  c.v.Fill(Values(c.v.size(), 64));
  c.g.Fill({0x1p-14, 0x1p-14, 1, 0x1p-14, 1, 0x1p-14});
  c.d_out.Fill(Values(c.d_out.size(), 0x1p-10));
  OnEveryTarget([&] {
    for (const Keep keep : kAllKeeps) {
      c.Forward(keep);
      EXPECT_EQ(c.out.Values(), (Values{128, 128, kInf, 128, kInf, 128}));
      c.Backward(keep);
      EXPECT_EQ(c.dg.Values(), Values(6, 2048));
      if (keep == Keep::kKvQkv) EXPECT_EQ(c.qkv.Values(), Values(6, 0x1p21));
    }
  });
}

}  // namespace
}  // namespace attnops::testing
