// Bad input of every kind: an Error that names operator and argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attnops/flao_fal.h"
#include "tests/ops/spoilt_views.h"
#include "tests/support/errors.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kBf16 = DType::kBFloat16;
constexpr std::int64_t kLimit = std::int64_t{1} << 31;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// A good call, to be spoilt: cosine in 1-d, N = 4, M = 5, D = 6, E = 7, theta (3,6). The tensors
// are larger than the views, so that a spoilt view never leaves them.
struct Call {
  Call() {
    for (GuardedTensor& memory : inputs) memory.Fill(std::vector<double>(kSize, 1));
  }

  void Run(bool backward) const {
    if (backward) {
      FlaoFalBackward(q, k, v, g, d_out, dq, dk, dv, dg, options, {kept_kv, kept_qkv});
    } else {
      FlaoFal(q, k, v, g, out, options, {kv, qkv});
    }
  }

  // Other sizes, with all that follow from them.
  void Resize(std::int64_t n, std::int64_t m, std::int64_t d) {
    const std::int64_t inner = options.lrpe == Lrpe::kCosine ? 2 * d : d;
    const Dims q_shape = {2, 3, n, d}, k_shape = {2, 3, m, d};
    const Dims v_shape = {2, 3, m, 7}, g_shape = {2, 3, n, 7}, kv_shape = {2, 3, inner, 7};
    q = {q.data(), kF32, q_shape};
    k = {k.data(), kF32, k_shape};
    v = {v.data(), kF32, v_shape};
    g = {g.data(), kF32, g_shape};
    d_out = {d_out.data(), kF32, g_shape};
    out = {out.data(), kF32, g_shape};
    dq = {dq.data(), kF32, q_shape};
    dk = {dk.data(), kF32, k_shape};
    dv = {dv.data(), kF32, v_shape};
    dg = {dg.data(), kF32, g_shape};
    kv = {kv->data(), kF32, kv_shape};
    qkv = {qkv->data(), kF32, g_shape};
    kept_kv = {kept_kv->data(), kF32, kv_shape};
    kept_qkv = {kept_qkv->data(), kF32, g_shape};
  }
  void SetTheta(DType dtype, const Dims& shape) {
    options.theta = ConstTensorView(inputs[7].view().data(), dtype, shape);
  }
  // Another encoding with a theta that fits it.
  void Encode(Lrpe lrpe, const Dims& shape, std::int64_t l, const Dims& theta) {
    options.lrpe = lrpe;
    options.shape = shape;
    options.l = l;
    options.theta.reset();
    if (lrpe != Lrpe::kNone) SetTheta(kF32, theta);
    if (shape.rank() > 0) {
      const std::int64_t tokens = l + ConstTensorView(nullptr, kF32, shape).size();
      Resize(tokens, tokens, 6);
    } else {
      Resize(4, 5, 6);
    }
  }

  static constexpr std::int64_t kSize = 2000;
  static std::vector<GuardedTensor> Memory(int count) {
    std::vector<GuardedTensor> memory;
    for (int i = 0; i < count; ++i) memory.emplace_back(kF32, Dims{kSize});
    return memory;
  }
  std::vector<GuardedTensor> inputs = Memory(8);
  std::vector<GuardedTensor> outputs = Memory(7);
  ConstTensorView q{inputs[0].view().data(), kF32, {2, 3, 4, 6}};
  ConstTensorView k{inputs[1].view().data(), kF32, {2, 3, 5, 6}};
  ConstTensorView v{inputs[2].view().data(), kF32, {2, 3, 5, 7}};
  ConstTensorView g{inputs[3].view().data(), kF32, {2, 3, 4, 7}};
  ConstTensorView d_out{inputs[4].view().data(), kF32, {2, 3, 4, 7}};
  std::optional<ConstTensorView> kept_kv =
      ConstTensorView{inputs[5].view().data(), kF32, {2, 3, 12, 7}};
  std::optional<ConstTensorView> kept_qkv =
      ConstTensorView{inputs[6].view().data(), kF32, {2, 3, 4, 7}};
  TensorView out{outputs[0].view().data(), kF32, {2, 3, 4, 7}};
  std::optional<TensorView> kv = TensorView{outputs[1].view().data(), kF32, {2, 3, 12, 7}};
  std::optional<TensorView> qkv = TensorView{outputs[2].view().data(), kF32, {2, 3, 4, 7}};
  TensorView dq{outputs[3].view().data(), kF32, {2, 3, 4, 6}};
  TensorView dk{outputs[4].view().data(), kF32, {2, 3, 5, 6}};
  TensorView dv{outputs[5].view().data(), kF32, {2, 3, 5, 7}};
  TensorView dg{outputs[6].view().data(), kF32, {2, 3, 4, 7}};
  FlaoFalOptions options = {.q_act = {},
                            .k_act = {},
                            .v_act = {},
                            .g_act = {},
                            .lrpe = Lrpe::kCosine,
                            .theta = ConstTensorView{inputs[7].view().data(), kF32, {3, 6}}};
};

using Spoil = std::function<void(Call&)>;

// `word` is a regular expression.
void ExpectError(const Call& call, bool backward, const std::string& word) {
  SCOPED_TRACE(backward ? "backward" : "forward");
  ExpectErrorNaming("flao_fal", word, [&] { call.Run(backward); });
  for (const GuardedTensor& memory : call.outputs) EXPECT_TRUE(memory.Untouched());
}

void ExpectErrors(const char* what, const std::string& word, const Spoil& spoil) {
  SCOPED_TRACE(what);
  Call call;
  spoil(call);
  for (const bool backward : {false, true}) ExpectError(call, backward, word);
}

void ExpectGood(const Spoil& change) {
  for (const bool backward : {false, true}) {
    Call call;
    change(call);
    EXPECT_NO_THROW(call.Run(backward)) << backward;
  }
}

TEST(FlaoFalErrors, TheUnspoiltCallsAreGood) {
  ExpectGood([](Call&) {});
  ExpectGood([](Call& c) { c.Encode(Lrpe::kNone, {}, 0, {}); });
  ExpectGood([](Call& c) { c.Encode(Lrpe::kCosine, {6}, 1, {3, 6}); });
  ExpectGood([](Call& c) { c.Encode(Lrpe::kCosine, {2, 3}, 1, {1, 3}); });
  ExpectGood([](Call& c) { c.Encode(Lrpe::kRotate, {}, 0, {3, 3}); });
  ExpectGood([](Call& c) { c.Encode(Lrpe::kRotate, {}, 4, {3, 1}); });
  ExpectGood([](Call& c) { c.Encode(Lrpe::kRotate, {2, 3}, 1, {1, 2}); });
}

TEST(FlaoFalErrors, ExactText) {
  Call call;
  call.k = {call.k.data(), kF32, {2, 3, 5, 5}};
  try {
    call.Run(false);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "flao_fal: k has 5 features; q has 6");
  }
}

// Puts each of the spoilt views in the place of a good one.
template <typename Get, typename Views>
void ExpectViewErrors(const std::string& name, bool backward, const Get& get, const Views& spoilt) {
  SCOPED_TRACE(name);
  Call good;
  const std::size_t count = spoilt(get(good)).size();
  for (std::size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    Call call;
    get(call) = spoilt(get(call))[i];
    ExpectError(call, backward, name);
  }
}

// A wrong size may be blamed on either of two inputs, one of q on theta too.
TEST(FlaoFalErrors, Inputs) {
  const auto spoilt = [](const ConstTensorView& view) { return Spoilt(view); };
  using View = ConstTensorView&;
  for (const bool backward : {false, true}) {
    ExpectViewErrors(
        "q|k|v|g", backward, [](Call& c) -> View { return c.q; }, spoilt);
    ExpectViewErrors(
        "k|v", backward, [](Call& c) -> View { return c.k; }, spoilt);
    ExpectViewErrors(
        "v|g", backward, [](Call& c) -> View { return c.v; }, spoilt);
    ExpectViewErrors(
        "g", backward, [](Call& c) -> View { return c.g; }, spoilt);
  }
  ExpectViewErrors(
      "d_out", true, [](Call& c) -> View { return c.d_out; }, spoilt);
  ExpectViewErrors(
      "kv", true, [](Call& c) -> View { return *c.kept_kv; }, spoilt);
  ExpectViewErrors(
      "qkv", true, [](Call& c) -> View { return *c.kept_qkv; }, spoilt);
}

TEST(FlaoFalErrors, Outputs) {
  using View = TensorView&;
  ExpectViewErrors(
      "out", false, [](Call& c) -> View { return c.out; }, SpoiltOutputs);
  ExpectViewErrors(
      "kv", false, [](Call& c) -> View { return *c.kv; }, SpoiltOutputs);
  ExpectViewErrors(
      "qkv", false, [](Call& c) -> View { return *c.qkv; }, SpoiltOutputs);
  ExpectViewErrors(
      "dq", true, [](Call& c) -> View { return c.dq; }, SpoiltOutputs);
  ExpectViewErrors(
      "dk", true, [](Call& c) -> View { return c.dk; }, SpoiltOutputs);
  ExpectViewErrors(
      "dv", true, [](Call& c) -> View { return c.dv; }, SpoiltOutputs);
  ExpectViewErrors(
      "dg", true, [](Call& c) -> View { return c.dg; }, SpoiltOutputs);
}

// kv has 2D rows with kCosine and D else.
TEST(FlaoFalErrors, RowsOfKv) {
  const auto with_rows = [](std::int64_t rows) {
    return [rows](Call& c) {
      c.kv = {c.kv->data(), kF32, {2, 3, rows, 7}};
      c.kept_kv = {c.kept_kv->data(), kF32, {2, 3, rows, 7}};
    };
  };
  ExpectErrors("D rows with cosine", "kv", with_rows(6));
  for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kRotate}) {
    ExpectErrors("2D rows", "kv", [&](Call& c) {
      c.Encode(lrpe, {}, 0, {3, 3});
      with_rows(12)(c);
    });
  }
}

TEST(FlaoFalErrors, Theta) {
  const auto theta = [](const char* what, Lrpe lrpe, const Dims& shape, DType dtype,
                        const Dims& dims) {
    ExpectErrors(what, "theta", [&](Call& c) {
      c.Encode(lrpe, shape, 0, {1, 6});
      c.SetTheta(dtype, dims);
    });
  };
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    for (const Dims& shape : {Dims{}, Dims{6}, Dims{2, 3}}) {
      SCOPED_TRACE(static_cast<int>(lrpe));
      SCOPED_TRACE(shape.rank());
      theta("rank 1", lrpe, shape, kF32, {3});
      theta("rank 3", lrpe, shape, kF32, {1, 3, 3});
      theta("2 heads", lrpe, shape, kF32, {2, 3});
      theta("no heads", lrpe, shape, kF32, {0, 3});
      theta("no angles", lrpe, shape, kF32, {3, 0});
      theta("float16 with a float32 q", lrpe, shape, kF16, {3, 3});
      theta("negative size", lrpe, shape, kF32, {3, -3});
      ExpectErrors("none", "theta", [&](Call& c) {
        c.Encode(lrpe, shape, 0, {1, 6});
        c.options.theta.reset();
      });
      ExpectErrors("no data", "theta", [&](Call& c) {
        c.Encode(lrpe, shape, 0, {1, 6});
        c.options.theta = ConstTensorView(nullptr, kF32, {3, 3});
      });
      ExpectErrors("angles not contiguous", "theta", [&](Call& c) {
        c.Encode(lrpe, shape, 0, {1, 6});
        c.options.theta = ConstTensorView(c.inputs[7].view().data(), kF32, {3, 3}, {6, 2});
      });
    }
  }
  theta("E < D in 1-d", Lrpe::kCosine, {}, kF32, {3, 5});
  theta("E < D with one axis", Lrpe::kCosine, {6}, kF32, {3, 5});
  theta("E < D for all heads", Lrpe::kCosine, {}, kF32, {3, 1});
  theta("E·k < D", Lrpe::kCosine, {2, 3}, kF32, {3, 2});
  theta("E > D/2 in 1-d", Lrpe::kRotate, {}, kF32, {3, 4});
  theta("E > D/2 with one axis", Lrpe::kRotate, {6}, kF32, {3, 4});
  theta("E·k < D/2", Lrpe::kRotate, {2, 3}, kF32, {3, 1});
  ExpectErrors("without an encoding", "theta|lrpe", [](Call& c) {
    c.Encode(Lrpe::kNone, {}, 0, {});
    c.SetTheta(kF32, {3, 6});
  });
  ExpectErrors("float16 with a bfloat16 q", "theta", [](Call& c) {
    for (ConstTensorView* view : {&c.q, &c.k, &c.v, &c.g, &c.d_out}) {
      *view = {view->data(), kBf16, view->shape()};
    }
    c.SetTheta(kF16, {3, 6});
  });
}

TEST(FlaoFalErrors, RotateWithOddFeatures) {
  for (const Dims& shape : {Dims{}, Dims{5}, Dims{5, 1}}) {
    ExpectErrors("D = 5", "q|features", [&](Call& c) {
      c.Encode(Lrpe::kRotate, shape, 0, {1, 2});
      c.Resize(shape.rank() == 0 ? 4 : 5, 5, 5);
    });
  }
}

TEST(FlaoFalErrors, ShapeAndTokensInFront) {
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    const std::int64_t angles = lrpe == Lrpe::kCosine ? 6 : 3;
    // The shape and l that are given do not fit N = M = 7.
    const auto shape = [&](const char* what, const std::string& word, const Dims& dims,
                           std::int64_t l) {
      ExpectErrors(what, word, [&](Call& c) {
        c.Encode(lrpe, {6}, 1, {3, angles});
        c.options.shape = dims;
        c.options.l = l;
      });
    };
    shape("one token too few", "shape|q|k|l", {5}, 1);
    shape("one token too many", "shape|q|k|l", {7}, 1);
    shape("one token too few in 2-d", "shape|q|k|l", {2, 3}, 0);
    shape("one token too many in 2-d", "shape|q|k|l", {2, 3}, 2);
    shape("an empty shape", "shape|q|k|l", {2, 0}, 6);
    shape("negative l", "l", {8}, -1);
    shape("the most negative l", "l", {6}, kMin);
    shape("the largest l", "shape|q|k|l", {6}, kMax);
    shape("a negative size", "shape", {2, -3}, 13);
    shape("two negative sizes", "shape", {-2, -3}, 1);
    shape("a product that wraps to 4", "shape|q|k", {(std::int64_t{1} << 62) + 1, 2, 2}, 3);
    shape("a product that wraps to 0", "shape|q|k", {std::int64_t{1} << 32, std::int64_t{1} << 32},
          7);
    shape("the largest size", "shape|q|k", {kMax}, 1);
    for (const Dims& dims : {Dims{4}, Dims{2, 2}, Dims{5}}) {
      ExpectErrors("N other than M", "shape|q|k", [&](Call& c) {
        c.Encode(lrpe, dims, 0, {3, angles});
        c.Resize(4, 5, 6);
      });
    }
    ExpectErrors("l > N", "l", [&](Call& c) { c.Encode(lrpe, {}, 5, {3, angles}); });
    ExpectErrors("l > M", "l", [&](Call& c) {
      c.Encode(lrpe, {}, 5, {3, angles});
      c.Resize(6, 4, 6);
    });
    ExpectErrors("negative l without a shape", "l", [&](Call& c) {
      c.Encode(lrpe, {}, -1, {3, angles});
    });
    ExpectErrors("the largest l without a shape", "l", [&](Call& c) {
      c.Encode(lrpe, {}, kMax, {3, angles});
    });
  }
}

TEST(FlaoFalErrors, Offset) {
  for (const Lrpe lrpe : {Lrpe::kCosine, Lrpe::kRotate}) {
    const std::int64_t angles = lrpe == Lrpe::kCosine ? 6 : 3;
    const auto with_offset = [&](const Dims& shape, std::int64_t offset) {
      return [=](Call& c) {
        c.Encode(lrpe, shape, 0, {3, angles});
        c.options.offset = offset;
      };
    };
    for (const Dims& shape : {Dims{}, Dims{6}}) {
      for (const std::int64_t offset : {kLimit + 1, -kLimit - 1, kMax, kMin}) {
        ExpectErrors("too far", "offset", with_offset(shape, offset));
      }
      for (const std::int64_t offset : {kLimit, -kLimit}) ExpectGood(with_offset(shape, offset));
    }
    for (const std::int64_t offset : {std::int64_t{1}, std::int64_t{-1}, kLimit + 1}) {
      ExpectErrors("in 2-d", "offset", with_offset({2, 3}, offset));
    }
  }
}

// Without an encoding there are no positions.
TEST(FlaoFalErrors, PositionsWithoutAnEncoding) {
  const auto spoil = [](const std::function<void(FlaoFalOptions&)>& change) {
    return [=](Call& c) {
      c.Encode(Lrpe::kNone, {}, 0, {});
      change(c.options);
    };
  };
  ExpectErrors("offset", "offset", spoil([](FlaoFalOptions& o) { o.offset = 1; }));
  ExpectErrors("l", "l", spoil([](FlaoFalOptions& o) { o.l = 1; }));
  ExpectErrors("shape", "shape", spoil([](FlaoFalOptions& o) { o.shape = {4}; }));
}

TEST(FlaoFalErrors, SoftmaxAxes) {
  struct Which {
    const char* word;
    Activation FlaoFalOptions::*act;
  };
  for (const Which& which :
       {Which{"q_dim|q_act", &FlaoFalOptions::q_act}, Which{"k_dim|k_act", &FlaoFalOptions::k_act},
        Which{"v_dim|v_act", &FlaoFalOptions::v_act},
        Which{"g_dim|g_act", &FlaoFalOptions::g_act}}) {
    for (const int dim : {0, 1, -3, -4, 4, -5, 100, std::numeric_limits<int>::min()}) {
      SCOPED_TRACE(dim);
      ExpectErrors("softmax", which.word,
                   [&](Call& c) { c.options.*which.act = Activation::Softmax(dim); });
    }
    for (const int dim : {2, 3, -1, -2}) {
      ExpectGood([&](Call& c) { c.options.*which.act = Activation::Softmax(dim); });
    }
    // The other activations ignore it.
    ExpectGood([&](Call& c) { c.options.*which.act = {Activation::Kind::kSilu, 17}; });
  }
}

// QKV of float16 tensors is float32, of the others their own type.
TEST(FlaoFalErrors, TypeOfKeptTensors) {
  for (const DType dtype : {kF32, kF16, kBf16}) {
    for (const DType kept : {kF32, kF16, kBf16}) {
      Call call;
      for (ConstTensorView* view : {&call.q, &call.k, &call.v, &call.g}) {
        *view = {view->data(), dtype, view->shape()};
      }
      call.out = {call.out.data(), dtype, call.out.shape()};
      call.qkv = {call.qkv->data(), kept, call.qkv->shape()};
      if (kept == (dtype == kF16 ? kF32 : dtype)) {
        EXPECT_NO_THROW(call.Run(false));
      } else {
        ExpectError(call, false, "qkv");
      }
      call.qkv.reset();
      call.kv = {call.kv->data(), kept, call.kv->shape()};
      if (kept != kF32) EXPECT_THROW(call.Run(false), Error);
    }
  }
}

}  // namespace
}  // namespace attnops::testing
