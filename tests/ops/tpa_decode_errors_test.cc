// Bad input of every kind: an Error that names operator and argument, and nothing written.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "attnops/error.h"
#include "attnops/tpa_decode.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;

// A good call, to be spoilt. The tensors are larger than the views, so that a spoilt view never
// leaves them.
struct Call {
  Call() {
    for (GuardedTensor& memory : inputs) memory.Fill(std::vector<double>(kSize, 1));
  }

  void Run() const { TpaDecode(aq, ak, av, bq, bk, bv, out); }

  static constexpr std::int64_t kSize = 1000;
  static std::vector<GuardedTensor> Memory(int count) {
    std::vector<GuardedTensor> memory;
    for (int i = 0; i < count; ++i) memory.emplace_back(kF32, Dims{kSize});
    return memory;
  }
  std::vector<GuardedTensor> inputs = Memory(6);
  std::vector<GuardedTensor> outputs = Memory(1);
  ConstTensorView aq{inputs[0].view().data(), kF32, {2, 1, 3, 4}};
  ConstTensorView ak{inputs[1].view().data(), kF32, {2, 5, 3}};
  ConstTensorView av{inputs[2].view().data(), kF32, {2, 5, 3}};
  ConstTensorView bq{inputs[3].view().data(), kF32, {2, 1, 4, 6}};
  ConstTensorView bk{inputs[4].view().data(), kF32, {2, 5, 6}};
  ConstTensorView bv{inputs[5].view().data(), kF32, {2, 5, 7}};
  TensorView out{outputs[0].view().data(), kF32, {2, 1, 3, 7}};
};

// `name` is a regular expression.
void ExpectError(const Call& call, const std::string& name) {
  try {
    call.Run();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("tpa_decode: "), 0u) << message;
    EXPECT_TRUE(std::regex_search(message, std::regex("\\b" + name + "\\b"))) << message;
  }
  for (const GuardedTensor& memory : call.outputs) EXPECT_TRUE(memory.Untouched());
}

TEST(TpaDecodeErrors, TheUnspoiltCallIsGood) {
  Call call;
  EXPECT_NO_THROW(call.Run());
}

TEST(TpaDecodeErrors, ExactTexts) {
  const auto text = [](const Call& call) -> std::string {
    try {
      call.Run();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  Call features;
  features.bk = {features.bk.data(), kF32, {2, 5, 5}};
  EXPECT_EQ(text(features), "tpa_decode: bk has 5 features; bq has 6");
  Call tokens;
  tokens.aq = {tokens.aq.data(), kF32, {2, 2, 3, 4}};
  EXPECT_EQ(text(tokens), "tpa_decode: aq must have 1 token (axis 1); it has 2");
  Call axes;
  axes.ak = {axes.ak.data(), kF32, {2, 15}};
  EXPECT_EQ(text(axes), "tpa_decode: ak must have 3 axes (B,M,H); its shape is (2, 15)");
  Call out;
  out.out = {out.out.data(), kF32, {2, 1, 3, 6}};
  EXPECT_EQ(text(out), "tpa_decode: out must have the shape (2, 1, 3, 7); it has (2, 1, 3, 6)");
}

// What can be wrong with any view: another size on each axis, fewer or more axes, another type, no
// data, a negative size, features that are not contiguous.
template <typename View>
std::vector<View> Spoilt(const View& view) {
  std::vector<View> views;
  const Dims shape = view.shape();
  const int rank = view.rank();
  for (int axis = 0; axis < rank; ++axis) {
    for (const std::int64_t change : {-1, 1}) {
      Dims other = shape;
      other[axis] += change;
      views.push_back({view.data(), view.dtype(), other});
    }
  }
  views.push_back({view.data(), view.dtype(), Dims{shape[0], shape[1]}});
  views.push_back({view.data(), view.dtype(), Dims{1, 1, shape[0], shape[1], shape[2]}});
  views.push_back({view.data(), DType::kBFloat16, shape});
  views.push_back({view.data(), DType::kFloat16, shape});
  views.push_back({nullptr, view.dtype(), shape});
  Dims negative = shape;
  negative[rank - 2] = -1;
  views.push_back({view.data(), view.dtype(), negative});
  Dims strides = view.strides();
  for (const std::int64_t stride : {0, 2}) {
    strides[rank - 1] = stride;
    views.push_back({view.data(), view.dtype(), shape, strides});
  }
  return views;
}

// Puts each of the spoilt views in the place of a good one.
template <typename View>
void ExpectErrors(const std::string& name, View Call::*member, const std::vector<View>& spoilt) {
  SCOPED_TRACE(name);
  for (std::size_t i = 0; i < spoilt.size(); ++i) {
    SCOPED_TRACE(i);
    Call call;
    const View& with = spoilt[i];
    const auto* data = with.data() == nullptr ? nullptr : (call.*member).data();
    call.*member = View(const_cast<decltype((call.*member).data())>(data), with.dtype(),
                        with.shape(), with.strides());
    ExpectError(call, name);
  }
}

// A wrong size may be blamed on either of two inputs.
TEST(TpaDecodeErrors, Inputs) {
  const Call good;
  ExpectErrors("(aq|ak|av|bq|bk|bv)", &Call::aq, Spoilt(good.aq));
  ExpectErrors("(ak|av|bk|bv)", &Call::ak, Spoilt(good.ak));
  ExpectErrors("av", &Call::av, Spoilt(good.av));
  ExpectErrors("(bq|bk)", &Call::bq, Spoilt(good.bq));
  ExpectErrors("bk", &Call::bk, Spoilt(good.bk));
  ExpectErrors("(bv|out)", &Call::bv, Spoilt(good.bv));
}

TEST(TpaDecodeErrors, Output) {
  const Call good;
  std::vector<TensorView> spoilt = Spoilt(good.out);
  // It may also not overlap itself.
  for (const int axis : {0, 2}) {
    Dims strides = good.out.strides();
    strides[axis] = 0;
    spoilt.push_back({good.out.data(), kF32, good.out.shape(), strides});
    strides[axis] = 2;
    spoilt.push_back({good.out.data(), kF32, good.out.shape(), strides});
  }
  ExpectErrors("out", &Call::out, spoilt);
}

}  // namespace
}  // namespace attnops::testing
