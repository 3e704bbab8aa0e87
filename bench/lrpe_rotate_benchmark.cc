// lrpe_rotate on the shapes of the published tables: bytes_per_second counts what the
// limit of a row counts (x and the output; in the backward d_out, dx and, with an
// activation, x).
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "inputs.h"

namespace {

using attnops::Activation;
using attnops::ConstTensorView;
using attnops::DType;
using attnops::TensorView;
using attnops_benchmark::AlignedBuffer;
using attnops_benchmark::Angles;
using attnops_benchmark::RandomBits;

constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kFeatures = 128;

void Run(benchmark::State& state, bool backward, DType dtype, Activation act) {
  const std::int64_t batch = state.range(0);
  const std::int64_t tokens = state.range(1);
  const std::int64_t elements = batch * tokens * kHeads * kFeatures;
  const auto x_bits = RandomBits(elements, dtype);
  const auto d_bits = RandomBits(backward ? elements : 0, dtype);
  AlignedBuffer result(elements, dtype);
  const std::vector<float> angles = Angles(kHeads, kFeatures / 2);
  const attnops::Dims shape = {batch, tokens, kHeads, kFeatures};
  const ConstTensorView x(x_bits.data(), dtype, shape);
  const ConstTensorView d_out(d_bits.data(), dtype, shape);
  const ConstTensorView theta(angles.data(), {kHeads, kFeatures / 2});
  const TensorView out(result.data(), dtype, shape);
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
      for (const auto& act : attnops_benchmark::Activations(1)) {
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
