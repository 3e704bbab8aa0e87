// lrpe_rotate on the shapes of the published tables: bytes_per_second counts what the
// limit of a row counts (x and the output; in the backward d_out, dx and, with an
// activation, x).
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

using attnops::Activation;
using attnops::ConstTensorView;
using attnops::DType;
using attnops::TensorView;

constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kFeatures = 128;

struct Act {
  const char* name;
  Activation act;
};
const Act kActs[] = {{"none", Activation::None()},
                     {"relu", Activation::Relu()},
                     {"sigmoid", Activation::Sigmoid()},
                     {"silu", Activation::Silu()},
                     {"softmax-features", Activation::Softmax(-1)},
                     {"softmax-sequence", Activation::Softmax(1)}};

// Values in [1, 2) or [-2, -1) of any of the types, from their bit patterns.
std::vector<std::uint16_t> RandomBits(std::int64_t elements, DType dtype) {
  std::mt19937 generator(2024);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(elements) * attnops::SizeOf(dtype) / 2);
  const std::uint32_t one = dtype == DType::kFloat16 ? 0x3c00 : 0x3f80;
  const std::uint32_t mantissa = dtype == DType::kFloat16 ? 0x3ff : 0x7f;
  for (auto& value : bits) {
    const std::uint32_t random = generator();
    value = static_cast<std::uint16_t>(one | (random & mantissa) | (random >> 16 & 0x8000));
  }
  return bits;
}

void Run(benchmark::State& state, bool backward, DType dtype, Activation act) {
  const std::int64_t batch = state.range(0);
  const std::int64_t tokens = state.range(1);
  const std::int64_t elements = batch * tokens * kHeads * kFeatures;
  const auto x_bits = RandomBits(elements, dtype);
  const auto d_bits = RandomBits(backward ? elements : 0, dtype);
  std::vector<std::uint16_t> out_bits(x_bits.size() + 64);
  void* out_data = reinterpret_cast<void*>(
      (reinterpret_cast<std::uintptr_t>(out_bits.data()) + 127) / 128 * 128);
  std::vector<float> angles(kHeads * kFeatures / 2);
  for (std::size_t i = 0; i < angles.size(); ++i) {
    angles[i] = std::pow(10000.0f, -static_cast<float>(i % 64) / 64.0f);
  }
  const attnops::Dims shape = {batch, tokens, kHeads, kFeatures};
  const ConstTensorView x(x_bits.data(), dtype, shape);
  const ConstTensorView d_out(d_bits.data(), dtype, shape);
  const ConstTensorView theta(angles.data(), {kHeads, kFeatures / 2});
  const TensorView out(out_data, dtype, shape);
  const attnops::LrpeRotateOptions options{0, act};
  for (auto _ : state) {
    if (backward) {
      attnops::LrpeRotateBackward(x, theta, d_out, out, options);
    } else {
      attnops::LrpeRotate(x, theta, out, options);
    }
  }
  const int tensors = backward && act.kind != Activation::Kind::kNone ? 3 : 2;
  state.SetBytesProcessed(state.iterations() * tensors * elements * attnops::SizeOf(dtype));
  state.SetLabel(attnops::GetTarget());
}

int Register() {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const bool backward : {false, true}) {
      for (const Act& act : kActs) {
        const std::string name = std::string("lrpe_rotate/") + (backward ? "bwd/" : "fwd/") +
                                 attnops::Name(dtype) + "/" + act.name;
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { Run(state, backward, dtype, act.act); })
            ->ArgNames({"B", "N"})
            ->Args({12, 256})
            ->Args({12, 2048})
            ->Args({1, 24576})
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return 0;
}
const int registered = Register();

}  // namespace
