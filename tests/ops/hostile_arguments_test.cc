// Arguments that no operator can take: sizes beyond memory, unknown enumerators, outputs that
// overlap inputs. An Error that names the argument, before anything is written. And empty tensors
// of enormous sizes, which are nothing to do.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attnops/attnops.h"
#include "tests/support/errors.h"

namespace attnops::testing {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

// Shapes of which the bytes or the elements are more than 2^63, some of them a multiple of 2^64.
std::vector<Dims> ImpossibleShapes() {
  return {{std::int64_t{1} << 19, 1, (std::int64_t{1} << 42) + 1, 2},
          {std::int64_t{1} << 32, 1, std::int64_t{1} << 32, 2},
          {std::int64_t{1} << 31, std::int64_t{1} << 31, 1, 2},
          {1, 1, std::int64_t{1} << 62, 2},
          {std::int64_t{1} << 61, 1, 1, 8}};
}

TEST(HostileArguments, MoreElementsThanMemoryHolds) {
  std::vector<float> data(64, 1), results(64, 7);
  const ConstTensorView theta(data.data(), {1, 1});
  for (const Dims& shape : ImpossibleShapes()) {
    // Broadcast, so that the data is there.
    const ConstTensorView x(data.data(), shape, {0, 0, 0, 1});
    const TensorView out(results.data(), shape, {0, 0, 0, 1});
    ExpectErrorNaming("lrpe_rotate", "x", [&] { LrpeRotate(x, theta, out); });
    ExpectErrorNaming("lrpe_rotate", "x", [&] { LrpeRotateBackward(x, theta, x, out); });
    ExpectErrorNaming("md_lrpe_cosine", "x",
                      [&] { MdLrpeCosine(x, theta, out, {.shape = {shape[2]}}); });
    ExpectErrorNaming("flao", "q", [&] { Flao(x, x, x, x, out); });
    ExpectErrorNaming("flao_fal", "q", [&] { FlaoFal(x, x, x, x, out, {}); });
    ExpectErrorNaming("tpa_decode", "aq", [&] { TpaDecode(x, x, x, x, x, x, out); });
    const TpaQuery query = TpaQuery::Factors(x, x);
    const TpaKeys keys = {x, x, x, x};
    ExpectErrorNaming("tpa", "aq", [&] { Tpa(query, keys, out); });
    ExpectErrorNaming("tpa", "q", [&] { Tpa(TpaQuery::Full(x), keys, out); });
    ExpectErrorNaming("tpa", "aq", [&] {
      TpaBackward(query, keys, x, x, x, {out, out, {}, out, out, out, out});
    });
    ExpectErrorNaming("tpa_decode", "aq", [&] { TpaDecode(query, keys, out, TpaSequences{}); });
  }
  // Strides that lead out of all memory.
  const ConstTensorView far(data.data(), {2, 1, 2, 2}, {std::int64_t{1} << 62, 1, 2, 1});
  const TensorView out(results.data(), {2, 1, 2, 2});
  ExpectErrorNaming("lrpe_rotate", "x", [&] { LrpeRotate(far, theta, out); });
  EXPECT_EQ(results, std::vector<float>(64, 7));
}

TEST(HostileArguments, UnknownEnumerators) {
  std::vector<float> data(64, 1), results(64, 7);
  const Dims shape = {1, 1, 2, 2};
  const ConstTensorView x(data.data(), shape), theta(data.data(), {1, 1});
  const ConstTensorView unknown(data.data(), static_cast<DType>(9), shape);
  const TensorView out(results.data(), shape);
  const TensorView wide(results.data(), {1, 1, 2, 4});
  for (const int kind : {-1, 5, 77}) {
    const Activation act{static_cast<Activation::Kind>(kind), -1};
    ExpectErrorNaming("lrpe_rotate", "act", [&] { LrpeRotate(x, theta, out, {0, act}); });
    ExpectErrorNaming("md_lrpe_cosine", "act", [&] {
      MdLrpeCosine(x, ConstTensorView(data.data(), {1, 2}), wide, {{2}, 0, 0, act});
    });
    for (int i = 0; i < 4; ++i) {
      FlaoFalOptions options;
      *std::vector<Activation*>{&options.q_act, &options.k_act, &options.v_act, &options.g_act}[i] =
          act;
      ExpectErrorNaming("flao_fal", std::string(1, "qkvg"[i]) + "_act",
                        [&] { FlaoFal(x, x, x, x, out, options); });
    }
    FlaoFalOptions options{.lrpe = static_cast<Lrpe>(kind), .theta = theta};
    ExpectErrorNaming("flao_fal", "lrpe", [&] { FlaoFal(x, x, x, x, out, options); });
    const ConstTensorView a(data.data(), {1, 1, 2, 1}), b(data.data(), {1, 1, 1, 2});
    const ConstTensorView key(data.data(), {1, 3, 2});
    ExpectErrorNaming("tpa_decode", "split", [&] {
      TpaDecode(a, key, key, b, key, key, TensorView(results.data(), {1, 1, 2, 2}),
                {.split = static_cast<TpaSplit>(kind)});
    });
    const auto precision = static_cast<Precision>(kind);
    ExpectErrorNaming("tpa_decode", "precision", [&] {
      TpaDecode(a, key, key, b, key, key, TensorView(results.data(), {1, 1, 2, 2}),
                {.precision = precision});
    });
    const TpaQuery query = TpaQuery::Factors(a, b);
    const TpaKeys keys = {a, a, b, b};
    const TpaOptions unknown_precision = {.precision = precision};
    ExpectErrorNaming("tpa", "precision", [&] { Tpa(query, keys, out, {}, unknown_precision); });
    ExpectErrorNaming("tpa_decode", "precision",
                      [&] { TpaDecode(query, keys, out, TpaSequences{}, {}, unknown_precision); });
    ExpectErrorNaming("tpa_decode", "split", [&] {
      TpaDecode(query, keys, out, TpaSequences{}, {}, {}, static_cast<TpaSplit>(kind));
    });
    ExpectErrorNaming("tpa_cache", "type",
                      [&] { TpaCache({.type = static_cast<TpaCacheType>(kind)}); });
    ExpectErrorNaming("flao", "precision",
                      [&] { Flao(x, x, x, x, out, {.precision = precision}); });
    ExpectErrorNaming("flao", "precision", [&] {
      FlaoBackward(x, x, x, x, x, out, out, out, out, {.precision = precision});
    });
    ExpectErrorNaming("linear_attention", "precision",
                      [&] { LinearAttention(x, x, x, out, {.precision = precision}); });
    ExpectErrorNaming("flao_fal", "precision",
                      [&] { FlaoFal(x, x, x, x, out, {}, {.precision = precision}); });
    ExpectErrorNaming("flao_fal", "precision", [&] {
      FlaoFalBackward(x, x, x, x, x, out, out, out, out, {}, {.precision = precision});
    });
  }
  ExpectErrorNaming("lrpe_rotate", "x", [&] { LrpeRotate(unknown, theta, out); });
  ExpectErrorNaming("md_lrpe_cosine", "x", [&] { MdLrpeCosine(unknown, theta, wide, {{2}}); });
  ExpectErrorNaming("flao", "q", [&] { Flao(unknown, x, x, x, out); });
  ExpectErrorNaming("flao", "out", [&] {
    Flao(x, x, x, x, TensorView(results.data(), static_cast<DType>(9), shape));
  });
  EXPECT_EQ(results, std::vector<float>(64, 7));
}

TEST(HostileArguments, OutputsThatOverlapInputs) {
  std::vector<float> data(1000, 1);
  float* p = data.data();
  const std::vector<float> before = data;
  const Dims shape = {1, 4, 2, 4};
  const ConstTensorView theta(p + 900, {1, 1}), x(p, shape), d_out(p + 100, shape);
  // A row further, and another order of the axes at the same place.
  const TensorView shifted(p + 8, shape), transposed(p, shape, {32, 4, 16, 1});
  for (const TensorView& out : {shifted, transposed}) {
    ExpectErrorNaming("lrpe_rotate", "out", [&] { LrpeRotate(x, theta, out); });
    ExpectErrorNaming("lrpe_rotate", "dx", [&] { LrpeRotateBackward(x, theta, d_out, out); });
    ExpectErrorNaming("lrpe_rotate", "dx", [&] { LrpeRotateBackward(d_out, theta, x, out); });
  }
  ExpectErrorNaming("lrpe_rotate", "theta", [&] { LrpeRotate(x, theta, {p + 896, shape}); });

  const ConstTensorView angles(p + 900, {1, 4});
  const ConstTensorView wide(p + 200, {1, 4, 2, 8});
  const MdLrpeCosineOptions options{.shape = {2}};
  ExpectErrorNaming("md_lrpe_cosine", "out", [&] {
    MdLrpeCosine(x, angles, TensorView(p + 16, {1, 4, 2, 8}), options);
  });
  ExpectErrorNaming("md_lrpe_cosine", "dx", [&] {
    MdLrpeCosineBackward(x, angles, wide, TensorView(p + 8, shape), options);
  });
  ExpectErrorNaming("md_lrpe_cosine", "dx", [&] {
    MdLrpeCosineBackward(x, angles, wide, TensorView(p + 220, shape), options);
  });
  ExpectErrorNaming("lrpe_table", "table", [&] {
    LrpeTable(angles, {3}, 4, TensorView(p + 890, {1, 3, 4, 2}));
  });

  const TensorView out(p + 300, shape);
  ExpectErrorNaming("flao", "out", [&] { Flao(x, d_out, d_out, d_out, {p + 8, shape}); });
  ExpectErrorNaming("flao", "kv", [&] {
    Flao(x, x, x, x, out, {.kv = TensorView(p + 320, {1, 4, 4, 4})});
  });
  ExpectErrorNaming("flao", "dk", [&] {
    FlaoBackward(x, x, x, x, d_out, out, {p + 310, shape}, {p + 400, shape}, {p + 500, shape});
  });
  ExpectErrorNaming("flao", "dg", [&] {
    FlaoBackward(x, x, x, x, d_out, out, {p + 400, shape}, {p + 500, shape}, {p + 110, shape});
  });
  FlaoFalOptions rotate{.lrpe = Lrpe::kRotate, .theta = theta};
  ExpectErrorNaming("flao_fal", "theta", [&] { FlaoFal(x, x, x, x, {p + 890, shape}, rotate); });

  const ConstTensorView a(p, {1, 1, 2, 1}), b(p + 10, {1, 1, 1, 2}), key(p + 20, {1, 3, 2});
  ExpectErrorNaming("tpa_decode", "bv", [&] {
    TpaDecode(a, key, key, b, key, {p + 40, {1, 3, 2}}, TensorView(p + 42, {1, 1, 2, 2}));
  });
  EXPECT_EQ(data, before);
}

// The stride of an axis of one element says nothing, however large it is.
TEST(HostileArguments, InPlaceWhateverTheStridesOfSingleElements) {
  std::vector<float> data(32, 1);
  const float theta = 1;
  const Dims shape = {1, 4, 2, 4};
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{1} << 62}) {
    EXPECT_NO_THROW(LrpeRotate({data.data(), shape}, {&theta, {1, 1}},
                               {data.data(), shape, {stride, 8, 4, 1}}));
  }
}

// Slices of one tensor lie between one another and share nothing.
TEST(HostileArguments, InterleavedOutputsAreGood) {
  std::vector<float> data(3 * 4 * 2 * 4, 1), gradients(data.size());
  const Dims shape = {1, 2, 4, 4}, strides = {96, 4, 24, 1};
  const auto slice = [&](std::vector<float>& from, int i) {
    return TensorView(from.data() + 8 * i, shape, strides);
  };
  std::vector<float> g(32, 1), dg(32);
  EXPECT_NO_THROW(FlaoBackward(slice(data, 0), slice(data, 1), slice(data, 2), {g.data(), shape},
                               {g.data(), shape}, slice(gradients, 0), slice(gradients, 1),
                               slice(gradients, 2), {dg.data(), shape}));
  for (const float value : gradients) EXPECT_NE(value, 0);
}

// Each of these would take days if it visited every head or token.
TEST(HostileArguments, EmptyTensorsOfEnormousSizes) {
  const auto flao = [](const Dims& q, const Dims& k, std::int64_t e, float* out) {
    const Dims v = {k[0], k[1], k[2], e}, g = {q[0], q[1], q[2], e};
    float one = 1;
    const auto in = [&](const Dims& shape) { return ConstTensorView(&one, shape, {0, 0, 0, 1}); };
    Flao(in(q), in(k), in(v), in(g), {out, g});
    FlaoFal(in(q), in(k), in(v), in(g), {out, g}, {.q_act = Activation::Softmax(2)});
  };
  float out[2] = {7, 7};
  flao({kHuge, 1, 0, 1}, {kHuge, 1, 0, 1}, 1, nullptr);
  flao({kHuge, kHuge, 0, 1}, {kHuge, kHuge, 0, 1}, 1, nullptr);
  flao({kHuge, 1, 0, 1}, {kHuge, 1, 1, 1}, 1, nullptr);
  flao({1, kHuge, 1, 1}, {1, kHuge, 1, 1}, 0, nullptr);
  flao({1, 1, kHuge, 1}, {1, 1, kHuge, 1}, 0, nullptr);
  flao({1, 1, 2, 0}, {1, 1, kHuge, 0}, 1, out);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
  const ConstTensorView none(nullptr, DType::kFloat32, {kHuge, 1, kHuge, 0});
  const TensorView to(nullptr, DType::kFloat32, {kHuge, 1, kHuge, 0});
  FlaoBackward(none, none, none, none, none, to, to, to, to);
  const ConstTensorView no_tokens(nullptr, DType::kFloat32, {kHuge, 1, 0, 1});
  const TensorView to_no_tokens(nullptr, DType::kFloat32, {kHuge, 1, 0, 1});
  FlaoBackward(no_tokens, no_tokens, no_tokens, no_tokens, no_tokens, to_no_tokens, to_no_tokens,
               to_no_tokens, to_no_tokens);
  const float angle = 1;
  LrpeRotate(none, {&angle, {1, 1}}, to);
  MdLrpeCosine(none, {&angle, {1, 1}}, to, {.shape = {kHuge / 1024, 1024}});
  const ConstTensorView a(nullptr, DType::kFloat32, {kHuge, 1, kHuge, 0});
  const ConstTensorView b(nullptr, DType::kFloat32, {kHuge, 1, 0, kHuge});
  const ConstTensorView key(nullptr, DType::kFloat32, {kHuge, 0, kHuge});
  TpaDecode(a, key, key, b, key, {nullptr, DType::kFloat32, {kHuge, 0, 0}},
            {nullptr, DType::kFloat32, {kHuge, 1, kHuge, 0}});
}

// No pointer is formed from that of an empty tensor, which may be null.
TEST(HostileArguments, FactorsWithoutFeaturesOrRank) {
  std::vector<float> data(8, 2), out(4);
  const ConstTensorView key(data.data(), {1, 2, 2});
  const auto none = [](const Dims& shape) {
    return ConstTensorView(nullptr, DType::kFloat32, shape);
  };
  for (const std::int64_t rank : {0, 3}) {
    const ConstTensorView aq =
        rank == 0 ? none({1, 1, 2, 0}) : ConstTensorView(data.data(), {1, 1, 2, 3});
    TpaDecode(aq, key, key, none({1, 1, rank, 0}), none({1, 2, 0}), key,
              {out.data(), {1, 1, 2, 2}});
    EXPECT_EQ(out, std::vector<float>(4, 4));  // equal weights of av·bv
    out.assign(4, 0);
  }
}

}  // namespace
}  // namespace attnops::testing
