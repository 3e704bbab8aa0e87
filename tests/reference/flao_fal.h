// flao_fal in double precision: plain loops over contiguous (B,H,N,D) arrays, straight from the
// formulas.
#ifndef ATTNOPS_TESTS_REFERENCE_FLAO_FAL_H_
#define ATTNOPS_TESTS_REFERENCE_FLAO_FAL_H_

#include <cstdint>
#include <vector>

#include "attnops/flao_fal.h"
#include "attnops/view.h"
#include "tests/reference/activation.h"
#include "tests/reference/flao.h"

namespace attnops::reference {

// The position encoding of a tensor (B,H,N,D), with theta (theta_heads, theta_features). Without a
// shape the tokens behind the first l are numbered from `offset`; with one, N = l + n_1·…·n_k.
struct Encoding {
  std::int64_t batch, heads, tokens, features;
  Lrpe lrpe = Lrpe::kNone;
  std::int64_t theta_heads = 1, theta_features = 1;
  Dims shape;
  std::int64_t offset = 0, l = 0;

  // The features of an encoded token.
  std::int64_t EncodedFeatures() const { return lrpe == Lrpe::kCosine ? 2 * features : features; }
  // Where the second part of an encoded pair is, behind the first.
  std::int64_t Half() const { return EncodedFeatures() / 2; }
  bool HasPosition(std::int64_t token) const { return lrpe != Lrpe::kNone && token >= l; }
  // The angle of pair j (of feature j for kCosine) is Position · theta[h, Angle]. The pairs of
  // kRotate that have none are those with Angle = −1.
  std::int64_t Angle(std::int64_t j) const;
  std::int64_t Position(std::int64_t token, std::int64_t j) const;

  // (B,H,N,EncodedFeatures).
  std::vector<double> Forward(const std::vector<double>& y, const std::vector<double>& theta) const;
  // Adds the gradient of theta, Σ p·(o_c·do_c' − o_c'·do_c), to `gradient`, and Σ |p|·(|o_c| +
  // |o_c'|)·(|do_c| + |do_c'|), with the magnitudes that are given, to `magnitude`.
  void AddThetaGradient(const std::vector<double>& encoded, const std::vector<double>& d_encoded,
                        const std::vector<double>& magnitudes,
                        const std::vector<double>& d_magnitudes, std::vector<double>& gradient,
                        std::vector<double>& magnitude) const;
  // (B,H,N,D).
  std::vector<double> Backward(const std::vector<double>& d_encoded,
                               const std::vector<double>& theta) const;
};

struct FlaoFal {
  using Values = std::vector<double>;

  struct Act {
    Activation::Kind kind = Activation::Kind::kNone;
    Axis axis = Axis::kFeatures;
  };
  struct Inputs {
    Values q, k, v, g;
  };

  std::int64_t batch, heads, n, m, d, e;
  Act q_act = {}, k_act = {}, v_act = {}, g_act = {};
  Lrpe lrpe = Lrpe::kNone;
  std::int64_t theta_heads = 1, theta_features = 1;
  Dims shape = {};
  std::int64_t offset = 0, l = 0;

  TensorActivation QAct() const { return Of(q_act, n, d); }
  TensorActivation KAct() const { return Of(k_act, m, d); }
  TensorActivation VAct() const { return Of(v_act, m, e); }
  TensorActivation GAct() const { return Of(g_act, n, e); }
  Encoding QEncoding() const { return Of(n, offset); }
  Encoding KEncoding() const { return Of(m, 0); }
  // The attention of the encoded tensors.
  Flao Attention() const { return {batch, heads, n, m, QEncoding().EncodedFeatures(), e}; }

  // Q̄, K̄, V̄ and Ḡ.
  Inputs Prepare(const Inputs& x, const Values& theta) const;
  Flao::Forward Run(const Inputs& x, const Values& theta) const;
  // dq, dk, dv and dg.
  Inputs RunBackward(const Inputs& x, const Values& theta, const Values& d_out) const;

 private:
  TensorActivation Of(const Act& act, std::int64_t tokens, std::int64_t features) const {
    return {act.kind, {batch, heads, tokens, features}, act.axis == Axis::kFeatures ? 3 : 2};
  }
  Encoding Of(std::int64_t tokens, std::int64_t first) const {
    return {batch, heads, tokens, d, lrpe, theta_heads, theta_features, shape, first, l};
  }
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_FLAO_FAL_H_
