#include "tests/ops/flao_case.h"

#include <cmath>
#include <sstream>

#include "tests/support/compare.h"
#include "tests/support/precisions.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;

Values Abs(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

// `kept` is the rounding of a tensor that the result goes through.
void CheckResult(const char* name, const GuardedTensor& actual, const Values& expected,
                 const Values& scale, double arithmetic, double kept = 0) {
  SCOPED_TRACE(name);
  EXPECT_TRUE(actual.AllWritten());
  Values bound(expected.size());
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const double error = arithmetic * scale[i] + kept * std::abs(expected[i]) + kTiny;
    bound[i] = error + StorageError(actual.dtype(), std::abs(expected[i]) + error);
  }
  EXPECT_TRUE(AllNear(actual.Values(), expected, bound));
}

// (B,H,rows,features)
GuardedTensor Make(DType dtype, const FlaoSpec& spec, std::int64_t rows, std::int64_t features,
                   Layout layout) {
  return MakeTensor(dtype, {spec.batch, spec.heads, rows, features}, layout);
}

}  // namespace

GuardedTensor MakeTensor(DType dtype, const Dims& shape, Layout layout) {
  const std::int64_t heads = shape[1], rows = shape[2], features = shape[3];
  switch (layout) {
    case Layout::kContiguous:
      break;
    case Layout::kTokensFirst:
      return GuardedTensor(dtype, shape, {rows * heads * features, features, heads * features, 1});
    case Layout::kGaps: {
      const std::int64_t row = features + 3;
      const std::int64_t head = rows * row + 5;
      return GuardedTensor(dtype, shape, {heads * head + 1, head, row, 1}, 1);
    }
    case Layout::kReversed: {
      const std::int64_t head = rows * features;
      return GuardedTensor(dtype, shape, {heads * head, -head, -features, 1}, 3);
    }
  }
  return GuardedTensor(dtype, shape);
}

std::string FlaoSpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " H=" << heads << " N=" << n << " M=" << m << " D=" << d
       << " E=" << e << " layouts " << static_cast<int>(inputs) << " " << static_cast<int>(outputs);
  return text.str();
}

FlaoCase::FlaoCase(const FlaoSpec& spec)
    : q(Make(spec.dtype, spec, spec.n, spec.d, spec.inputs)),
      k(Make(spec.dtype, spec, spec.m, spec.d, spec.inputs)),
      v(Make(spec.dtype, spec, spec.m, spec.e, spec.inputs)),
      g(Make(spec.dtype, spec, spec.n, spec.e, spec.inputs)),
      d_out(Make(spec.dtype, spec, spec.n, spec.e, spec.inputs)),
      out(Make(spec.dtype, spec, spec.n, spec.e, spec.outputs)),
      kv(Make(DType::kFloat32, spec, spec.d, spec.e, spec.outputs)),
      qkv(Make(KeptType(spec.dtype), spec, spec.n, spec.e, spec.outputs)),
      dq(Make(spec.dtype, spec, spec.n, spec.d, spec.outputs)),
      dk(Make(spec.dtype, spec, spec.m, spec.d, spec.outputs)),
      dv(Make(spec.dtype, spec, spec.m, spec.e, spec.outputs)),
      dg(Make(spec.dtype, spec, spec.n, spec.e, spec.outputs)),
      spec_(spec) {
  std::uint32_t seed = 1;
  for (GuardedTensor* tensor : {&q, &k, &v, &g, &d_out}) {
    tensor->Fill(RandomNormal(tensor->size(), seed++));
  }
}

void FlaoCase::Forward(Keep keep) {
  for (GuardedTensor* tensor : {&out, &kv, &qkv}) tensor->Poison();
  FlaoOptions options;
  options.precision = precision;
  if (keep != Keep::kNone) options.kv = kv.view();
  if (keep == Keep::kKvQkv) options.qkv = qkv.view();
  Flao(q.view(), k.view(), v.view(), g.view(), out.view(), options);
}

void FlaoCase::Backward(Keep keep) {
  for (GuardedTensor* tensor : {&dq, &dk, &dv, &dg}) tensor->Poison();
  FlaoKept kept;
  kept.precision = precision;
  if (keep != Keep::kNone) kept.kv = kv.view();
  if (keep == Keep::kKvQkv) kept.qkv = qkv.view();
  FlaoBackward(q.view(), k.view(), v.view(), g.view(), d_out.view(), dq.view(), dk.view(),
               dv.view(), dg.view(), kept);
}

std::vector<std::vector<std::uint8_t>> FlaoCase::InputMemory() const {
  return {q.memory(), k.memory(), v.memory(), g.memory(), d_out.memory()};
}

void FlaoCase::Expect() {
  if (expected_) return;
  const reference::Flao reference{spec_.batch, spec_.heads, spec_.n, spec_.m, spec_.d, spec_.e};
  const Values qs = q.Values(), ks = k.Values(), vs = v.Values(), gs = g.Values();
  const Values ds = d_out.Values();
  expected_ =
      Expected{reference.Run(qs, ks, vs, gs), reference.Run(Abs(qs), Abs(ks), Abs(vs), Abs(gs)),
               reference.RunBackward(qs, ks, vs, gs, ds),
               reference.RunBackward(Abs(qs), Abs(ks), Abs(vs), Abs(gs), Abs(ds))};
}

void FlaoCase::CheckForward(Keep keep) {
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    CheckForwardNow(keep);
  });
  precision = Precision::kHighest;
}

void FlaoCase::CheckBackward(Keep keep) {
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    CheckBackwardNow(keep);
  });
  precision = Precision::kHighest;
}

void FlaoCase::CheckForwardNow(Keep keep) {
  SCOPED_TRACE("forward, keep " + std::to_string(static_cast<int>(keep)) + " " + spec_.Describe());
  Expect();
  const auto before = InputMemory();
  Forward(keep);
  const auto& want = expected_->forward;
  const auto& scale = expected_->forward_scale;
  const double of_kv = OperandError(precision, 1);
  CheckResult("out", out, want.out, scale.out, TwoSums(spec_.m, spec_.d) + of_kv);
  if (keep != Keep::kNone) {
    CheckResult("kv", kv, want.kv, scale.kv, SumError(spec_.m));
  } else {
    EXPECT_TRUE(kv.Untouched());
  }
  if (keep == Keep::kKvQkv) {
    CheckResult("qkv", qkv, want.qkv, scale.qkv, TwoSums(spec_.m, spec_.d) + of_kv);
  } else {
    EXPECT_TRUE(qkv.Untouched());
  }
  EXPECT_TRUE(before == InputMemory()) << "an input has changed";
}

void FlaoCase::CheckBackwardNow(Keep keep) {
  SCOPED_TRACE("backward, keep " + std::to_string(static_cast<int>(keep)) + " " + spec_.Describe());
  Expect();
  Forward(keep);
  const auto before = InputMemory();
  const auto kept_before = std::pair(kv.memory(), qkv.memory());
  Backward(keep);
  const auto& want = expected_->backward;
  const auto& scale = expected_->backward_scale;
  // dO ⊙ G, and KV or dKV.
  const double of_both = OperandError(precision, 2), of_kv = OperandError(precision, 1);
  const bool rounded = keep == Keep::kKvQkv && spec_.dtype == DType::kBFloat16;
  CheckResult("dq", dq, want.dq, scale.dq, TwoSums(spec_.m, spec_.e) + of_both);
  CheckResult("dk", dk, want.dk, scale.dk, TwoSums(spec_.n, spec_.e) + of_both);
  CheckResult("dv", dv, want.dv, scale.dv, TwoSums(spec_.n, spec_.d) + of_both);
  CheckResult("dg", dg, want.dg, scale.dg, TwoSums(spec_.m, spec_.d) + of_kv,
              rounded ? kUnitBFloat16 : 0);
  EXPECT_TRUE(before == InputMemory()) << "an input has changed";
  EXPECT_TRUE(kept_before == std::pair(kv.memory(), qkv.memory())) << "a kept tensor has changed";
}

std::vector<std::vector<std::uint32_t>> FlaoCase::Bits(Keep keep) {
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
