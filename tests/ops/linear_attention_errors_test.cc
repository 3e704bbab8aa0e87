// Bad input of every kind: an Error that names operator and argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/ops/linear_attention_case.h"
#include "tests/support/errors.h"

namespace attnops::testing {
namespace {

// A good call, to be spoilt.
struct Good {
  LinearAttentionCase c{{.batch = 1,
                         .n = 4,
                         .key_heads = 1,
                         .heads = 2,
                         .d = 3,
                         .e = 5,
                         .decay = DecayKind::kFeature,
                         .on_values = true}};
  ConstTensorView q = c.q.view(), k = c.k.view(), v = c.v.view(), d_out = c.d_out.view();
  TensorView out = c.out.view(), dq = c.dq.view(), dk = c.dk.view(), dv = c.dv.view();
  LinearAttentionOptions options{
      c.log_decay.view(), c.log_decay_v.view(), {}, c.initial_state.view(), c.state.view(), {}, {}};
  LinearAttentionGradients gradients{
      c.d_state.view(), c.d_log_decay.view(), c.d_log_decay_v.view(), c.d_initial_state.view(), {}};

  void Forward() const { LinearAttention(q, k, v, out, options); }
  void Backward() const { LinearAttentionBackward(q, k, v, d_out, dq, dk, dv, options, gradients); }
  void ExpectUntouched() const {
    for (const GuardedTensor* tensor : {&c.out, &c.state, &c.dq, &c.dk, &c.dv, &c.d_log_decay,
                                        &c.d_log_decay_v, &c.d_initial_state}) {
      EXPECT_TRUE(tensor->Untouched());
    }
  }
};

struct Spoilt {
  std::string word;  // in the message
  std::function<void(Good&)> spoil;
};

template <typename View>
View WithShape(const View& view, const Dims& shape) {
  return {view.data(), view.dtype(), shape};
}

const Spoilt kBoth[] = {
    {"q",
     [](Good& g) {
       g.q = WithShape(g.q, {4, 3});
     }},
    {"k",
     [](Good& g) {
       g.k = WithShape(g.k, {1, 3, 1, 3});
     }},
    {"v",
     [](Good& g) {
       g.v = WithShape(g.v, {1, 3, 2, 5});
     }},
    {"v",
     [](Good& g) {
       g.v = {g.v.data(), DType::kFloat16, g.v.shape()};
     }},
    {"v",
     [](Good& g) {
       g.q = WithShape(g.q, {1, 2, 3, 2});
       g.k = WithShape(g.k, {1, 2, 3, 2});
       g.v = WithShape(g.v, {1, 2, 4, 5});
     }},
    {"log_decay",
     [](Good& g) {
       g.options.log_decay = WithShape(g.q, {4, 2});
     }},
    {"log_decay", [](Good& g) { g.options.log_decay = WithShape(g.q, {3}); }},
    {"log_decay",
     [](Good& g) {
       g.options.log_decay = WithShape(g.q, {1, 4, 1});
     }},
    {"log_decay",
     [](Good& g) {
       g.options.log_decay = {g.c.log_decay.view().data(), DType::kBFloat16, {1, 4, 2, 3}};
     }},
    {"log_decay_v",
     [](Good& g) {
       g.options.log_decay_v = WithShape(g.q, {1, 4, 2, 4});
     }},
    {"initial_state",
     [](Good& g) {
       g.options.initial_state = WithShape(g.q, {1, 2, 5, 3});
     }},
    {"initial_state",
     [](Good& g) {
       g.options.initial_state = {g.c.initial_state.view().data(), DType::kBFloat16, {1, 2, 3, 5}};
     }},
    {"cu_seqlens",
     [](Good& g) {
       g.options.cu_seqlens = {1, 4};
     }},
    {"cu_seqlens",
     [](Good& g) {
       g.options.cu_seqlens = {0, 3};
     }},
    {"cu_seqlens",
     [](Good& g) {
       g.options.cu_seqlens = {0, 3, 2, 4};
     }},
    {"q",
     [](Good& g) {
       g.q = {g.q.data(), g.q.dtype(), g.q.shape(), {12, 3, 3, 2}};
     }},
};
const Spoilt kForward[] = {
    {"kept_states", [](Good& g) { g.options.kept_states = g.c.dq.view(); }},
    {"kept_states",
     [](Good& g) {
       g.options.kept_states = {g.out.data(), DType::kFloat16, {0, 2, 3, 5}};
     }},
    {"out",
     [](Good& g) {
       g.out = WithShape(g.out, {1, 4, 2, 4});
     }},
    {"out",
     [](Good& g) {
       g.v = WithShape<ConstTensorView>(g.out, {1, 4, 2, 5});
     }},
    {"state",
     [](Good& g) {
       g.options.state = WithShape(*g.options.state, {1, 2, 5, 3});
     }},
    {"state",
     [](Good& g) {
       g.options.state = TensorView{
           g.c.initial_state.view().data(), DType::kFloat32, {1, 2, 3, 5}, {30, 15, 5, 1}};
       g.options.initial_state = ConstTensorView{
           g.c.initial_state.view().data(), DType::kFloat32, {1, 2, 3, 5}, {30, 15, 0, 1}};
     }},
};
const Spoilt kBackward[] = {
    {"kept_states", [](Good& g) { g.gradients.kept_states = g.c.q.view(); }},
    {"d_out",
     [](Good& g) {
       g.d_out = WithShape(g.d_out, {1, 4, 1, 5});
     }},
    {"dq",
     [](Good& g) {
       g.dq = WithShape(g.dq, {1, 4, 1, 2});
     }},
    {"dk", [](Good& g) { g.dk = g.dq; }},
    {"dv",
     [](Good& g) {
       g.dv = {g.dv.data(), DType::kFloat16, g.dv.shape()};
     }},
    {"d_log_decay", [](Good& g) { g.options.log_decay.reset(); }},
    {"d_log_decay_v",
     [](Good& g) {
       g.gradients.d_log_decay_v = WithShape(g.dv, {1, 4, 2, 4});
     }},
    {"d_state",
     [](Good& g) {
       g.gradients.d_state = WithShape(g.q, {1, 1, 3, 4});
     }},
    {"d_initial_state",
     [](Good& g) {
       g.gradients.d_initial_state = WithShape(g.dv, {1, 2, 5, 3});
     }},
};

TEST(LinearAttentionErrors, NameTheArgument) {
  const auto check = [](const Spoilt& spoilt, bool backward) {
    Good good;
    spoilt.spoil(good);
    ExpectErrorNaming("linear_attention", spoilt.word,
                      [&] { backward ? good.Backward() : good.Forward(); });
    good.ExpectUntouched();
  };
  for (const Spoilt& spoilt : kBoth) {
    check(spoilt, false);
    check(spoilt, true);
  }
  for (const Spoilt& spoilt : kForward) check(spoilt, false);
  for (const Spoilt& spoilt : kBackward) check(spoilt, true);
}

TEST(LinearAttentionErrors, CuSeqlensNeedOneBatch) {
  LinearAttentionCase c({.batch = 2, .n = 2, .states = false, .cu_seqlens = {0, 2}});
  ExpectErrorNaming("linear_attention", "cu_seqlens", [&] { c.Forward(); });
}

}  // namespace
}  // namespace attnops::testing
