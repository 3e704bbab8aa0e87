// Bad arguments of rope and of lrpe_rotate's positions and pairs: an Error, and nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "attnops/lrpe_rotate.h"
#include "attnops/rope.h"
#include "tests/support/errors.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr std::int64_t kLimit = std::int64_t{1} << 31;

// A good call, to be spoilt: q (2,5,3,8), k (2,5,1,8), theta (1,4) or cos_sin (9,8).
struct Call {
  static constexpr std::int64_t kSize = 1000;
  GuardedTensor memory[7] = {{kF32, {kSize}}, {kF32, {kSize}}, {kF32, {kSize}}, {kF32, {kSize}},
                             {kF32, {kSize}}, {kF32, {kSize}}, {kF32, {kSize}}};
  ConstTensorView q{Ready(0), kF32, {2, 5, 3, 8}};
  ConstTensorView k{Ready(1), kF32, {2, 5, 1, 8}};
  ConstTensorView theta{Ready(2), kF32, {1, 4}};
  ConstTensorView cos_sin{Ready(3), kF32, {9, 8}};
  TensorView q_out{memory[4].view().data(), kF32, {2, 5, 3, 8}};
  TensorView k_out{memory[5].view().data(), kF32, {2, 5, 1, 8}};
  TensorView d_theta{memory[6].view().data(), kF32, {1, 4}};
  RopeOptions options;
  std::vector<std::int64_t> ids = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};

  const void* Ready(int i) {
    memory[i].Fill(std::vector<double>(kSize, 1));
    return memory[i].view().data();
  }
  void SetPositions(const Dims& shape) {
    ids.resize(30);
    options.rotary.positions = IntegerView(ids.data(), shape);
  }
  bool Untouched() const {
    return memory[4].Untouched() && memory[5].Untouched() && memory[6].Untouched();
  }
};

using Spoil = std::function<void(Call&)>;

void ExpectError(const std::string& word, const Spoil& spoil, bool with_table = false) {
  SCOPED_TRACE(word);
  Call c;
  spoil(c);
  if (with_table) {
    ExpectErrorNaming("rope", word,
                      [&] { RopeWithCosSin(c.q, c.k, c.cos_sin, c.q_out, c.k_out, c.options); });
  } else {
    ExpectErrorNaming("rope", word, [&] { Rope(c.q, c.k, c.theta, c.q_out, c.k_out, c.options); });
  }
  EXPECT_TRUE(c.Untouched());
}

// An error of lrpe_rotate too.
void ExpectErrors(const std::string& word, const Spoil& spoil) {
  ExpectError(word, spoil);
  Call c;
  spoil(c);
  const LrpeRotateOptions options{c.options.offset, {}, c.options.rotary};
  ExpectErrorNaming("lrpe_rotate", word, [&] { LrpeRotate(c.q, c.theta, c.q_out, options); });
  ExpectErrorNaming("lrpe_rotate", word,
                    [&] { LrpeRotateThetaGradient(c.q, c.theta, c.q, c.d_theta, options); });
  EXPECT_TRUE(c.Untouched());
}

TEST(RopeErrors, TheUnspoiltCallIsGood) {
  Call c;
  EXPECT_NO_THROW(Rope(c.q, c.k, c.theta, c.q_out, c.k_out, c.options));
  EXPECT_NO_THROW(RopeWithCosSin(c.q, c.k, c.cos_sin, c.q_out, c.k_out, c.options));
  EXPECT_NO_THROW(RopeBackward(c.q, c.k, c.theta, c.q_out, c.k_out, c.options));
  EXPECT_NO_THROW(RopeThetaGradient(c.q, c.k, c.theta, c.q, c.k, c.d_theta, c.options));
}

TEST(RopeErrors, Tensors) {
  ExpectError("q", [](Call& c) { c.q = {c.q.data(), kF32, {2, 5, 24}}; });
  ExpectError("k", [](Call& c) { c.k = {c.k.data(), kF32, {2, 4, 1, 8}}; });
  ExpectError("k", [](Call& c) { c.k = {c.k.data(), kF32, {1, 5, 1, 8}}; });
  ExpectError("k", [](Call& c) { c.k = {c.k.data(), kF32, {2, 5, 1, 6}}; });
  ExpectError("k", [](Call& c) { c.k = {c.k.data(), DType::kBFloat16, {2, 5, 1, 8}}; });
  ExpectError("q_out", [](Call& c) { c.q_out = {c.q_out.data(), kF32, {2, 5, 1, 8}}; });
  ExpectError("k_out", [](Call& c) { c.k_out = {c.k_out.data(), DType::kFloat16, c.k.shape()}; });
  ExpectError("k_out", [](Call& c) { c.k_out = {c.q_out.data(), kF32, c.k.shape()}; });
  ExpectError("theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {3, 4}}; });
  ExpectError("theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {1, 5}}; });
  ExpectError("theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {4}}; });
}

TEST(RopeErrors, CosSin) {
  ExpectError(
      "cos_sin",
      [](Call& c) {
        c.cos_sin = {c.cos_sin.data(), kF32, {9, 6}};
      },
      true);
  ExpectError(
      "cos_sin",
      [](Call& c) {
        c.cos_sin = {c.cos_sin.data(), kF32, {72}};
      },
      true);
  ExpectError(
      "cos_sin",
      [](Call& c) {
        c.cos_sin = {c.cos_sin.data(), DType::kFloat16, {9, 8}};
      },
      true);
  // A position that the table does not have.
  for (const std::int64_t bad : {std::int64_t{9}, std::int64_t{-1}, kLimit + 1}) {
    ExpectError(
        "positions",
        [=](Call& c) {
          c.SetPositions({2, 5});
          c.ids[7] = bad;
        },
        true);
  }
  for (const std::int64_t offset : {-1, 5}) {
    ExpectError(
        "offset", [=](Call& c) { c.options.offset = offset; }, true);
    ExpectError(
        "offset",
        [=](Call& c) {
          c.ids[1] = offset;
          c.options.rotary.offsets = IntegerView(c.ids.data(), {2});
        },
        true);
  }
}

TEST(RopeErrors, Positions) {
  for (const Dims& shape :
       {Dims{4}, Dims{1, 5}, Dims{5, 2}, Dims{2, 5, 1}, Dims{3, 2, 5}, Dims{}}) {
    ExpectErrors("positions", [&](Call& c) { c.SetPositions(shape); });
  }
  for (const std::int64_t bad : {kLimit + 1, -kLimit - 1, INT64_MAX, INT64_MIN}) {
    ExpectErrors("positions", [=](Call& c) {
      c.SetPositions({5});
      c.ids[4] = bad;
    });
    ExpectErrors("offset", [=](Call& c) {
      c.ids[1] = bad;
      c.options.rotary.offsets = IntegerView(c.ids.data(), {2});
    });
    ExpectErrors("offset", [=](Call& c) { c.options.offset = bad; });
  }
  ExpectErrors("positions", [](Call& c) {
    c.options.rotary.positions = IntegerView(static_cast<const std::int32_t*>(nullptr), {5});
  });
  ExpectErrors("offset", [](Call& c) {
    c.SetPositions({5});
    c.options.offset = 1;
  });
  ExpectErrors("offset", [](Call& c) {
    c.SetPositions({5});
    c.options.rotary.offsets = IntegerView(c.ids.data(), {2});
  });
  ExpectErrors("offset",
               [](Call& c) { c.options.rotary.offsets = IntegerView(c.ids.data(), {3}); });
}

TEST(RopeErrors, PairsAndSections) {
  for (const std::int64_t rotated : {3, -2, 10}) {
    ExpectErrors("rotary_dim", [=](Call& c) { c.options.rotary.rotary_dim = rotated; });
  }
  ExpectErrors("sections", [](Call& c) { c.options.rotary.sections = {2, 1, 1}; });
  for (const Dims& sections : {Dims{2, 1, 2}, Dims{5, -1, 0}, Dims{1, 1, 1}}) {
    ExpectErrors("sections", [&](Call& c) {
      c.SetPositions({3, 2, 5});
      c.options.rotary.sections = sections;
    });
  }
  ExpectErrors("sections_interleaved",
               [](Call& c) { c.options.rotary.sections_interleaved = true; });
  ExpectErrors("scale", [](Call& c) { c.options.rotary.scale = NAN; });
  ExpectErrors("features", [](Call& c) {
    c.q = {c.q.data(), kF32, {2, 5, 3, 7}};
    c.k = {c.k.data(), kF32, {2, 5, 1, 7}};
  });
}

TEST(RopeErrors, GradientOfTheta) {
  const auto expect = [](const Spoil& spoil) {
    Call c;
    spoil(c);
    ExpectErrorNaming("rope", "d_theta", [&] {
      RopeThetaGradient(c.q, c.k, c.theta, c.q, c.k, c.d_theta, c.options);
    });
    EXPECT_TRUE(c.Untouched());
  };
  expect([](Call& c) { c.d_theta = {c.d_theta.data(), kF32, {1, 3}}; });
  expect([](Call& c) { c.d_theta = {c.d_theta.data(), DType::kFloat16, {1, 4}}; });
}

}  // namespace
}  // namespace attnops::testing
