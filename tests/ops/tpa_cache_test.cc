// The cache of tensor product attention, and bad input of its functions and of tpa.
#include "attnops/tpa_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attnops/lrpe_rotate.h"
#include "tests/ops/tpa_case.h"
#include "tests/support/errors.h"
#include "tests/support/precisions.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

constexpr std::int64_t kHeads = 19, kD = 24, kE = 20;
constexpr TpaOptions kAll{false, {}, {}, {}, {}, {}};

TpaOptions In(Precision precision) {
  TpaOptions options = kAll;
  options.precision = precision;
  return options;
}

TpaRanksSpec Spec(DType dtype, std::int64_t batch, std::int64_t m) {
  return {.dtype = dtype,
          .batch = batch,
          .m = m,
          .heads = kHeads,
          .q_rank = 3,
          .d = kD,
          .e = kE,
          .options = kAll};
}
TpaCacheShape Shape(TpaCacheType type, std::int64_t pages, std::int64_t page_size) {
  return {type, pages, page_size, kHeads, 2, 2, kD, kE};
}

// Tokens [begin, end) of batch b of a tensor.
ConstTensorView Cut(const GuardedTensor& x, std::int64_t b, std::int64_t begin, std::int64_t end) {
  return ConstTensorView(static_cast<const char*>(x.view().data()) +
                             (b * x.strides()[0] + begin * x.strides()[1]) * SizeOf(x.dtype()),
                         x.dtype(), {1, end - begin, x.shape()[2], x.shape()[3]}, x.strides());
}
TpaKeys Cut(const TpaRanksCase& c, std::int64_t b, std::int64_t begin, std::int64_t end) {
  return {Cut(c.ak, b, begin, end), Cut(c.av, b, begin, end), Cut(c.bk, b, begin, end),
          Cut(c.bv, b, begin, end)};
}

// Sequences that grow by turns, in pages, leave and join: the bits of the tensors.
TEST(TpaCache, SameBitsAsFromTensors) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    OnEveryTarget([&] {
      TpaRanksCase c(Spec(dtype, 3, 45));
      TpaCache cache(Shape(static_cast<TpaCacheType>(dtype), 30, 7));
      const std::int64_t gone = cache.Join();
      cache.Append({gone}, Cut(c, 2, 0, 40));
      std::vector<std::int64_t> ids = {cache.Join(), cache.Join()};
      for (const auto& [begin, end] : {std::pair{0, 1}, {1, 6}, {6, 21}, {21, 45}}) {
        cache.Append({ids[0]}, Cut(c, 0, begin, end));
        cache.Append({ids[1]}, Cut(c, 1, begin, end));
      }
      cache.Leave(gone);
      ids.push_back(cache.Join());  // in pages that were another's
      cache.Append({ids[2]}, Cut(c, 2, 0, 45));
      InEveryPrecision(dtype, [&](Precision each) {
        c.precision = each;
        c.Decode(TpaSplit::kAuto);
        const auto expected = c.out.Bits();
        c.out.Poison();
        cache.Decode(ids, c.Query(), c.out.view(), {}, In(each));
        EXPECT_TRUE(c.out.Bits() == expected);
      });
      for (const std::int64_t id : ids) cache.Leave(id);
      EXPECT_EQ(cache.FreePages(), 30);
    });
  }
}

TEST(TpaCache, ForkedSequencesSharePages) {
  TpaRanksCase c(Spec(DType::kFloat32, 2, 30));
  // The second sequence has the first 17 tokens of the first one.
  for (GuardedTensor* x : {&c.ak, &c.av, &c.bk, &c.bv}) {
    auto values = x->Values();
    const auto token = static_cast<std::int64_t>(values.size()) / 60;
    std::copy_n(values.begin(), 17 * token, values.begin() + 30 * token);
    x->Fill(values);
  }
  TpaCache cache(Shape(TpaCacheType::kFloat32, 12, 4));
  const std::int64_t first = cache.Join();
  cache.Append({first}, Cut(c, 0, 0, 17));
  const std::int64_t second = cache.Fork(first);
  EXPECT_EQ(cache.FreePages(), 12 - 5);
  cache.Append({first, second}, {{c.ak.view().data(), DType::kFloat32, {2, 0, kHeads, 2}},
                                 {c.av.view().data(), DType::kFloat32, {2, 0, kHeads, 2}},
                                 {c.bk.view().data(), DType::kFloat32, {2, 0, 2, kD}},
                                 {c.bv.view().data(), DType::kFloat32, {2, 0, 2, kE}}});
  cache.Append({first}, Cut(c, 0, 17, 30));
  cache.Append({second}, Cut(c, 1, 17, 30));
  EXPECT_EQ(cache.FreePages(), 12 - 4 - 4 - 4);
  EXPECT_EQ(cache.Length(second), 30);
  c.Decode(TpaSplit::kAuto);
  const auto expected = c.out.Bits();
  c.out.Poison();
  cache.Decode({first, second}, c.Query(), c.out.view());
  EXPECT_TRUE(c.out.Bits() == expected);
  cache.Leave(first);
  EXPECT_EQ(cache.FreePages(), 4);
}

// Rotated on the way into the cache, one token at a time or all at once: as lrpe_rotate does.
TEST(TpaCache, RotatesKeys) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    OnEveryTarget([&] {
      TpaRanksCase c(Spec(dtype, 1, 40));
      std::vector<float> angles(kD / 2);
      for (std::size_t j = 0; j < angles.size(); ++j) angles[j] = -std::pow(100.0f, -0.1f * j);
      const ConstTensorView theta(angles.data(), {1, kD / 2});
      GuardedTensor rotated(dtype, {1, 40, 2, kD});
      LrpeRotate(c.bk.view(), theta, rotated.view());
      TpaCache all(Shape(static_cast<TpaCacheType>(dtype), 1, 40));
      TpaCache single(Shape(static_cast<TpaCacheType>(dtype), 8, 5));
      all.Join();
      single.Join();
      all.Append({0}, Cut(c, 0, 0, 40), theta);
      for (int t = 0; t < 40; ++t) single.Append({0}, Cut(c, 0, t, t + 1), theta);
      GuardedTensor stored(dtype, {1, 40, 2, kD}), pages(dtype, {8, 5, 2, kD});
      const std::size_t bytes = static_cast<std::size_t>(40 * 2 * kD * SizeOf(dtype));
      std::memcpy(stored.view().data(), all.pool().bk, bytes);
      const auto values = stored.Values(), expected = rotated.Values();
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], expected[i], 8 * kRotation + 2 * StorageError(dtype, expected[i]));
      }
      c.out.Poison();
      all.Decode({0}, c.Query(), c.out.view());
      const auto bits = c.out.Bits();
      single.Decode({0}, c.Query(), c.out.view());
      EXPECT_TRUE(c.out.Bits() == bits);
    });
  }
}

// A number is off by half a step, 1/254 of the largest of its row: the result is that of the
// rounded factors, and those are within that bound.
TEST(TpaCache, Int8IsWithinHalfAStep) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OnEveryTarget([&] {
      TpaRanksCase c(Spec(dtype, 2, 33));
      TpaCache cache(Shape(TpaCacheType::kInt8, 12, 6));
      cache.Join();
      cache.Join();
      cache.Append({0}, Cut(c, 0, 0, 33));
      cache.Append({1}, Cut(c, 1, 0, 33));
      // What was stored.
      reference::Tpa::Inputs in = c.Inputs();
      const TpaPool& pool = cache.pool();
      const auto load = [&](std::vector<double>& values, const void* data, const float* scales,
                            std::int64_t rows, std::int64_t columns) {
        const std::int64_t token = rows * columns;
        for (std::int64_t i = 0; i < 66 * rows; ++i) {
          // Both sequences take their pages in order: 6 each.
          const std::int64_t t = i / rows, slot = t / 33 * 36 + t % 33;
          const std::int64_t at = slot * token + i % rows * columns;
          const double scale = scales[slot * rows + i % rows];
          double most = 0;
          for (std::int64_t j = 0; j < columns; ++j) {
            most = std::max(most, std::abs(values[i * columns + j]));
          }
          for (std::int64_t j = 0; j < columns; ++j) {
            const double stored = scale * static_cast<const std::int8_t*>(data)[at + j];
            EXPECT_NEAR(stored, values[i * columns + j], most * (1.0 / 254 + 4 * kUnitFloat32));
            values[i * columns + j] = stored;
          }
        }
      };
      load(in.ak, pool.ak, pool.ak_scale, 1, kHeads * 2);
      load(in.av, pool.av, pool.av_scale, 1, kHeads * 2);
      load(in.bk, pool.bk, pool.bk_scale, 2, kD);
      load(in.bv, pool.bv, pool.bv_scale, 2, kE);
      InEveryPrecision(dtype, [&](Precision each) {
        c.out.Poison();
        c.lse.Poison();
        cache.Decode({0, 1}, c.Query(), c.out.view(), c.lse.view(), In(each));
        const TpaExpected expected = ExpectTpa(c.Reference(), in, dtype, each);
        EXPECT_TRUE(AllNear(c.out.Values(), expected.out.value, expected.out.bound));
        EXPECT_TRUE(AllNear(c.lse.Values(), expected.lse.value, expected.lse.bound));
      });
    });
  }
}

TEST(TpaCache, BadInput) {
  TpaRanksCase c(Spec(DType::kFloat32, 1, 40));
  TpaRanksCase half(Spec(DType::kBFloat16, 1, 40));
  TpaCache cache(Shape(TpaCacheType::kFloat32, 4, 5));
  const std::int64_t id = cache.Join();
  cache.Append({id}, Cut(c, 0, 0, 8));
  const std::vector<float> before(static_cast<const float*>(cache.pool().bk),
                                  static_cast<const float*>(cache.pool().bk) + 20 * 2 * kD);
  const auto error = [&](const char* op, const char* word, const std::function<void()>& run) {
    ExpectErrorNaming(op, word, run);
    EXPECT_EQ(cache.Length(id), 8);
    EXPECT_EQ(cache.FreePages(), 2);
    EXPECT_TRUE(
        std::equal(before.begin(), before.end(), static_cast<const float*>(cache.pool().bk)));
  };
  error("tpa_cache", "pages", [&] { cache.Append({id}, Cut(c, 0, 0, 13)); });
  error("tpa_cache", "sequence", [&] { cache.Append({id + 1}, Cut(c, 0, 0, 1)); });
  error("tpa_append", "ak", [&] { cache.Append({id}, Cut(half, 0, 0, 1)); });
  error("tpa_decode", "aq", [&] { cache.Decode({id}, half.Query(), half.out.view()); });
  TpaKeys other = Cut(c, 0, 0, 1);
  other.bk = Cut(c.bv, 0, 0, 1);
  error("tpa_append", "bk", [&] { cache.Append({id}, other); });
  const std::vector<float> angles(kD);
  error("tpa_append", "theta", [&] {
    cache.Append({id}, Cut(c, 0, 0, 1), ConstTensorView(angles.data(), {1, kD / 2 - 1}));
  });
  const auto decode = [&](std::int64_t length, std::int64_t page) {
    const std::int64_t table[] = {0, page};
    TpaDecode(c.Query(), cache.pool(), c.out.view(), {&length, table, 2, 2});
  };
  c.out.Poison();
  error("tpa_decode", "lengths", [&] { decode(11, 1); });
  error("tpa_decode", "lengths", [&] { decode(-1, 1); });
  error("tpa_decode", "page_table", [&] { decode(8, 4); });
  error("tpa_decode", "page_table", [&] { decode(8, -1); });
  EXPECT_TRUE(c.out.Untouched());
  EXPECT_NO_THROW(decode(4, -1));  // a page that no token is in
}

TEST(Tpa, BadInput) {
  TpaRanksCase c({.batch = 2, .n = 3, .m = 5, .heads = 4, .q_rank = 3, .d = 6, .e = 7});
  const auto run = [&](const char* word, const TpaQuery& query, const TpaKeys& keys,
                       const TpaOptions& options = {}) {
    c.out.Poison();
    c.lse.Poison();
    ExpectErrorNaming("tpa", word,
                      [&] { attnops::Tpa(query, keys, c.out.view(), c.lse.view(), options); });
    EXPECT_TRUE(c.out.Untouched());
    EXPECT_TRUE(c.lse.Untouched());
  };
  const auto ranks = [&](const GuardedTensor& x, const Dims& shape) {
    return ConstTensorView(x.view().data(), DType::kFloat32, shape);
  };
  run("q", {}, c.Keys());
  run("q", {c.aq.view(), c.bq.view(), c.bq.view()}, c.Keys());
  run("bq", TpaQuery::Factors(c.aq.view(), ranks(c.bq, {2, 3, 2, 6})), c.Keys());
  run("bk", c.Query(), {c.ak.view(), c.av.view(), ranks(c.bk, {2, 5, 1, 6}), c.bv.view()});
  run("bv", c.Query(), {c.ak.view(), c.av.view(), c.bk.view(), ranks(c.bv, {2, 5, 1, 7})});
  run("ak", c.Query(), {ranks(c.ak, {2, 5, 2, 2}), c.av.view(), c.bk.view(), c.bv.view()});
  run("ak", c.Query(),
      {ranks(c.ak, {2, 5, 4, 0}), c.av.view(), ranks(c.bk, {2, 5, 0, 6}), c.bv.view()});
  run("ak", c.Query(),
      {ranks(c.ak, {2, 2, 4, 2}), ranks(c.av, {2, 2, 4, 2}), ranks(c.bk, {2, 2, 2, 6}),
       ranks(c.bv, {2, 2, 2, 7})});
  TpaOptions bad;
  bad.precision = static_cast<Precision>(9);
  run("precision", c.Query(), c.Keys(), bad);
}

}  // namespace
}  // namespace attnops::testing
