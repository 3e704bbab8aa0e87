// flao in double precision: plain loops over contiguous (B,H,N,D) arrays, straight from the
// formulas.
#ifndef ATTNOPS_TESTS_REFERENCE_FLAO_H_
#define ATTNOPS_TESTS_REFERENCE_FLAO_H_

#include <cstdint>
#include <vector>

namespace attnops::reference {

struct Flao {
  std::int64_t batch, heads, n, m, d, e;

  using Values = std::vector<double>;

  struct Forward {
    Values kv;   // (B,H,D,E)
    Values qkv;  // (B,H,N,E)
    Values out;  // (B,H,N,E)
  };
  struct Backward {
    Values dq, dk, dv, dg;
    Values dkv;  // (B,H,D,E)
  };

  Forward Run(const Values& q, const Values& k, const Values& v, const Values& g) const;
  Backward RunBackward(const Values& q, const Values& k, const Values& v, const Values& g,
                       const Values& d_out) const;
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_FLAO_H_
