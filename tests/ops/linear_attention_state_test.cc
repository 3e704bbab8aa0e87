// States: a sequence in pieces, step by step, in place; the same bits for any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/ops/case.h"
#include "tests/ops/linear_attention_case.h"
#include "tests/support/parallel_fors.h"
#include "tests/support/precisions.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// Tokens [begin, end) of a contiguous (1,N,...) tensor.
template <typename View>
View Tokens(const View& view, std::int64_t begin, std::int64_t end) {
  Dims shape = view.shape();
  shape[1] = end - begin;
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  auto* data = static_cast<Byte*>(view.data()) + begin * view.stride(1) * SizeOf(view.dtype());
  return {data, view.dtype(), shape, view.strides()};
}

// The sequence cut at `cuts`: the state goes on in place from one call to the next. What comes out
// is checked against the reference of the whole.
void CheckCutNow(LinearAttentionCase& c, const std::vector<std::int64_t>& cuts) {
  const LinearAttentionSpec& spec = c.spec();
  c.out.Poison();
  c.state.Fill(c.initial_state.Values());
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    LinearAttentionOptions options;
    if (spec.decay == DecayKind::kConstant) options.log_decay = c.log_decay.view();
    if (spec.decay == DecayKind::kToken || spec.decay == DecayKind::kFeature) {
      options.log_decay = Tokens<ConstTensorView>(c.log_decay.view(), begin, end);
    }
    if (spec.on_values) {
      options.log_decay_v = Tokens<ConstTensorView>(c.log_decay_v.view(), begin, end);
    }
    options.initial_state = c.state.view();
    options.state = c.state.view();
    options.precision = c.precision;
    LinearAttention(Tokens<ConstTensorView>(c.q.view(), begin, end),
                    Tokens<ConstTensorView>(c.k.view(), begin, end),
                    Tokens<ConstTensorView>(c.v.view(), begin, end),
                    Tokens<TensorView>(c.out.view(), begin, end), options);
    begin = end;
  }
  c.CompareForward();
}
void CheckCut(LinearAttentionCase& c, const std::vector<std::int64_t>& cuts) {
  InEveryPrecision(c.spec().dtype, [&](Precision precision) {
    c.precision = precision;
    CheckCutNow(c, cuts);
  });
}

TEST(LinearAttentionState, ResumesAtEveryCut) {
  for (const DecayKind decay : kAllDecays) {
    LinearAttentionCase c({.dtype = kAllTypes[static_cast<int>(decay) % 3],
                           .n = 67,
                           .key_heads = 1,
                           .d = 5,
                           .e = 9,
                           .decay = decay,
                           .on_values = decay == DecayKind::kToken});
    for (std::int64_t cut = 0; cut <= 67; ++cut) CheckCut(c, {cut, 67});
  }
  LinearAttentionCase pairs({.dtype = DType::kBFloat16,
                             .n = 67,
                             .key_heads = 1,
                             .d = 5,
                             .e = 9,
                             .decay = DecayKind::kToken});
  for (std::int64_t cut = 0; cut <= 67; ++cut) CheckCut(pairs, {cut, 67});
}

TEST(LinearAttentionState, PrefillThenSteps) {
  for (const DecayKind decay : kAllDecays) {
    for (const bool on_values : {false, true}) {
      LinearAttentionCase c({.n = 90,
                             .key_heads = 1,
                             .heads = 2,
                             .d = 19,
                             .e = 35,
                             .decay = decay,
                             .on_values = on_values});
      OnEveryTarget([&] {
        std::vector<std::int64_t> cuts = {70};
        while (cuts.back() < 90) cuts.push_back(cuts.back() + 1);
        CheckCut(c, cuts);
      });
    }
  }
}

// float32, and bfloat16 in every precision. Without a decay of the values tokens have one of their
// own, and with bfloat16 products a path.
template <typename Body>
void ForEachTypeAndDecay(const Body& body) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const DecayKind decay : kAllDecays) body(dtype, decay);
  }
}
bool HasValueDecay(DType dtype, DecayKind decay) {
  return dtype == DType::kFloat32 && decay == DecayKind::kToken;
}

// Sequences of several pieces, few and many heads, groups: tasks are heads or pieces of them.
TEST(LinearAttentionState, SameBitsForAnyNumberOfThreads) {
  ForEachTypeAndDecay([](DType dtype, DecayKind decay) {
    for (const std::int64_t heads : {1, 6}) {
      LinearAttentionCase c({.dtype = dtype,
                             .n = 2300,
                             .key_heads = heads == 1 ? 1 : 2,
                             .heads = heads,
                             .d = 17,
                             .e = 20,
                             .decay = decay,
                             .on_values = HasValueDecay(dtype, decay),
                             .decay_size = -0.01});
      ExpectSameInEverySetting(kThreadCounts, [&] { return c.Bits(); });
    }
    LinearAttentionCase packed({.dtype = dtype,
                                .n = 3000,
                                .key_heads = 1,
                                .heads = 1,
                                .d = 9,
                                .e = 8,
                                .decay = decay,
                                .cu_seqlens = {0, 5, 5, 2100, 3000}});
    ExpectSameInEverySetting(kThreadCounts, [&] { return packed.Bits(); });
  });
}

// The backward with kept states has the bits of the one that computes them anew, and reads them
// where a sequence is cut into tasks.
TEST(LinearAttentionState, KeptStatesGiveTheSameGradients) {
  const auto check = [](LinearAttentionSpec spec) {
    const auto anew = LinearAttentionCase(spec).Bits();
    spec.keep = true;
    LinearAttentionCase c(spec);
    ExpectSameInEverySetting(kThreadCounts, [&] { return c.Bits(); });
    EXPECT_EQ(c.Bits(), anew) << spec.Describe();
    c.kept_states.Poison();
    const ParallelRestorer restorer;
    SetNumThreads(16);
    c.Backward();
    EXPECT_TRUE(std::isnan(c.dq.Values().back())) << spec.Describe();
  };
  ForEachTypeAndDecay([&](DType dtype, DecayKind decay) {
    for (const std::int64_t heads : {1, 6}) {
      check({.dtype = dtype,
             .n = 2300,
             .key_heads = heads == 1 ? 1 : 2,
             .heads = heads,
             .d = 9,
             .e = 20,
             .decay = decay,
             .on_values = HasValueDecay(dtype, decay),
             .decay_size = -0.01});
    }
    check({.dtype = dtype,
           .n = 3500,
           .key_heads = 1,
           .heads = 1,
           .d = 3,
           .e = 4,
           .decay = decay,
           .cu_seqlens = {0, 5, 5, 1029, 3500}});
  });
  for (const std::int64_t heads : {1, 2}) {
    check({.n = 70000, .key_heads = 1, .heads = heads, .d = 1, .e = 2, .decay = DecayKind::kToken});
  }
}

// A sequence has the same bits alone and in a batch.
TEST(LinearAttentionState, SameBitsInEveryBatch) {
  ForEachTypeAndDecay([](DType dtype, DecayKind decay) {
    const LinearAttentionSpec spec{.dtype = dtype,
                                   .batch = 3,
                                   .n = 1100,
                                   .key_heads = 1,
                                   .heads = 1,
                                   .d = 8,
                                   .e = 9,
                                   .decay = decay};
    LinearAttentionCase all(spec);
    LinearAttentionSpec one = spec;
    one.batch = 1;
    LinearAttentionCase first(one);
    const auto head = [](const GuardedTensor& tensor, std::int64_t size) {
      std::vector<double> values = tensor.Values();
      values.resize(size);
      return values;
    };
    first.q.Fill(head(all.q, first.q.size()));
    first.k.Fill(head(all.k, first.k.size()));
    first.v.Fill(head(all.v, first.v.size()));
    first.d_out.Fill(head(all.d_out, first.d_out.size()));
    first.log_decay.Fill(head(all.log_decay, first.log_decay.size()));
    first.initial_state.Fill(head(all.initial_state, first.initial_state.size()));
    first.d_state.Fill(head(all.d_state, first.d_state.size()));
    const auto many = all.Bits();
    const auto few = first.Bits();
    for (std::size_t i = 0; i < few.size(); ++i) {
      if (i % 8 == 5 && decay == DecayKind::kConstant) continue;  // a sum over the batch
      EXPECT_TRUE(std::equal(few[i].begin(), few[i].end(), many[i].begin())) << i;
    }
  });
}

}  // namespace
}  // namespace attnops::testing
