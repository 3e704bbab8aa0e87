#include "tpa_decode_naive.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace attnops::torch_binding {
namespace {

using torch::headeronly::ScalarType;

// bfloat16 and float32, the types of the bench.
float FloatOf(float value) { return value; }
float FloatOf(BFloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}
void Round(float value, float& to) { to = value; }
void Round(float value, BFloat16& to) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  to.bits = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T>
const T* Data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}

// to[h,m,:] = factors[m,h]·rows[m,:] of a batch.
template <typename T>
void Expand(const T* factors, const T* rows, std::int64_t head, std::int64_t heads,
            std::int64_t tokens, std::int64_t features, T* to) {
  for (std::int64_t m = 0; m < tokens; ++m) {
    const float factor = FloatOf(factors[m * heads + head]);
    for (std::int64_t i = 0; i < features; ++i) {
      Round(factor * FloatOf(rows[m * features + i]), to[m * features + i]);
    }
  }
}

template <typename T>
Tensor Run(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq, const Tensor& bk,
           const Tensor& bv) {
  const std::int64_t B = aq.size(0), H = aq.size(2), R = aq.size(3);
  const std::int64_t M = bk.size(1), D = bk.size(2), E = bv.size(2);
  const Tensor k = NewTensor("tpa_decode_naive", "a tensor", aq, {B, H, M, D});
  const Tensor v = NewTensor("tpa_decode_naive", "a tensor", aq, {B, H, M, E});
  const Tensor out = NewTensor("tpa_decode_naive", "a tensor", aq, {B, 1, H, E});
  T* k_data = static_cast<T*>(k.data_ptr());
  T* v_data = static_cast<T*>(v.data_ptr());
  T* out_data = static_cast<T*>(out.data_ptr());
  torch::stable::parallel_for(0, B * H, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> q(D), p(M), sums(E);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t b = task / H, h = task % H;
      T* k_head = k_data + task * M * D;
      T* v_head = v_data + task * M * E;
      Expand(Data<T>(ak) + b * M * H, Data<T>(bk) + b * M * D, h, H, M, D, k_head);
      Expand(Data<T>(av) + b * M * H, Data<T>(bv) + b * M * E, h, H, M, E, v_head);
      std::fill(q.begin(), q.end(), 0.0f);
      for (std::int64_t r = 0; r < R; ++r) {
        const float a = FloatOf(Data<T>(aq)[(b * H + h) * R + r]) / static_cast<float>(R);
        const T* row = Data<T>(bq) + (b * R + r) * D;
        for (std::int64_t i = 0; i < D; ++i) q[i] += a * FloatOf(row[i]);
      }
      const float scale = 1 / std::sqrt(static_cast<float>(D));
      for (std::int64_t m = 0; m < M; ++m) {
        float dot = 0;
        for (std::int64_t i = 0; i < D; ++i) dot += q[i] * FloatOf(k_head[m * D + i]);
        p[m] = scale * dot;
      }
      const float max = M == 0 ? 0 : *std::max_element(p.begin(), p.end());
      float total = 0;
      for (float& value : p) total += value = std::exp(value - max);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (std::int64_t m = 0; m < M; ++m) {
        for (std::int64_t i = 0; i < E; ++i) sums[i] += p[m] * FloatOf(v_head[m * E + i]);
      }
      for (std::int64_t i = 0; i < E; ++i) Round(sums[i] / total, out_data[task * E + i]);
    }
  });
  return out;
}

}  // namespace

Tensor TpaDecodeNaive(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                      const Tensor& bk, const Tensor& bv) {
  const Tensor* given[] = {&aq, &ak, &av, &bq, &bk, &bv};
  for (const Tensor* tensor : given) {
    if (!tensor->is_contiguous() || tensor->scalar_type() != aq.scalar_type()) {
      throw Error("tpa_decode_naive: the inputs must be contiguous and of one type");
    }
  }
  if (aq.dim() != 4 || bq.dim() != 4 || ak.dim() != 3 || bk.dim() != 3 || bv.dim() != 3) {
    throw Error("tpa_decode_naive: aq and bq must have 4 axes, the others 3");
  }
  if (aq.scalar_type() == ScalarType::BFloat16) return Run<BFloat16>(aq, ak, av, bq, bk, bv);
  if (aq.scalar_type() == ScalarType::Float) return Run<float>(aq, ak, av, bq, bk, bv);
  throw Error("tpa_decode_naive: the inputs must be float32 or bfloat16");
}

}  // namespace attnops::torch_binding
