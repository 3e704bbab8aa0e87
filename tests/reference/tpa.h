// tpa in double precision: plain loops over contiguous arrays, straight from the formulas.
#ifndef ATTNOPS_TESTS_REFERENCE_TPA_H_
#define ATTNOPS_TESTS_REFERENCE_TPA_H_

#include <cstdint>
#include <vector>

namespace attnops::reference {

struct Tpa {
  std::int64_t batch, n, m, heads, q_rank, k_rank, v_rank, d, e;
  bool causal;
  double scale, scale_q, scale_k, scale_v;

  using Values = std::vector<double>;

  // aq and bq, or q in their place.
  struct Inputs {
    Values aq, ak, av, bq, bk, bv, q;
  };
  struct Result {
    Values s, p;      // (B,H,N,M): scores and their softmax; 0 where masked
    Values out, lse;  // (B,N,H,E), (B,H,N)
  };
  Result Run(const Inputs& in) const;
  // d_out (B,N,H,E); the gradients of the inputs.
  Inputs Backward(const Inputs& in, const Values& d_out) const;

  // Whole queries (B,N,H,D), keys (B,M,H,D) and values (B,M,H,E), scaled.
  Values Queries(const Inputs& in) const;
  Values Keys(const Inputs& in) const;
  Values WholeValues(const Inputs& in) const;

  bool Sees(std::int64_t query, std::int64_t key) const {
    return !causal || key <= query + (m - n);
  }
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_TPA_H_
