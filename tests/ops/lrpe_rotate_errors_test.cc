// Bad input of every kind: an Error that names operator and argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attnops/lrpe_rotate.h"
#include "tests/support/errors.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr std::int64_t kLimit = std::int64_t{1} << 31;

// A good call, to be spoilt. x is (2,5,2,6) and theta (2,3); `result` is out or dx. The tensors are
// larger than that, so that a spoilt view never leaves them.
struct Call {
  explicit Call(bool three_axes = false)
      : x(x_memory.view().data(), kF32, Shape(three_axes)),
        theta(theta_memory.view().data(), kF32, {three_axes ? 1 : 2, 3}),
        d_out(d_out_memory.view().data(), kF32, Shape(three_axes)),
        result(result_memory.view().data(), kF32, Shape(three_axes)) {
    x_memory.Fill(std::vector<double>(kSize, 1));
    theta_memory.Fill(std::vector<double>(kSize, 1));
    d_out_memory.Fill(std::vector<double>(kSize, 1));
  }

  static Dims Shape(bool three_axes) { return three_axes ? Dims{2, 5, 6} : Dims{2, 5, 2, 6}; }

  void Forward() const { LrpeRotate(x, theta, result, options); }
  void Backward() const { LrpeRotateBackward(x, theta, d_out, result, options); }

  static constexpr std::int64_t kSize = 1000;
  GuardedTensor x_memory{kF32, {kSize}};
  GuardedTensor theta_memory{kF32, {kSize}};
  GuardedTensor d_out_memory{kF32, {kSize}};
  GuardedTensor result_memory{kF32, {kSize}};
  ConstTensorView x;
  ConstTensorView theta;
  ConstTensorView d_out;
  TensorView result;
  LrpeRotateOptions options;
};

using Spoil = std::function<void(Call&)>;

// The message is about lrpe_rotate and has `word`; nothing is written.
void ExpectError(const Call& call, const std::function<void()>& run, const std::string& word) {
  ExpectErrorNaming("lrpe_rotate", word, run);
  EXPECT_TRUE(call.result_memory.Untouched());
}

void ExpectForwardError(const char* what, const std::string& word, const Spoil& spoil,
                        bool three_axes = false) {
  SCOPED_TRACE(std::string("forward: ") + what);
  Call call(three_axes);
  spoil(call);
  ExpectError(
      call, [&] { call.Forward(); }, word);
}

void ExpectBackwardError(const char* what, const std::string& word, const Spoil& spoil,
                         bool three_axes = false) {
  SCOPED_TRACE(std::string("backward: ") + what);
  Call call(three_axes);
  spoil(call);
  ExpectError(
      call, [&] { call.Backward(); }, word);
}

// The shape of x and with it of everything that must have the same.
void Reshape(Call& c, const Dims& shape) {
  c.x = {c.x.data(), kF32, shape};
  c.d_out = {c.d_out.data(), kF32, shape};
  c.result = {c.result.data(), kF32, shape};
}

// An error of both passes.
void ExpectErrors(const char* what, const std::string& word, const Spoil& spoil,
                  bool three_axes = false) {
  ExpectForwardError(what, word, spoil, three_axes);
  ExpectBackwardError(what, word, spoil, three_axes);
}

TEST(LrpeRotateErrors, TheUnspoiltCallIsGood) {
  for (const bool three_axes : {false, true}) {
    Call call(three_axes);
    EXPECT_NO_THROW(call.Forward());
    EXPECT_NO_THROW(call.Backward());
  }
}

TEST(LrpeRotateErrors, ExactTextOfAHeadsMismatch) {
  Call call;
  call.theta = {call.theta.data(), kF32, {3, 3}};
  try {
    call.Forward();
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "lrpe_rotate: theta has 3 heads; x has 2 (expected 2 or 1)");
  }
  EXPECT_TRUE(call.result_memory.Untouched());
}

TEST(LrpeRotateErrors, X) {
  ExpectErrors("rank 2", "x", [](Call& c) { Reshape(c, {5, 6}); });
  ExpectErrors("rank 5", "x", [](Call& c) { Reshape(c, {1, 2, 5, 2, 6}); });
  ExpectErrors("rank 0", "x", [](Call& c) { Reshape(c, {}); });
  ExpectErrors("odd D", "x", [](Call& c) { Reshape(c, {2, 5, 2, 7}); });
  ExpectErrors("odd D although empty", "x", [](Call& c) { Reshape(c, {0, 5, 2, 7}); });
  ExpectErrors("negative size", "x", [](Call& c) { Reshape(c, {2, -5, 2, 6}); });
  ExpectErrors("features not contiguous", "x", [](Call& c) {
    c.x = {c.x.data(), kF32, c.x.shape(), {120, 24, 12, 2}};
  });
  ExpectErrors("broadcast features", "x", [](Call& c) {
    c.x = {c.x.data(), kF32, c.x.shape(), {60, 12, 6, 0}};
  });
  ExpectErrors("reversed features", "x", [](Call& c) {
    c.x = {static_cast<const float*>(c.x.data()) + 5, c.x.shape(), {60, 12, 6, -1}};
  });
  ExpectErrors("null", "x", [](Call& c) { c.x = {nullptr, kF32, c.x.shape()}; });
}

TEST(LrpeRotateErrors, Theta) {
  ExpectErrors("rank 1", "theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {3}}; });
  ExpectErrors("rank 3", "theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {1, 2, 3}}; });
  ExpectErrors("3 heads", "theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {3, 3}}; });
  ExpectErrors("no heads", "theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {0, 3}}; });
  ExpectErrors("E > D/2", "theta", [](Call& c) { c.theta = {c.theta.data(), kF32, {2, 4}}; });
  ExpectErrors("null", "theta", [](Call& c) { c.theta = {nullptr, kF32, {2, 3}}; });
  ExpectErrors("float16 with a float32 x", "theta", [](Call& c) {
    c.theta = {c.theta.data(), DType::kFloat16, {2, 3}};
  });
  ExpectErrors("float16 with a bfloat16 x", "theta", [](Call& c) {
    const Dims shape = c.x.shape();
    c.x = {c.x.data(), DType::kBFloat16, shape};
    c.d_out = {c.d_out.data(), DType::kBFloat16, shape};
    c.result = {c.result.data(), DType::kBFloat16, shape};
    c.theta = {c.theta.data(), DType::kFloat16, {2, 3}};
  });
  ExpectErrors(
      "several heads with an x of 3 axes", "theta",
      [](Call& c) {
        c.theta = {c.theta.data(), kF32, {2, 3}};
      },
      true);
}

TEST(LrpeRotateErrors, Result) {
  const std::vector<std::pair<const char*, Spoil>> cases = {
      {"one row fewer",
       [](Call& c) {
         c.result = {c.result.data(), kF32, {2, 4, 2, 6}};
       }},
      {"heads and length exchanged",
       [](Call& c) {
         c.result = {c.result.data(), kF32, {2, 2, 5, 6}};
       }},
      {"fewer features",
       [](Call& c) {
         c.result = {c.result.data(), kF32, {2, 5, 2, 4}};
       }},
      {"fewer axes",
       [](Call& c) {
         c.result = {c.result.data(), kF32, {2, 10, 6}};
       }},
      {"another type",
       [](Call& c) {
         c.result = {c.result.data(), DType::kFloat16, c.x.shape()};
       }},
      {"features not contiguous",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {120, 24, 12, 2}};
       }},
      {"null",
       [](Call& c) {
         c.result = {nullptr, kF32, c.x.shape()};
       }},
      {"broadcast batch",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {0, 12, 6, 1}};
       }},
      {"broadcast sequence",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {60, 0, 6, 1}};
       }},
      {"broadcast heads",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {60, 12, 0, 1}};
       }},
      {"rows overlap",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {60, 10, 5, 1}};
       }},
      {"batches overlap",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {12, 12, 6, 1}};
       }},
      {"heads and sequence overlap",
       [](Call& c) {
         c.result = {c.result.data(), kF32, c.x.shape(), {60, 6, 6, 1}};
       }},
  };
  for (const auto& [what, spoil] : cases) {
    ExpectForwardError(what, "out", spoil);
    ExpectBackwardError(what, "dx", spoil);
  }
}

TEST(LrpeRotateErrors, DOut) {
  ExpectBackwardError("one row fewer", "d_out", [](Call& c) {
    c.d_out = {c.d_out.data(), kF32, {2, 4, 2, 6}};
  });
  ExpectBackwardError("fewer axes", "d_out", [](Call& c) {
    c.d_out = {c.d_out.data(), kF32, {2, 10, 6}};
  });
  ExpectBackwardError("another type", "d_out", [](Call& c) {
    c.d_out = {c.d_out.data(), DType::kBFloat16, c.x.shape()};
  });
  ExpectBackwardError("features not contiguous", "d_out", [](Call& c) {
    c.d_out = {c.d_out.data(), kF32, c.x.shape(), {60, 12, 6, 0}};
  });
  ExpectBackwardError("null", "d_out", [](Call& c) { c.d_out = {nullptr, kF32, c.x.shape()}; });
}

TEST(LrpeRotateErrors, Offset) {
  for (const std::int64_t offset :
       {kLimit + 1, -kLimit - 1, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    SCOPED_TRACE(offset);
    ExpectErrors("offset", "offset", [=](Call& c) { c.options.offset = offset; });
    ExpectErrors("offset", std::to_string(offset).substr(offset < 0 ? 1 : 0),
                 [=](Call& c) { c.options.offset = offset; });
  }
  for (const std::int64_t offset : {kLimit, -kLimit}) {
    Call call;
    call.options.offset = offset;
    EXPECT_NO_THROW(call.Forward());
    EXPECT_NO_THROW(call.Backward());
  }
}

TEST(LrpeRotateErrors, SoftmaxAxis) {
  for (const int dim : {0, 2, -2, -4, 4, -5, 100, std::numeric_limits<int>::min()}) {
    SCOPED_TRACE(dim);
    ExpectErrors("4 axes", "softmax|dim|act",
                 [=](Call& c) { c.options.act = Activation::Softmax(dim); });
  }
  for (const int dim : {0, -3, 3, -4}) {
    SCOPED_TRACE(dim);
    ExpectErrors(
        "3 axes", "softmax|dim|act", [=](Call& c) { c.options.act = Activation::Softmax(dim); },
        true);
  }
  // The other activations ignore it.
  Call call;
  call.options.act = {Activation::Kind::kSilu, 17};
  EXPECT_NO_THROW(call.Forward());
}

}  // namespace
}  // namespace attnops::testing
