// What the benchmarks with position encodings share.
#ifndef ATTNOPS_BENCH_INPUTS_H_
#define ATTNOPS_BENCH_INPUTS_H_

#include <attnops/attnops.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace attnops_benchmark {

struct NamedActivation {
  const char* name;
  attnops::Activation act;
};

inline std::vector<NamedActivation> Activations(int sequence_axis) {
  using attnops::Activation;
  return {{"none", Activation::None()},
          {"relu", Activation::Relu()},
          {"sigmoid", Activation::Sigmoid()},
          {"silu", Activation::Silu()},
          {"softmax-features", Activation::Softmax(-1)},
          {"softmax-sequence", Activation::Softmax(sequence_axis)}};
}

// Values in [1, 2) or [-2, -1) of any of the types, from their bit patterns.
inline std::vector<std::uint16_t> RandomBits(std::int64_t elements, attnops::DType dtype) {
  std::mt19937 generator(2024);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(elements) * attnops::SizeOf(dtype) / 2);
  const bool half = dtype == attnops::DType::kFloat16;
  const std::uint32_t one = half ? 0x3c00 : 0x3f80;
  const std::uint32_t mantissa = half ? 0x3ff : 0x7f;
  for (auto& value : bits) {
    const std::uint32_t random = generator();
    value = static_cast<std::uint16_t>(one | (random & mantissa) | (random >> 16 & 0x8000));
  }
  return bits;
}

// theta (heads, angles): frequencies from 1 down, the same in each head.
inline std::vector<float> Angles(std::int64_t heads, std::int64_t angles) {
  std::vector<float> theta(static_cast<std::size_t>(heads * angles));
  for (std::int64_t i = 0; i < heads * angles; ++i) {
    const float exponent = static_cast<float>(i % angles) / static_cast<float>(angles);
    theta[static_cast<std::size_t>(i)] = std::pow(10000.0f, -exponent);
  }
  return theta;
}

// Memory for a result, aligned as the PyTorch package's results are to any vector.
class AlignedBuffer {
 public:
  AlignedBuffer(std::int64_t elements, attnops::DType dtype)
      : bits_(static_cast<std::size_t>(elements) * attnops::SizeOf(dtype) / 2 + 64) {}

  void* data() {
    return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(bits_.data()) + 127) / 128 *
                                   128);
  }

 private:
  std::vector<std::uint16_t> bits_;
};

}  // namespace attnops_benchmark

#endif  // ATTNOPS_BENCH_INPUTS_H_
