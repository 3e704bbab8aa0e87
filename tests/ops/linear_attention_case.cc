#include "tests/ops/linear_attention_case.h"

#include <algorithm>
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

void CheckResult(const char* name, const GuardedTensor& actual, const Values& expected,
                 const Values& scale, double arithmetic) {
  SCOPED_TRACE(name);
  EXPECT_TRUE(actual.AllWritten());
  Values bound(expected.size());
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const double error = arithmetic * scale[i] + kTiny;
    bound[i] = error + StorageError(actual.dtype(), std::abs(expected[i]) + error);
  }
  EXPECT_TRUE(AllNear(actual.Values(), expected, bound));
}

// (B,N,H,features), contiguous or with heads before tokens and gaps in memory.
GuardedTensor Make(const LinearAttentionSpec& spec, DType dtype, std::int64_t heads,
                   std::int64_t features) {
  const Dims shape = {spec.batch, spec.n, heads, features};
  if (!spec.heads_first) return GuardedTensor(dtype, shape);
  const std::int64_t row = features + 3, head = spec.n * row + 5;
  return GuardedTensor(dtype, shape, {heads * head + 1, row, head, 1}, 1);
}
GuardedTensor MakeDecay(const LinearAttentionSpec& spec) {
  const DType dtype = spec.float_decay ? DType::kFloat32 : spec.dtype;
  switch (spec.decay) {
    case DecayKind::kNone:
      return GuardedTensor(dtype, {0});
    case DecayKind::kConstant:
      return GuardedTensor(dtype, {spec.heads}, {spec.heads_first ? 3 : 1});
    case DecayKind::kToken:
      if (!spec.heads_first) return GuardedTensor(dtype, {spec.batch, spec.n, spec.heads});
      return GuardedTensor(dtype, {spec.batch, spec.n, spec.heads},
                           {spec.heads * spec.n + 2, 1, spec.n});
    case DecayKind::kFeature:
      break;
  }
  return Make(spec, dtype, spec.heads, spec.d);
}
GuardedTensor MakeDecayV(const LinearAttentionSpec& spec) {
  const DType dtype = spec.float_decay ? DType::kFloat32 : spec.dtype;
  return spec.on_values ? Make(spec, dtype, spec.heads, spec.e) : GuardedTensor(dtype, {0});
}
GuardedTensor MakeState(const LinearAttentionSpec& spec) {
  const auto packed = static_cast<std::int64_t>(spec.cu_seqlens.size()) - 1;
  const std::int64_t sequences = spec.cu_seqlens.empty() ? spec.batch : packed;
  const Dims shape = {spec.states ? sequences : 0, spec.heads, spec.d, spec.e};
  if (!spec.heads_first) return GuardedTensor(DType::kFloat32, shape);
  const std::int64_t row = spec.e + 1, head = spec.d * row + 2;
  return GuardedTensor(DType::kFloat32, shape, {spec.heads * head, head, row, 1});
}

}  // namespace

std::string LinearAttentionSpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " N=" << n << " H=" << key_heads << "," << heads
       << " D=" << d << " E=" << e << " decay " << static_cast<int>(decay) << " of size "
       << decay_size << (on_values ? ", of values" : "") << (states ? ", states" : "")
       << (heads_first ? ", heads first" : "") << (float_decay ? ", float32 decay" : "")
       << (keep ? ", keeps states" : "") << (cu_seqlens.empty() ? "" : ", packed");
  return text.str();
}

LinearAttentionCase::LinearAttentionCase(const LinearAttentionSpec& spec)
    : q(Make(spec, spec.dtype, spec.key_heads, spec.d)),
      k(Make(spec, spec.dtype, spec.key_heads, spec.d)),
      v(Make(spec, spec.dtype, spec.heads, spec.e)),
      d_out(Make(spec, spec.dtype, spec.heads, spec.e)),
      log_decay(MakeDecay(spec)),
      log_decay_v(MakeDecayV(spec)),
      initial_state(MakeState(spec)),
      d_state(MakeState(spec)),
      out(Make(spec, spec.dtype, spec.heads, spec.e)),
      state(MakeState(spec)),
      kept_states(DType::kFloat32, {spec.keep ? LinearAttentionKeptStates(spec.batch, spec.n) : 0,
                                    spec.heads, spec.d, spec.e}),
      dq(Make(spec, spec.dtype, spec.key_heads, spec.d)),
      dk(Make(spec, spec.dtype, spec.key_heads, spec.d)),
      dv(Make(spec, spec.dtype, spec.heads, spec.e)),
      d_log_decay(MakeDecay(spec)),
      d_log_decay_v(MakeDecayV(spec)),
      d_initial_state(MakeState(spec)),
      spec_(spec) {
  std::uint32_t seed = 1;
  for (GuardedTensor* tensor : {&q, &k, &v, &d_out, &initial_state, &d_state}) {
    tensor->Fill(RandomNormal(tensor->size(), seed++));
  }
  for (GuardedTensor* tensor : {&log_decay, &log_decay_v}) {
    Values values = RandomNormal(tensor->size(), seed++, std::abs(spec.decay_size));
    for (double& value : values) value = std::copysign(value, spec.decay_size);
    tensor->Fill(values);
  }
}

LinearAttentionOptions LinearAttentionCase::Options() {
  LinearAttentionOptions options;
  if (spec_.decay != DecayKind::kNone) options.log_decay = log_decay.view();
  if (spec_.on_values) options.log_decay_v = log_decay_v.view();
  options.scale = spec_.scale;
  options.cu_seqlens = spec_.cu_seqlens;
  options.precision = precision;
  if (spec_.states) options.initial_state = initial_state.view();
  return options;
}

void LinearAttentionCase::Forward() {
  out.Poison();
  state.Poison();
  LinearAttentionOptions options = Options();
  if (spec_.states) options.state = state.view();
  kept_states.Poison();
  if (spec_.keep) options.kept_states = kept_states.view();
  LinearAttention(q.view(), k.view(), v.view(), out.view(), options);
}

void LinearAttentionCase::Backward() {
  LinearAttentionGradients gradients;
  for (GuardedTensor* tensor : {&dq, &dk, &dv, &d_log_decay, &d_log_decay_v, &d_initial_state}) {
    tensor->Poison();
  }
  if (spec_.decay != DecayKind::kNone) gradients.d_log_decay = d_log_decay.view();
  if (spec_.on_values) gradients.d_log_decay_v = d_log_decay_v.view();
  if (spec_.states) {
    gradients.d_state = d_state.view();
    gradients.d_initial_state = d_initial_state.view();
  }
  if (spec_.keep) gradients.kept_states = kept_states.view();
  LinearAttentionBackward(q.view(), k.view(), v.view(), d_out.view(), dq.view(), dk.view(),
                          dv.view(), Options(), gradients);
}

std::vector<std::vector<std::uint8_t>> LinearAttentionCase::InputMemory() const {
  std::vector<std::vector<std::uint8_t>> memory;
  for (const GuardedTensor* tensor :
       {&q, &k, &v, &d_out, &log_decay, &log_decay_v, &initial_state, &d_state}) {
    memory.push_back(tensor->memory());
  }
  return memory;
}

reference::LinearAttention LinearAttentionCase::Reference() const {
  const double scale =
      spec_.scale ? *spec_.scale : 1 / std::sqrt(std::max<double>(static_cast<double>(spec_.d), 1));
  reference::LinearAttention reference{spec_.batch, spec_.n, spec_.key_heads,  spec_.heads,
                                       spec_.d,     spec_.e, spec_.cu_seqlens, scale};
  reference.decay = spec_.decay;
  return reference;
}
reference::LinearAttention::Inputs LinearAttentionCase::ReferenceInputs() const {
  return {q.Values(),         k.Values(),           v.Values(),
          log_decay.Values(), log_decay_v.Values(), initial_state.Values()};
}

// Sums over tokens and features one through the other, the products of decays and, in `medium`, how
// often a term is rounded as an operand beside a decayed q or k.
double LinearAttentionCase::Arithmetic(std::int64_t features, int rounded) const {
  const bool has_decay = spec_.decay != DecayKind::kNone;
  double most = 0;
  for (const GuardedTensor* tensor : {&log_decay, &log_decay_v}) {
    for (const double value : tensor->Values()) {
      if (std::isfinite(value)) most = std::max(most, std::abs(value));
    }
  }
  return SumError(spec_.n) + SumError(features) + 4 * kUnitFloat32 +
         DecayError(most * static_cast<double>(spec_.n)) +
         (HasBf16Products() ? OperandError(precision, rounded + (has_decay ? 1 : 0)) : 0);
}

void LinearAttentionCase::CheckForward() {
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    CheckForwardNow();
  });
  precision = Precision::kHighest;
}
void LinearAttentionCase::CheckBackward() {
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    CheckBackwardNow();
  });
  precision = Precision::kHighest;
}

void LinearAttentionCase::CheckForwardNow() {
  SCOPED_TRACE("forward, " + spec_.Describe());
  const auto before = InputMemory();
  Forward();
  CompareForward();
  EXPECT_TRUE(before == InputMemory()) << "an input has changed";
}

reference::LinearAttention::Inputs LinearAttentionCase::Magnitudes() const {
  auto inputs = ReferenceInputs();
  for (Values* values : {&inputs.q, &inputs.k, &inputs.v, &inputs.initial_state}) {
    *values = Abs(*values);
  }
  return inputs;
}

void LinearAttentionCase::CompareForward() {
  if (!forward_) {
    forward_ = {Reference().Run(ReferenceInputs()), Reference().Run(Magnitudes())};
  }
  const auto& [want, scale] = *forward_;
  // The state or a score.
  CheckResult("out", out, want.out, scale.out, Arithmetic(spec_.d, 1));
  if (spec_.states) CheckResult("state", state, want.state, scale.state, Arithmetic(1, 0));
}

// The gradient of a decay is a running sum of q ⊙ dq − k ⊙ dk (or of do ⊙ o − v ⊙ dv): its error is
// relative to the largest of these in the sequence, of all that the decay is shared by.
std::vector<double> LinearAttentionCase::DecayScale(
    const reference::LinearAttention::Backward& scale,
    const reference::LinearAttention::Inputs& inputs, bool of_values) const {
  const std::int64_t rows = spec_.batch * spec_.n,
                     group = std::max<std::int64_t>(spec_.heads, 1) /
                             std::max<std::int64_t>(spec_.key_heads, 1);
  const std::int64_t features = of_values ? spec_.e : spec_.d;
  double most = 0, all = 0;
  for (std::int64_t i = 0; i < rows * spec_.heads; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < features; ++j) {
      double term = 0;
      if (of_values) {
        const std::int64_t at = i * features + j;
        // dO ⊙ O is at most what V ⊙ dV and the decay's own gradient add up to over the tokens.
        term = inputs.v[at] * scale.dv[at] + scale.d_log_decay_v[at];
      } else {
        const std::int64_t at =
            (i / spec_.heads * spec_.key_heads + i % spec_.heads / group) * features + j;
        term = inputs.q[at] * scale.dq[at] + inputs.k[at] * scale.dk[at];
      }
      sum += term;
      most = std::max(most, term);
    }
    all = std::max(all, sum);
  }
  const bool whole = !of_values && spec_.decay != DecayKind::kFeature;
  const Values& own = of_values ? scale.d_log_decay_v : scale.d_log_decay;
  Values result(own.size());
  const double shared = spec_.decay == DecayKind::kConstant && !of_values
                            ? static_cast<double>(spec_.n * spec_.batch)
                            : 1;
  for (std::size_t i = 0; i < own.size(); ++i) {
    result[i] = own[i] + shared * (whole ? all : most);
  }
  return result;
}

void LinearAttentionCase::CheckBackwardNow() {
  SCOPED_TRACE("backward, " + spec_.Describe());
  const auto before = InputMemory();
  Backward();
  const auto inputs = Magnitudes();
  if (!backward_) {
    const Values ds = d_out.Values(), dstate = d_state.Values();
    backward_ = {Reference().RunBackward(ReferenceInputs(), ds, dstate),
                 Reference().RunBackward(inputs, Abs(ds), Abs(dstate))};
  }
  const auto& [want, scale] = *backward_;
  const std::int64_t group = spec_.heads / std::max<std::int64_t>(spec_.key_heads, 1);
  // The state, its gradient or a score.
  const double of_e = Arithmetic(spec_.e * group, 1);
  CheckResult("dq", dq, want.dq, scale.dq, of_e);
  CheckResult("dk", dk, want.dk, scale.dk, of_e);
  CheckResult("dv", dv, want.dv, scale.dv, Arithmetic(spec_.d, 1));
  const double of_both = Arithmetic(spec_.d * spec_.e, 1);
  if (spec_.decay != DecayKind::kNone) {
    CheckResult("d_log_decay", d_log_decay, want.d_log_decay, DecayScale(scale, inputs, false),
                of_both);
  }
  if (spec_.on_values) {
    CheckResult("d_log_decay_v", d_log_decay_v, want.d_log_decay_v, DecayScale(scale, inputs, true),
                of_both);
  }
  if (spec_.states) {
    CheckResult("d_initial_state", d_initial_state, want.d_initial_state, scale.d_initial_state,
                Arithmetic(1, 0));
  }
  EXPECT_TRUE(before == InputMemory()) << "an input has changed";
}

std::vector<std::vector<std::uint32_t>> LinearAttentionCase::Bits() {
  std::vector<std::vector<std::uint32_t>> bits;
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Forward();
    Backward();
    for (const GuardedTensor* tensor :
         {&out, &state, &dq, &dk, &dv, &d_log_decay, &d_log_decay_v, &d_initial_state}) {
      bits.push_back(tensor->Bits());
    }
  });
  precision = Precision::kHighest;
  return bits;
}

}  // namespace attnops::testing
