// tpa_decode in double precision: plain loops over contiguous arrays, straight from the formulas.
#ifndef ATTNOPS_TESTS_REFERENCE_TPA_DECODE_H_
#define ATTNOPS_TESTS_REFERENCE_TPA_DECODE_H_

#include <cstdint>
#include <vector>

namespace attnops::reference {

struct TpaDecode {
  std::int64_t batch, m, heads, rank, d, e;
  double scale, scale_q, scale_k = 1, scale_v = 1;

  using Values = std::vector<double>;

  struct Result {
    Values s;    // (B,H,M): the scores
    Values p;    // (B,H,M): their softmax
    Values out;  // (B,1,H,E)
  };

  Result Run(const Values& aq, const Values& ak, const Values& av, const Values& bq,
             const Values& bk, const Values& bv) const;
  // The scores alone.
  Values Scores(const Values& aq, const Values& ak, const Values& bq, const Values& bk) const;
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_TPA_DECODE_H_
