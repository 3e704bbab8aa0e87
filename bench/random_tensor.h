// Inputs for the micro-benchmarks.
#ifndef ATTNOPS_BENCH_RANDOM_TENSOR_H_
#define ATTNOPS_BENCH_RANDOM_TENSOR_H_

#include <attnops/attnops.h>

#include <cstdint>
#include <random>
#include <vector>

namespace attnops::bench {

// A tensor of any of the types with values in [1, 2) or [-2, -1), from their bit patterns, at a
// multiple of 128 bytes.
class RandomTensor {
 public:
  RandomTensor(DType dtype, const Dims& shape) : dtype_(dtype), shape_(shape) {
    const std::int64_t elements = ConstTensorView(nullptr, dtype, shape).size();
    bits_.resize(static_cast<std::size_t>(elements * SizeOf(dtype) / 2 + 64));
    std::mt19937 generator(2024);
    const std::uint32_t one = dtype == DType::kFloat16 ? 0x3c00 : 0x3f80;
    const std::uint32_t mantissa = dtype == DType::kFloat16 ? 0x3ff : 0x7f;
    for (auto& value : bits_) {
      const std::uint32_t random = generator();
      value = static_cast<std::uint16_t>(one | (random & mantissa) | (random >> 16 & 0x8000));
    }
  }
  TensorView view() {
    const auto address = (reinterpret_cast<std::uintptr_t>(bits_.data()) + 127) / 128 * 128;
    return {reinterpret_cast<void*>(address), dtype_, shape_};
  }

 private:
  DType dtype_;
  Dims shape_;
  std::vector<std::uint16_t> bits_;
};

}  // namespace attnops::bench

#endif  // ATTNOPS_BENCH_RANDOM_TENSOR_H_
