#include "tests/reference/tpa.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnops::reference {
namespace {

using Values = Tpa::Values;

// scale · Σ_r a[row,h,r]·b[row,r], (rows, heads, columns).
Values Whole(const Values& a, const Values& b, std::int64_t rows, std::int64_t heads,
             std::int64_t rank, std::int64_t columns, double scale) {
  Values whole(rows * heads * columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < rank; ++r) {
        for (std::int64_t i = 0; i < columns; ++i) {
          whole[(row * heads + h) * columns + i] +=
              scale * a[(row * heads + h) * rank + r] * b[(row * rank + r) * columns + i];
        }
      }
    }
  }
  return whole;
}

// The gradients of a and b from that of the whole rows.
void Split(const Values& d_whole, const Values& a, const Values& b, std::int64_t rows,
           std::int64_t heads, std::int64_t rank, std::int64_t columns, double scale, Values& da,
           Values& db) {
  da.assign(a.size(), 0);
  db.assign(b.size(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < rank; ++r) {
        for (std::int64_t i = 0; i < columns; ++i) {
          const double d = scale * d_whole[(row * heads + h) * columns + i];
          da[(row * heads + h) * rank + r] += d * b[(row * rank + r) * columns + i];
          db[(row * rank + r) * columns + i] += d * a[(row * heads + h) * rank + r];
        }
      }
    }
  }
}

}  // namespace

Values Tpa::Queries(const Inputs& in) const {
  if (q_rank > 0) return Whole(in.aq, in.bq, batch * n, heads, q_rank, d, scale_q);
  Values q = in.q;
  for (double& value : q) value *= scale_q;
  return q;
}
Values Tpa::Keys(const Inputs& in) const {
  return Whole(in.ak, in.bk, batch * m, heads, k_rank, d, scale_k);
}
Values Tpa::WholeValues(const Inputs& in) const {
  return Whole(in.av, in.bv, batch * m, heads, v_rank, e, scale_v);
}

Tpa::Result Tpa::Run(const Inputs& in) const {
  const Values q = Queries(in), k = Keys(in), v = WholeValues(in);
  Result result{Values(batch * heads * n * m), Values(batch * heads * n * m),
                Values(batch * n * heads * e), Values(batch * heads * n)};
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < n; ++t) {
        const std::int64_t row = (b * heads + h) * n + t;
        double* s = result.s.data() + row * m;
        double* p = result.p.data() + row * m;
        double max = -std::numeric_limits<double>::infinity();
        for (std::int64_t u = 0; u < m; ++u) {
          if (!Sees(t, u)) continue;
          for (std::int64_t i = 0; i < d; ++i) {
            s[u] +=
                scale * q[((b * n + t) * heads + h) * d + i] * k[((b * m + u) * heads + h) * d + i];
          }
          max = std::max(max, s[u]);
        }
        double sum = 0;
        for (std::int64_t u = 0; u < m; ++u) {
          if (Sees(t, u)) sum += p[u] = std::exp(s[u] - max);
        }
        result.lse[row] = m == 0 ? max : max + std::log(sum);
        for (std::int64_t u = 0; u < m; ++u) {
          p[u] /= sum;
          for (std::int64_t i = 0; i < e; ++i) {
            result.out[((b * n + t) * heads + h) * e + i] +=
                p[u] * v[((b * m + u) * heads + h) * e + i];
          }
        }
      }
    }
  }
  return result;
}

Tpa::Inputs Tpa::Backward(const Inputs& in, const Values& d_out) const {
  const Values q = Queries(in), k = Keys(in), v = WholeValues(in);
  const Result forward = Run(in);
  Values dq(q.size()), dk(k.size()), dv(v.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < n; ++t) {
        const std::int64_t query = (b * n + t) * heads + h;
        double delta = 0;
        for (std::int64_t i = 0; i < e; ++i) {
          delta += d_out[query * e + i] * forward.out[query * e + i];
        }
        for (std::int64_t u = 0; u < m; ++u) {
          const std::int64_t key = (b * m + u) * heads + h;
          const double p = forward.p[((b * heads + h) * n + t) * m + u];
          double dp = 0;
          for (std::int64_t i = 0; i < e; ++i) {
            dp += d_out[query * e + i] * v[key * e + i];
            dv[key * e + i] += p * d_out[query * e + i];
          }
          const double ds = scale * p * (dp - delta);
          for (std::int64_t i = 0; i < d; ++i) {
            dq[query * d + i] += ds * k[key * d + i];
            dk[key * d + i] += ds * q[query * d + i];
          }
        }
      }
    }
  }
  Inputs gradients;
  if (q_rank > 0) {
    Split(dq, in.aq, in.bq, batch * n, heads, q_rank, d, scale_q, gradients.aq, gradients.bq);
  } else {
    for (double& value : dq) value *= scale_q;
    gradients.q = dq;
  }
  Split(dk, in.ak, in.bk, batch * m, heads, k_rank, d, scale_k, gradients.ak, gradients.bk);
  Split(dv, in.av, in.bv, batch * m, heads, v_rank, e, scale_v, gradients.av, gradients.bv);
  return gradients;
}

}  // namespace attnops::reference
