#include "tests/ops/tpa_case.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/support/precisions.h"
#include "tests/support/random.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

using Values = std::vector<double>;
using reference::Tpa;

GuardedTensor Make(const TpaRanksSpec& spec, std::int64_t tokens, std::int64_t rows,
                   std::int64_t columns) {
  const std::int64_t row = columns + (spec.gaps ? 3 : 0);
  const std::int64_t token = rows * row + (spec.gaps ? 5 : 0);
  const std::int64_t batch = tokens * token + (spec.gaps ? 7 : 0);
  return GuardedTensor(spec.dtype, {spec.batch, tokens, rows, columns}, {batch, token, row, 1},
                       spec.gaps ? 1 : 0);
}

Values Abs(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}
Tpa::Inputs Abs(const Tpa::Inputs& in) {
  return {Abs(in.aq), Abs(in.ak), Abs(in.av), Abs(in.bq), Abs(in.bk), Abs(in.bv), Abs(in.q)};
}

// The error of a score, relative to the sum of the magnitudes of its terms.
double ScoreError(const Tpa& tpa, Precision precision) {
  return SumError(tpa.q_rank) + SumError(tpa.k_rank) + SumError(tpa.d) + 8 * kUnitFloat32 +
         OperandError(precision, 2);
}

// Each weight's relative error: that of its score, of exp, and of the rounding of its argument and
// of those of the rescalings.
double WeightError(double score, double magnitude, double max, double of_scores) {
  return std::expm1(of_scores * magnitude + 4 * SoftmaxArgument(score, max) +
                    ExpFor16Bit(std::abs(score - max)) + kSoftmax);
}

}  // namespace

std::string TpaRanksSpec::Describe() const {
  std::ostringstream text;
  text << Name(dtype) << " B=" << batch << " N=" << n << " M=" << m << " H=" << heads << " ranks "
       << q_rank << "/" << k_rank << "/" << v_rank << " D=" << d << " E=" << e
       << (options.causal ? " causal" : "") << (gaps ? " gaps" : "");
  return text.str();
}

TpaRanksCase::TpaRanksCase(const TpaRanksSpec& spec)
    : aq(Make(spec, spec.n, spec.heads, spec.q_rank)),
      ak(Make(spec, spec.m, spec.heads, spec.k_rank)),
      av(Make(spec, spec.m, spec.heads, spec.v_rank)),
      bq(Make(spec, spec.n, spec.q_rank, spec.d)),
      bk(Make(spec, spec.m, spec.k_rank, spec.d)),
      bv(Make(spec, spec.m, spec.v_rank, spec.e)),
      q(Make(spec, spec.n, spec.q_rank == 0 ? spec.heads : 0, spec.d)),
      out(Make(spec, spec.n, spec.heads, spec.e)),
      lse(DType::kFloat32, {spec.batch, spec.heads, spec.n}),
      d_out(Make(spec, spec.n, spec.heads, spec.e)),
      d_aq(Make(spec, spec.n, spec.heads, spec.q_rank)),
      d_ak(Make(spec, spec.m, spec.heads, spec.k_rank)),
      d_av(Make(spec, spec.m, spec.heads, spec.v_rank)),
      d_bq(Make(spec, spec.n, spec.q_rank, spec.d)),
      d_bk(Make(spec, spec.m, spec.k_rank, spec.d)),
      d_bv(Make(spec, spec.m, spec.v_rank, spec.e)),
      d_q(Make(spec, spec.n, spec.q_rank == 0 ? spec.heads : 0, spec.d)),
      spec_(spec) {
  std::uint32_t seed = 1;
  for (GuardedTensor* tensor : {&aq, &ak, &av, &bq, &bk, &bv, &q, &d_out}) {
    tensor->Fill(RandomNormal(tensor->size(), seed++));
  }
}

TpaQuery TpaRanksCase::Query() const {
  return spec_.q_rank == 0 ? TpaQuery::Full(q.view()) : TpaQuery::Factors(aq.view(), bq.view());
}

Tpa TpaRanksCase::Reference() const {
  const auto inverse = [](std::int64_t n) { return n == 0 ? 1 : 1 / static_cast<double>(n); };
  const TpaOptions& options = spec_.options;
  return {spec_.batch,
          spec_.n,
          spec_.m,
          spec_.heads,
          spec_.q_rank,
          spec_.k_rank,
          spec_.v_rank,
          spec_.d,
          spec_.e,
          options.causal,
          options.scale.value_or(
              1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(spec_.d, 1)))),
          options.scale_q.value_or(inverse(spec_.q_rank)),
          options.scale_k.value_or(inverse(spec_.k_rank)),
          options.scale_v.value_or(inverse(spec_.v_rank))};
}

Tpa::Inputs TpaRanksCase::Inputs() const {
  return {aq.Values(), ak.Values(), av.Values(), bq.Values(), bk.Values(), bv.Values(), q.Values()};
}

void TpaRanksCase::Forward() {
  out.Poison();
  lse.Poison();
  TpaOptions options = spec_.options;
  options.precision = precision;
  attnops::Tpa(Query(), Keys(), out.view(), lse.view(), options);
}

void TpaRanksCase::Decode(TpaSplit split) {
  out.Poison();
  lse.Poison();
  TpaOptions options = spec_.options;
  options.precision = precision;
  TpaDecode(Query(), Keys(), out.view(), {}, lse.view(), options, split);
}

std::vector<GuardedTensor*> TpaRanksCase::Gradients() {
  if (spec_.q_rank == 0) return {&d_q, &d_ak, &d_av, &d_bk, &d_bv};
  return {&d_aq, &d_bq, &d_ak, &d_av, &d_bk, &d_bv};
}

void TpaRanksCase::Backward() {
  Forward();
  for (GuardedTensor* gradient : Gradients()) gradient->Poison();
  TpaOptions options = spec_.options;
  options.precision = precision;
  TpaGradients gradients{{}, {}, {}, d_ak.view(), d_av.view(), d_bk.view(), d_bv.view()};
  if (spec_.q_rank == 0) {
    gradients.q = d_q.view();
  } else {
    gradients.aq = d_aq.view();
    gradients.bq = d_bq.view();
  }
  const TpaRanksCase& self = *this;
  TpaBackward(Query(), Keys(), self.out.view(), self.lse.view(), self.d_out.view(), gradients,
              options);
}

// o is off by Σ p·|v|·ε + (Σ p·ε)·(Σ p·|v|), ε the error of a weight, and by the error of its own
// sums. In kMedium weights and values are rounded too.
TpaExpected ExpectTpa(const Tpa& tpa, const Tpa::Inputs& in, DType dtype, Precision precision) {
  const Tpa::Result result = tpa.Run(in);
  const Tpa::Inputs magnitudes = Abs(in);
  const Values q = tpa.Queries(magnitudes), k = tpa.Keys(magnitudes);
  const Values v = tpa.WholeValues(magnitudes);
  const double of_scores = ScoreError(tpa, precision);
  TpaExpected expected{{result.out, Values(result.out.size())},
                       {result.lse, Values(result.lse.size())}};
  for (std::int64_t row = 0; row < tpa.batch * tpa.heads * tpa.n; ++row) {
    const std::int64_t t = row % tpa.n, h = row / tpa.n % tpa.heads, b = row / tpa.n / tpa.heads;
    const double* s = result.s.data() + row * tpa.m;
    const double* p = result.p.data() + row * tpa.m;
    double max = -INFINITY;
    for (std::int64_t u = 0; u < tpa.m; ++u) {
      if (tpa.Sees(t, u)) max = std::max(max, s[u]);
    }
    const std::int64_t query = (b * tpa.n + t) * tpa.heads + h;
    double mean = 0;
    Values total(tpa.e), weighted(tpa.e);
    for (std::int64_t u = 0; u < tpa.m; ++u) {
      if (!tpa.Sees(t, u)) continue;
      const std::int64_t key = (b * tpa.m + u) * tpa.heads + h;
      double magnitude = 0;
      for (std::int64_t i = 0; i < tpa.d; ++i) {
        magnitude += std::abs(tpa.scale) * q[query * tpa.d + i] * k[key * tpa.d + i];
      }
      const double error = WeightError(s[u], magnitude, max, of_scores);
      mean += p[u] * error;
      for (std::int64_t i = 0; i < tpa.e; ++i) {
        total[i] += p[u] * v[key * tpa.e + i];
        weighted[i] += p[u] * v[key * tpa.e + i] * error;
      }
    }
    const double of_sum =
        2 * SumError(tpa.m) + SumError(tpa.v_rank) + 8 * kUnitFloat32 + OperandError(precision, 2);
    for (std::int64_t i = 0; i < tpa.e; ++i) {
      const double arithmetic = weighted[i] + (mean + of_sum) * total[i] + kTiny;
      expected.out.bound[query * tpa.e + i] =
          arithmetic + StorageError(dtype, std::abs(result.out[query * tpa.e + i]) + arithmetic);
    }
    expected.lse.bound[row] =
        mean + 2 * SumError(tpa.m) + 4 * kUnitFloat32 * (1 + std::abs(result.lse[row]));
  }
  return expected;
}

void TpaRanksCase::CheckOut() {
  const TpaExpected expected = ExpectTpa(Reference(), Inputs(), spec_.dtype, precision);
  EXPECT_TRUE(out.AllWritten());
  EXPECT_TRUE(AllNear(out.Values(), expected.out.value, expected.out.bound));
  EXPECT_TRUE(lse.AllWritten());
  EXPECT_TRUE(AllNear(lse.Values(), expected.lse.value, expected.lse.bound));
}

void TpaRanksCase::CheckForward() {
  SCOPED_TRACE(spec_.Describe());
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Forward();
    CheckOut();
  });
  precision = Precision::kHighest;
}

void TpaRanksCase::CheckDecode(TpaSplit split) {
  SCOPED_TRACE(spec_.Describe() + " split " + std::to_string(static_cast<int>(split)));
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Decode(split);
    CheckOut();
  });
  precision = Precision::kHighest;
}

// The gradients by magnitudes: with every product and difference replaced by the sum of magnitudes,
// the backward gives what the errors are relative to. A term goes through a weight, the score's
// gradient, a sum over tokens and one over heads; Δ has the rounding of the kept output.
void TpaRanksCase::CheckBackward() {
  SCOPED_TRACE(spec_.Describe());
  const Tpa tpa = Reference();
  const Tpa::Inputs in = Inputs(), magnitudes = Abs(in);
  const Values d = d_out.Values(), abs_d = Abs(d);
  const Tpa::Inputs expected = tpa.Backward(in, d);
  const Tpa::Result result = tpa.Run(in);
  const Values q = tpa.Queries(magnitudes), k = tpa.Keys(magnitudes);
  const Values v = tpa.WholeValues(magnitudes);
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Backward();
    const double of_scores = ScoreError(tpa, each);
    const double of_sums = 2 * SumError(tpa.n + tpa.m) + 2 * SumError(tpa.heads) +
                           2 * SumError(tpa.d + tpa.e) + 16 * kUnitFloat32 + OperandError(each, 4);
    // Error bounds of the gradients of whole queries, keys and values.
    Values bq_error(q.size()), bk_error(k.size()), bv_error(v.size());
    for (std::int64_t row = 0; row < tpa.batch * tpa.heads * tpa.n; ++row) {
      const std::int64_t t = row % tpa.n, h = row / tpa.n % tpa.heads, b = row / tpa.n / tpa.heads;
      const std::int64_t query = (b * tpa.n + t) * tpa.heads + h;
      double delta = 0, delta_error = 0;
      for (std::int64_t i = 0; i < tpa.e; ++i) {
        const double out_value = std::abs(result.out[query * tpa.e + i]);
        delta += abs_d[query * tpa.e + i] * out_value;
        delta_error += abs_d[query * tpa.e + i] * StorageError(spec_.dtype, out_value);
      }
      const double* s = result.s.data() + row * tpa.m;
      double lse_error = 0;
      Values errors(tpa.m), dots(tpa.m);
      for (std::int64_t u = 0; u < tpa.m; ++u) {
        if (!tpa.Sees(t, u)) continue;
        const std::int64_t key = (b * tpa.m + u) * tpa.heads + h;
        double magnitude = 0;
        for (std::int64_t i = 0; i < tpa.d; ++i) {
          magnitude += std::abs(tpa.scale) * q[query * tpa.d + i] * k[key * tpa.d + i];
        }
        for (std::int64_t i = 0; i < tpa.e; ++i) {
          dots[u] += abs_d[query * tpa.e + i] * v[key * tpa.e + i];
        }
        errors[u] = WeightError(s[u], magnitude, result.lse[row], of_scores);
        lse_error += result.p[row * tpa.m + u] * errors[u];
      }
      for (std::int64_t u = 0; u < tpa.m; ++u) {
        if (!tpa.Sees(t, u)) continue;
        const std::int64_t key = (b * tpa.m + u) * tpa.heads + h;
        const double p = result.p[row * tpa.m + u];
        const double error = errors[u] + lse_error + of_sums;
        const double ds = std::abs(tpa.scale) * p *
                          ((dots[u] + delta) * (error + lse_error + of_sums) + delta_error);
        for (std::int64_t i = 0; i < tpa.d; ++i) {
          bq_error[query * tpa.d + i] += ds * k[key * tpa.d + i];
          bk_error[key * tpa.d + i] += ds * q[query * tpa.d + i];
        }
        for (std::int64_t i = 0; i < tpa.e; ++i) {
          bv_error[key * tpa.e + i] += p * error * abs_d[query * tpa.e + i];
        }
      }
    }
    const auto check = [&](const char* name, const GuardedTensor& actual, const Values& value,
                           const Values& error) {
      SCOPED_TRACE(name);
      EXPECT_TRUE(actual.AllWritten());
      Values bound(value.size());
      for (std::size_t i = 0; i < value.size(); ++i) {
        bound[i] = error[i] + kTiny + StorageError(spec_.dtype, std::abs(value[i]) + error[i]);
      }
      EXPECT_TRUE(AllNear(actual.Values(), value, bound));
    };
    // The gradients of factors from those of whole rows.
    const auto split = [&](const Values& error, const Values& a, const Values& b, std::int64_t rows,
                           std::int64_t rank, std::int64_t columns, double scale, Values& a_error,
                           Values& b_error) {
      a_error.assign(a.size(), 0);
      b_error.assign(b.size(), 0);
      for (std::int64_t i = 0; i < rows * tpa.heads * columns; ++i) {
        const std::int64_t head = i / columns, row = head / tpa.heads;
        for (std::int64_t r = 0; r < rank; ++r) {
          const std::int64_t at = (row * rank + r) * columns + i % columns;
          a_error[head * rank + r] += std::abs(scale) * error[i] * b[at];
          b_error[at] += std::abs(scale) * error[i] * a[head * rank + r];
        }
      }
    };
    Values a_error, b_error;
    if (tpa.q_rank == 0) {
      check("d_q", d_q, expected.q, bq_error);
    } else {
      split(bq_error, magnitudes.aq, magnitudes.bq, tpa.batch * tpa.n, tpa.q_rank, tpa.d,
            tpa.scale_q, a_error, b_error);
      check("d_aq", d_aq, expected.aq, a_error);
      check("d_bq", d_bq, expected.bq, b_error);
    }
    split(bk_error, magnitudes.ak, magnitudes.bk, tpa.batch * tpa.m, tpa.k_rank, tpa.d, tpa.scale_k,
          a_error, b_error);
    check("d_ak", d_ak, expected.ak, a_error);
    check("d_bk", d_bk, expected.bk, b_error);
    split(bv_error, magnitudes.av, magnitudes.bv, tpa.batch * tpa.m, tpa.v_rank, tpa.e, tpa.scale_v,
          a_error, b_error);
    check("d_av", d_av, expected.av, a_error);
    check("d_bv", d_bv, expected.bv, b_error);
  });
  precision = Precision::kHighest;
}

std::vector<std::uint32_t> TpaRanksCase::ForwardBits() {
  std::vector<std::uint32_t> bits;
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Forward();
    for (const GuardedTensor* result : {&out, &lse}) {
      const auto own = result->Bits();
      bits.insert(bits.end(), own.begin(), own.end());
    }
  });
  precision = Precision::kHighest;
  return bits;
}

std::vector<std::uint32_t> TpaRanksCase::BackwardBits() {
  std::vector<std::uint32_t> bits;
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Backward();
    for (const GuardedTensor* result : Gradients()) {
      const auto own = result->Bits();
      bits.insert(bits.end(), own.begin(), own.end());
    }
  });
  precision = Precision::kHighest;
  return bits;
}

std::vector<std::uint32_t> TpaRanksCase::DecodeBits(TpaSplit split) {
  std::vector<std::uint32_t> bits;
  InEveryPrecision(spec_.dtype, [&](Precision each) {
    precision = each;
    Decode(split);
    for (const GuardedTensor* result : {&out, &lse}) {
      const auto own = result->Bits();
      bits.insert(bits.end(), own.begin(), own.end());
    }
  });
  precision = Precision::kHighest;
  return bits;
}

}  // namespace attnops::testing
