#include "tests/ops/tpa_decode_case.h"

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

// (B,rows,features), with an axis of one token before the rows if `query`.
GuardedTensor Make(const TpaSpec& spec, std::int64_t rows, std::int64_t features, bool query) {
  std::int64_t row = features, batch = rows * features;
  int shift = 0;
  switch (spec.layout) {
    case TpaLayout::kContiguous:
      break;
    case TpaLayout::kCapacity:
      batch = (rows + 5) * features;
      break;
    case TpaLayout::kGaps:
      row = features + 3;
      batch = rows * row + 5;
      shift = 1;
      break;
    case TpaLayout::kReversed:
      row = -features;
      batch = -rows * features;
      shift = 3;
      break;
  }
  if (query) {
    return GuardedTensor(spec.dtype, {spec.batch, 1, rows, features}, {batch, 1, row, 1}, shift);
  }
  return GuardedTensor(spec.dtype, {spec.batch, rows, features}, {batch, row, 1}, shift);
}

Values Abs(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

}  // namespace

std::string TpaSpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " M=" << m << " H=" << heads << " R=" << rank
       << " D=" << d << " E=" << e << " layout " << static_cast<int>(layout);
  return text.str();
}

TpaCase::TpaCase(const TpaSpec& spec)
    : aq(Make(spec, spec.heads, spec.rank, true)),
      ak(Make(spec, spec.m, spec.heads, false)),
      av(Make(spec, spec.m, spec.heads, false)),
      bq(Make(spec, spec.rank, spec.d, true)),
      bk(Make(spec, spec.m, spec.d, false)),
      bv(Make(spec, spec.m, spec.e, false)),
      out(Make(spec, spec.heads, spec.e, true)),
      spec_(spec) {
  std::uint32_t seed = 1;
  for (GuardedTensor* tensor : {&aq, &ak, &av, &bq, &bk, &bv}) {
    tensor->Fill(RandomNormal(tensor->size(), seed++));
  }
}

reference::TpaDecode TpaCase::Reference() const {
  const TpaDecodeOptions& options = spec_.options;
  return {spec_.batch,
          spec_.m,
          spec_.heads,
          spec_.rank,
          spec_.d,
          spec_.e,
          options.scale.value_or(1 / std::sqrt(static_cast<double>(spec_.d))),
          options.scale_q.value_or(1 / static_cast<double>(spec_.rank)),
          options.scale_k,
          options.scale_v};
}

void TpaCase::Run(TpaSplit split) {
  out.Poison();
  TpaDecodeOptions options = spec_.options;
  options.split = split;
  options.precision = precision;
  TpaDecode(aq.view(), ak.view(), av.view(), bq.view(), bk.view(), bv.view(), out.view(), options);
}

std::vector<std::vector<std::uint8_t>> TpaCase::InputMemory() const {
  return {aq.memory(), ak.memory(), av.memory(), bq.memory(), bk.memory(), bv.memory()};
}

// A score is off by δ = (two sums and a few products)·Σ of the magnitudes of its terms, and
// exp(s−max) by δ, by the rounding of its argument (and of those of the rescalings, which together
// are no larger) and by exp's own error: ε. The softmax divides by a sum with the mean of these
// errors, so o is off by Σ p·|v|·ε + (Σ p·ε)·(Σ p·|v|) and by the error of its own sum. In kMedium
// q is rounded, where scores do not go through the rank, and so are the weights.
void TpaCase::Expect() {
  if (bound_precision_ == precision || spec_.batch * spec_.heads * spec_.e == 0) return;
  bound_precision_ = precision;
  const bool through_rank = spec_.rank * (spec_.d + spec_.heads) < spec_.heads * spec_.d;
  const double rounding = OperandError(precision, 1);
  const std::int64_t M = spec_.m, H = spec_.heads, E = spec_.e;
  const reference::TpaDecode reference = Reference();
  const Values avs = av.Values(), bvs = bv.Values();
  const auto result = reference.Run(aq.Values(), ak.Values(), avs, bq.Values(), bk.Values(), bvs);
  const Values magnitude =
      reference.Scores(Abs(aq.Values()), Abs(ak.Values()), Abs(bq.Values()), Abs(bk.Values()));
  const double of_scores =
      SumError(spec_.rank) + SumError(spec_.d) + 6 * kUnitFloat32 + (through_rank ? 0 : rounding);
  expected_ = result.out;
  bound_.resize(expected_.size());
  for (std::int64_t bh = 0; bh < spec_.batch * H; ++bh) {
    const double* s = result.s.data() + bh * M;
    const double* p = result.p.data() + bh * M;
    const double max = M == 0 ? 0 : *std::max_element(s, s + M);
    double mean = 0;
    Values total(E), weighted(E);
    for (std::int64_t t = 0; t < M; ++t) {
      const double error = std::expm1(of_scores * std::abs(magnitude[bh * M + t]) +
                                      4 * SoftmaxArgument(s[t], max) + kSoftmax);
      mean += p[t] * error;
      const std::int64_t token = bh / H * M + t;
      const double weight = std::abs(reference.scale_v * avs[token * H + bh % H]) * p[t];
      for (std::int64_t i = 0; i < E; ++i) {
        total[i] += weight * std::abs(bvs[token * E + i]);
        weighted[i] += weight * std::abs(bvs[token * E + i]) * error;
      }
    }
    for (std::int64_t i = 0; i < E; ++i) {
      const double arithmetic =
          weighted[i] + (mean + rounding + 2 * SumError(M) + 8 * kUnitFloat32) * total[i] + kTiny;
      bound_[bh * E + i] =
          arithmetic + StorageError(spec_.dtype, std::abs(expected_[bh * E + i]) + arithmetic);
    }
  }
}

void TpaCase::Check(TpaSplit split) {
  SCOPED_TRACE("split " + std::to_string(static_cast<int>(split)) + " " + spec_.Describe());
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Expect();
    const auto before = InputMemory();
    Run(split);
    EXPECT_TRUE(out.AllWritten());
    EXPECT_TRUE(AllNear(out.Values(), expected_, bound_));
    EXPECT_TRUE(before == InputMemory()) << "an input has changed";
  });
  precision = Precision::kHighest;
}

std::vector<std::uint32_t> TpaCase::Bits(TpaSplit split) {
  std::vector<std::uint32_t> bits;
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Run(split);
    const std::vector<std::uint32_t> own = out.Bits();
    bits.insert(bits.end(), own.begin(), own.end());
  });
  precision = Precision::kHighest;
  return bits;
}

}  // namespace attnops::testing
