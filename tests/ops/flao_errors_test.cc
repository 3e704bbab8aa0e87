// Bad input of every kind: an Error that names operator and argument, and nothing written.
#include <gtest/gtest.h>

#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "attnops/error.h"
#include "attnops/flao.h"
#include "tests/ops/spoilt_views.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
const Dims kQ = {2, 3, 4, 6}, kK = {2, 3, 5, 6}, kV = {2, 3, 5, 7}, kG = {2, 3, 4, 7};
const Dims kKv = {2, 3, 6, 7};

// A good call, to be spoilt. The tensors are larger than the views, so that a spoilt view never
// leaves them.
struct Call {
  Call() {
    for (GuardedTensor& memory : inputs) memory.Fill(std::vector<double>(kSize, 1));
  }

  void Forward() const { Flao(q, k, v, g, out, {kv, qkv}); }
  void Backward() const { FlaoBackward(q, k, v, g, d_out, dq, dk, dv, dg, {kept_kv, kept_qkv}); }

  static constexpr std::int64_t kSize = 1000;
  static std::vector<GuardedTensor> Memory(int count) {
    std::vector<GuardedTensor> memory;
    for (int i = 0; i < count; ++i) memory.emplace_back(kF32, Dims{kSize});
    return memory;
  }
  std::vector<GuardedTensor> inputs = Memory(7);
  std::vector<GuardedTensor> outputs = Memory(7);
  ConstTensorView q{inputs[0].view().data(), kF32, kQ};
  ConstTensorView k{inputs[1].view().data(), kF32, kK};
  ConstTensorView v{inputs[2].view().data(), kF32, kV};
  ConstTensorView g{inputs[3].view().data(), kF32, kG};
  ConstTensorView d_out{inputs[4].view().data(), kF32, kG};
  std::optional<ConstTensorView> kept_kv = ConstTensorView{inputs[5].view().data(), kF32, kKv};
  std::optional<ConstTensorView> kept_qkv = ConstTensorView{inputs[6].view().data(), kF32, kG};
  TensorView out{outputs[0].view().data(), kF32, kG};
  std::optional<TensorView> kv = TensorView{outputs[1].view().data(), kF32, kKv};
  std::optional<TensorView> qkv = TensorView{outputs[2].view().data(), kF32, kG};
  TensorView dq{outputs[3].view().data(), kF32, kQ};
  TensorView dk{outputs[4].view().data(), kF32, kK};
  TensorView dv{outputs[5].view().data(), kF32, kV};
  TensorView dg{outputs[6].view().data(), kF32, kG};
};

// `name` is a regular expression.
void ExpectError(const Call& call, bool backward, const std::string& name) {
  try {
    backward ? call.Backward() : call.Forward();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("flao: "), 0u) << message;
    EXPECT_TRUE(std::regex_search(message, std::regex("\\b" + name + "\\b"))) << message;
  }
  for (const GuardedTensor& memory : call.outputs) EXPECT_TRUE(memory.Untouched());
}

TEST(FlaoErrors, TheUnspoiltCallIsGood) {
  Call call;
  EXPECT_NO_THROW(call.Forward());
  EXPECT_NO_THROW(call.Backward());
}

TEST(FlaoErrors, ExactText) {
  Call call;
  call.k = {call.k.data(), kF32, {2, 3, 5, 5}};
  try {
    call.Forward();
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "flao: k has 5 features; q has 6");
  }
}

// Puts each of the spoilt views in the place of a good one.
template <typename Get, typename Views>
void ExpectErrors(const std::string& name, bool backward, const Get& get, const Views& spoilt) {
  SCOPED_TRACE(name + (backward ? ", backward" : ", forward"));
  Call good;
  const std::size_t count = spoilt(get(good)).size();
  for (std::size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    Call call;
    get(call) = spoilt(get(call))[i];
    ExpectError(call, backward, name);
  }
}

// A wrong size may be blamed on either of two inputs.
TEST(FlaoErrors, Inputs) {
  const auto spoilt = [](const ConstTensorView& view) { return Spoilt(view); };
  using View = ConstTensorView&;
  for (const bool backward : {false, true}) {
    ExpectErrors(
        "(q|k|v|g)", backward, [](Call& c) -> View { return c.q; }, spoilt);
    ExpectErrors(
        "(k|v)", backward, [](Call& c) -> View { return c.k; }, spoilt);
    ExpectErrors(
        "(v|g)", backward, [](Call& c) -> View { return c.v; }, spoilt);
    ExpectErrors(
        "g", backward, [](Call& c) -> View { return c.g; }, spoilt);
  }
  ExpectErrors(
      "d_out", true, [](Call& c) -> View { return c.d_out; }, spoilt);
  ExpectErrors(
      "kv", true, [](Call& c) -> View { return *c.kept_kv; }, spoilt);
  ExpectErrors(
      "qkv", true, [](Call& c) -> View { return *c.kept_qkv; }, spoilt);
}

TEST(FlaoErrors, Outputs) {
  using View = TensorView&;
  ExpectErrors(
      "out", false, [](Call& c) -> View { return c.out; }, SpoiltOutputs);
  ExpectErrors(
      "kv", false, [](Call& c) -> View { return *c.kv; }, SpoiltOutputs);
  ExpectErrors(
      "qkv", false, [](Call& c) -> View { return *c.qkv; }, SpoiltOutputs);
  ExpectErrors(
      "dq", true, [](Call& c) -> View { return c.dq; }, SpoiltOutputs);
  ExpectErrors(
      "dk", true, [](Call& c) -> View { return c.dk; }, SpoiltOutputs);
  ExpectErrors(
      "dv", true, [](Call& c) -> View { return c.dv; }, SpoiltOutputs);
  ExpectErrors(
      "dg", true, [](Call& c) -> View { return c.dg; }, SpoiltOutputs);
}

// QKV of float16 tensors is float32, of the others their own type.
TEST(FlaoErrors, TypeOfKeptTensors) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const DType kept : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      Call call;
      for (ConstTensorView* view : {&call.q, &call.k, &call.v, &call.g}) {
        *view = {view->data(), dtype, view->shape()};
      }
      call.out = {call.out.data(), dtype, kG};
      call.qkv = {call.qkv->data(), kept, kG};
      const bool good = kept == (dtype == DType::kFloat16 ? DType::kFloat32 : dtype);
      if (good) {
        EXPECT_NO_THROW(call.Forward());
      } else {
        ExpectError(call, false, "qkv");
      }
      call.qkv.reset();
      call.kv = {call.kv->data(), kept, kKv};
      if (kept != DType::kFloat32) EXPECT_THROW(call.Forward(), Error);
    }
  }
}

}  // namespace
}  // namespace attnops::testing
