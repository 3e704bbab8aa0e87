// md_lrpe_cosine in plain double-precision loops: the truth that the library is judged by.
#ifndef ATTNOPS_TESTS_REFERENCE_MD_LRPE_COSINE_H_
#define ATTNOPS_TESTS_REFERENCE_MD_LRPE_COSINE_H_

#include <cstdint>
#include <vector>

#include "attnops/types.h"
#include "attnops/view.h"
#include "tests/reference/activation.h"

namespace attnops::reference {

// x and dx are (B,H,L,D), d_out and out (B,H,L,2D), in row-major order, with L = l + n_1·…·n_k;
// theta is (theta_heads, theta_features). The vectors hold exactly the values that the library is
// given.
struct MdLrpeCosine {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t features = 1;
  Dims shape = {1};
  std::int64_t l = 0;
  std::int64_t theta_heads = 1;
  std::int64_t theta_features = 1;
  std::int64_t offset = 0;
  Activation::Kind act = Activation::Kind::kNone;
  Axis softmax_axis = Axis::kFeatures;

  // L.
  std::int64_t Length() const;
  // The number of elements of x.
  std::int64_t size() const { return batch * heads * Length() * features; }

  // f, of x.
  TensorActivation Act() const;

  // The index s_axis of token l+i in the grid, the last axis fastest; axes count from 0.
  std::int64_t GridIndex(std::int64_t i, int axis) const;

  // [ y·cos a , y·sin a ], for the first l tokens [ y , 0 ].
  std::vector<double> Encode(const std::vector<double>& y, const std::vector<double>& theta) const;

  // d_out[:D]·cos a + d_out[D:]·sin a, for the first l tokens d_out[:D].
  std::vector<double> EncodeBackward(const std::vector<double>& d_out,
                                     const std::vector<double>& theta) const;

  std::vector<double> Forward(const std::vector<double>& x, const std::vector<double>& theta) const;

  std::vector<double> Backward(const std::vector<double>& x, const std::vector<double>& theta,
                               const std::vector<double>& d_out) const;

  // cos and sin of every index of every axis, (theta_heads, n_1+…+n_k, theta_features, 2).
  std::vector<double> Table(const std::vector<double>& theta) const;
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_MD_LRPE_COSINE_H_
