// flao and flao_fal, which adds activations and a position encoding.
#ifndef ATTNOPS_PYTHON_CSRC_FLAO_H_
#define ATTNOPS_PYTHON_CSRC_FLAO_H_

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace attnops::torch_binding {

// out, kv and qkv; what is not kept is an empty tensor of one axis.
using KeptTensors = std::tuple<Tensor, Tensor, Tensor>;
// Sizes of a grid, or none.
using Shape = std::optional<std::vector<std::int64_t>>;
// dq, dk, dv and dg.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

KeptTensors Flao(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                 std::int64_t keep);
Gradients FlaoBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       const Tensor& d_out, std::optional<Tensor> kv, std::optional<Tensor> qkv);

// An empty shape is none: so AOTInductor may pass either.
KeptTensors FlaoFal(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                    std::optional<Tensor> theta, std::int64_t q_act,
                    std::optional<std::int64_t> q_dim, std::int64_t k_act,
                    std::optional<std::int64_t> k_dim, std::int64_t v_act,
                    std::optional<std::int64_t> v_dim, std::int64_t g_act,
                    std::optional<std::int64_t> g_dim, std::int64_t lrpe, Shape shape,
                    std::int64_t offset, std::int64_t l, std::int64_t keep);
Gradients FlaoFalBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                          const Tensor& d_out, std::optional<Tensor> kv, std::optional<Tensor> qkv,
                          std::optional<Tensor> theta, std::int64_t q_act,
                          std::optional<std::int64_t> q_dim, std::int64_t k_act,
                          std::optional<std::int64_t> k_dim, std::int64_t v_act,
                          std::optional<std::int64_t> v_dim, std::int64_t g_act,
                          std::optional<std::int64_t> g_dim, std::int64_t lrpe, Shape shape,
                          std::int64_t offset, std::int64_t l);

}  // namespace attnops::torch_binding

#endif  // ATTNOPS_PYTHON_CSRC_FLAO_H_
