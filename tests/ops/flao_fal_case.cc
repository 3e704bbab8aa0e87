#include "tests/ops/flao_fal_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "tests/ops/activation_bounds.h"
#include "tests/support/precisions.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// With a shape, the sequences have its tokens and those in front; theta has the angles it must.
FlaoFalSpec Completed(FlaoFalSpec spec) {
  if (spec.shape.rank() > 0) {
    spec.n = spec.m = spec.l + TensorView(nullptr, spec.dtype, spec.shape).size();
  }
  if (spec.angles == 0) {
    const std::int64_t pairs = spec.lrpe == Lrpe::kCosine ? spec.d : spec.d / 2;
    const std::int64_t axes = std::max(spec.shape.rank(), 1);
    spec.angles = (pairs + axes - 1) / axes;
  }
  return spec;
}

GuardedTensor Make(DType dtype, const FlaoFalSpec& spec, std::int64_t rows, std::int64_t features,
                   Layout layout) {
  return MakeTensor(dtype, {spec.batch, spec.heads, rows, features}, layout);
}

std::int64_t EncodedFeatures(const FlaoFalSpec& spec) {
  return spec.lrpe == Lrpe::kCosine ? 2 * spec.d : spec.d;
}

reference::FlaoFal::Act Of(const Activation& act) {
  const bool features = act.dim == -1 || act.dim == 3;
  return {act.kind, features ? reference::Axis::kFeatures : reference::Axis::kSequence};
}

void CheckStored(const char* name, const GuardedTensor& actual, const Expected& expected) {
  SCOPED_TRACE(name);
  CheckResult(actual,
              {expected.value, WithStorageError(actual.dtype(), expected.value, expected.bound)});
}

}  // namespace

FlaoFalSpec WithEncoding(FlaoFalSpec spec, const NamedEncoding& encoding) {
  spec.lrpe = encoding.lrpe;
  spec.shape = encoding.shape;
  spec.offset = encoding.offset;
  spec.l = encoding.l;
  return spec;
}

std::string FlaoFalSpec::Describe() const {
  static constexpr const char* kNames[] = {"none", "cosine", "rotate"};
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " H=" << heads << " N=" << n << " M=" << m << " D=" << d
       << " E=" << e << " q " << testing::Describe(q_act) << " k " << testing::Describe(k_act)
       << " v " << testing::Describe(v_act) << " g " << testing::Describe(g_act) << " lrpe "
       << kNames[static_cast<int>(lrpe)];
  if (lrpe != Lrpe::kNone) {
    text << " theta " << Name(theta_dtype) << " (" << theta_heads << "," << angles << ") shape ("
         << testing::Describe(shape) << ") offset " << offset << " l=" << l;
  }
  text << " layouts " << static_cast<int>(inputs) << " " << static_cast<int>(outputs);
  return text.str();
}

FlaoFalCase::FlaoFalCase(const FlaoFalSpec& spec)
    : spec_(Completed(spec)),
      q(Make(spec_.dtype, spec_, spec_.n, spec_.d, spec_.inputs)),
      k(Make(spec_.dtype, spec_, spec_.m, spec_.d, spec_.inputs)),
      v(Make(spec_.dtype, spec_, spec_.m, spec_.e, spec_.inputs)),
      g(Make(spec_.dtype, spec_, spec_.n, spec_.e, spec_.inputs)),
      d_out(Make(spec_.dtype, spec_, spec_.n, spec_.e, spec_.inputs)),
      theta(spec_.theta_dtype, {spec_.theta_heads, spec_.angles}),
      out(Make(spec_.dtype, spec_, spec_.n, spec_.e, spec_.outputs)),
      kv(Make(DType::kFloat32, spec_, EncodedFeatures(spec_), spec_.e, spec_.outputs)),
      qkv(Make(KeptType(spec_.dtype), spec_, spec_.n, spec_.e, spec_.outputs)),
      dq(Make(spec_.dtype, spec_, spec_.n, spec_.d, spec_.outputs)),
      dk(Make(spec_.dtype, spec_, spec_.m, spec_.d, spec_.outputs)),
      dv(Make(spec_.dtype, spec_, spec_.m, spec_.e, spec_.outputs)),
      dg(Make(spec_.dtype, spec_, spec_.n, spec_.e, spec_.outputs)) {
  std::uint32_t seed = 1;
  for (GuardedTensor* tensor : {&q, &k, &v, &g, &d_out}) {
    tensor->Fill(RandomNormal(tensor->size(), seed++));
  }
  theta.Fill(RandomUniform(theta.size(), seed, -2, 2));
}

FlaoFalOptions FlaoFalCase::Options() const {
  FlaoFalOptions options{.q_act = spec_.q_act,
                         .k_act = spec_.k_act,
                         .v_act = spec_.v_act,
                         .g_act = spec_.g_act,
                         .lrpe = spec_.lrpe,
                         .theta = {},
                         .shape = spec_.shape,
                         .offset = spec_.offset,
                         .l = spec_.l};
  if (spec_.lrpe != Lrpe::kNone) options.theta = theta.view();
  return options;
}

reference::FlaoFal FlaoFalCase::Reference() const {
  return {spec_.batch,     spec_.heads,     spec_.n,         spec_.m,
          spec_.d,         spec_.e,         Of(spec_.q_act), Of(spec_.k_act),
          Of(spec_.v_act), Of(spec_.g_act), spec_.lrpe,      spec_.theta_heads,
          spec_.angles,    spec_.shape,     spec_.offset,    spec_.l};
}

reference::FlaoFal::Inputs FlaoFalCase::InputValues() const {
  return {q.Values(), k.Values(), v.Values(), g.Values()};
}

void FlaoFalCase::Forward(Keep keep) {
  for (GuardedTensor* tensor : {&out, &kv, &qkv}) tensor->Poison();
  FlaoOptions kept;
  kept.precision = precision;
  if (keep != Keep::kNone) kept.kv = kv.view();
  if (keep == Keep::kKvQkv) kept.qkv = qkv.view();
  FlaoFal(q.view(), k.view(), v.view(), g.view(), out.view(), Options(), kept);
}

void FlaoFalCase::Backward(Keep keep) {
  for (GuardedTensor* tensor : {&dq, &dk, &dv, &dg}) tensor->Poison();
  FlaoKept kept;
  kept.precision = precision;
  if (keep != Keep::kNone) kept.kv = kv.view();
  if (keep == Keep::kKvQkv) kept.qkv = qkv.view();
  FlaoFalBackward(q.view(), k.view(), v.view(), g.view(), d_out.view(), dq.view(), dk.view(),
                  dv.view(), dg.view(), Options(), kept);
}

std::vector<std::vector<std::uint8_t>> FlaoFalCase::InputMemory() const {
  return {q.memory(), k.memory(), v.memory(), g.memory(), d_out.memory(), theta.memory()};
}

std::string FlaoFalCase::Trace(const char* pass, Keep keep) const {
  return pass + std::string(", keep ") + std::to_string(static_cast<int>(keep)) + " " +
         spec_.Describe();
}

const FlaoFalExpected& FlaoFalCase::Expected() {
  // kHigh has the bounds of kHighest.
  const Precision key = precision == Precision::kMedium ? precision : Precision::kHighest;
  const auto found = expected_.find(key);
  if (found != expected_.end()) return found->second;
  return expected_[key] =
             ExpectedFlaoFal(Reference(), InputValues(), theta.Values(), d_out.Values(), key);
}

void FlaoFalCase::CheckForward(Keep keep) {
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    CheckForwardNow(keep);
  });
  precision = Precision::kHighest;
}

void FlaoFalCase::CheckBackward(Keep keep) {
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    CheckBackwardNow(keep);
  });
  precision = Precision::kHighest;
}

void FlaoFalCase::CheckForwardNow(Keep keep) {
  SCOPED_TRACE(Trace("forward", keep));
  const auto before = InputMemory();
  Forward(keep);
  CheckStored("out", out, Expected().out);
  if (keep != Keep::kNone) {
    CheckStored("kv", kv, Expected().kv);
  } else {
    EXPECT_TRUE(kv.Untouched());
  }
  if (keep == Keep::kKvQkv) {
    CheckStored("qkv", qkv, Expected().qkv);
  } else {
    EXPECT_TRUE(qkv.Untouched());
  }
  EXPECT_TRUE(before == InputMemory()) << "an input has changed";
}

void FlaoFalCase::CheckBackwardNow(Keep keep) {
  SCOPED_TRACE(Trace("backward", keep));
  Forward(keep);
  const auto before = InputMemory();
  const auto kept_before = std::pair(kv.memory(), qkv.memory());
  Backward(keep);
  const bool rounded = keep == Keep::kKvQkv && spec_.dtype == DType::kBFloat16;
  CheckStored("dq", dq, Expected().dq);
  CheckStored("dk", dk, Expected().dk);
  CheckStored("dv", dv, Expected().dv);
  CheckStored("dg", dg, rounded ? Expected().dg_of_rounded_qkv : Expected().dg);
  EXPECT_TRUE(before == InputMemory()) << "an input has changed";
  EXPECT_TRUE(kept_before == std::pair(kv.memory(), qkv.memory())) << "a kept tensor has changed";
}

void FlaoFalCase::CheckAll() {
  OnEveryTarget([&] {
    for (const Keep keep : kAllKeeps) {
      CheckForward(keep);
      CheckBackward(keep);
    }
  });
}

std::vector<std::vector<std::uint32_t>> FlaoFalCase::Bits(Keep keep) {
  std::vector<std::vector<std::uint32_t>> bits;
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Forward(keep);
    Backward(keep);
    for (const GuardedTensor* tensor : {&out, &kv, &qkv, &dq, &dk, &dv, &dg}) {
      bits.push_back(tensor->Bits());
    }
  });
  precision = Precision::kHighest;
  return bits;
}

}  // namespace attnops::testing
