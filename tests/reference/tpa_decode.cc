#include "tests/reference/tpa_decode.h"

#include <algorithm>
#include <cmath>

namespace attnops::reference {

TpaDecode::Values TpaDecode::Scores(const Values& aq, const Values& ak, const Values& bq,
                                    const Values& bk) const {
  Values s(batch * heads * m);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      Values q(d);
      for (std::int64_t r = 0; r < rank; ++r) {
        const double a = scale_q * aq[(b * heads + h) * rank + r];
        for (std::int64_t i = 0; i < d; ++i) q[i] += a * bq[(b * rank + r) * d + i];
      }
      for (std::int64_t t = 0; t < m; ++t) {
        double dot = 0;
        for (std::int64_t i = 0; i < d; ++i) dot += q[i] * bk[(b * m + t) * d + i];
        s[(b * heads + h) * m + t] = scale * scale_k * ak[(b * m + t) * heads + h] * dot;
      }
    }
  }
  return s;
}

TpaDecode::Result TpaDecode::Run(const Values& aq, const Values& ak, const Values& av,
                                 const Values& bq, const Values& bk, const Values& bv) const {
  Result result{Scores(aq, ak, bq, bk), Values(batch * heads * m), Values(batch * heads * e)};
  if (m == 0) return result;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const double* s = result.s.data() + (b * heads + h) * m;
      double* p = result.p.data() + (b * heads + h) * m;
      double* out = result.out.data() + (b * heads + h) * e;
      const double max = *std::max_element(s, s + m);
      double sum = 0;
      for (std::int64_t t = 0; t < m; ++t) sum += p[t] = std::exp(s[t] - max);
      for (std::int64_t t = 0; t < m; ++t) {
        p[t] /= sum;
        const double weight = scale_v * p[t] * av[(b * m + t) * heads + h];
        for (std::int64_t i = 0; i < e; ++i) out[i] += weight * bv[(b * m + t) * e + i];
      }
    }
  }
  return result;
}

}  // namespace attnops::reference
