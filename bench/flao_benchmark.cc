// flao on the shapes of the published tables and its matrix product alone, each with its share of
// the FMA peak, measured before and after.
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/random_tensor.h"
#include "bench/rate.h"
#include "tests/gemm/panel_product.h"

namespace {

using attnops::DType;
using attnops::bench::kPeakSeconds;
using attnops::bench::RandomTensor;
using attnops::bench::SetRate;

constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kFeatures = 128;

// The product of matrices that are in the caches as the operators leave them, on one thread.
void BM_PanelProduct(benchmark::State& state, bool transposed) {
  attnops::SetNumThreads(1);
  const std::int64_t size = state.range(0);
  const double peak = attnops::MeasureFmaPeak(kPeakSeconds);
  const std::vector<float> ones(static_cast<std::size_t>(size * size), 1.0f);
  attnops::gemm::PanelProduct product(size, size, size, transposed);
  product.Fill(ones.data(), ones.data());
  for (auto _ : state) product.Run(false);
  SetRate(state, 2.0 * static_cast<double>(size * size * size), peak);
  attnops::SetNumThreads(0);
}
BENCHMARK_CAPTURE(BM_PanelProduct, straight, false)->Arg(64)->Arg(128)->Arg(256);
BENCHMARK_CAPTURE(BM_PanelProduct, transposed, true)->Arg(64)->Arg(128)->Arg(256);

enum class Keep { kNone, kKv, kKvQkv };
constexpr const char* kKeepNames[] = {"none", "kv", "kv_qkv"};

void Run(benchmark::State& state, bool backward, DType dtype, Keep keep) {
  const std::int64_t batch = state.range(0);
  const std::int64_t heads = batch == 1 ? 1 : kHeads;
  const std::int64_t tokens = state.range(1);
  const attnops::Dims shape = {batch, heads, tokens, kFeatures};
  std::vector<RandomTensor> tensors;
  for (int i = 0; i < (backward ? 9 : 5); ++i) tensors.emplace_back(dtype, shape);
  const auto at = [&](std::size_t i) { return tensors[i].view(); };
  RandomTensor kv(DType::kFloat32, {batch, heads, kFeatures, kFeatures});
  RandomTensor qkv(dtype == DType::kFloat16 ? DType::kFloat32 : dtype, shape);
  attnops::FlaoOptions options;
  attnops::FlaoKept kept;
  if (keep != Keep::kNone) {
    options.kv = kv.view();
    kept.kv = kv.view();
  }
  if (keep == Keep::kKvQkv) {
    options.qkv = qkv.view();
    kept.qkv = qkv.view();
  }
  const double peak = attnops::MeasureFmaPeak(kPeakSeconds);
  for (auto _ : state) {
    if (backward) {
      attnops::FlaoBackward(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), kept);
    } else {
      attnops::Flao(at(0), at(1), at(2), at(3), at(4), options);
    }
  }
  // In the backward four products, and those of what was not kept.
  const int products = backward ? 6 - static_cast<int>(keep) : 2;
  SetRate(state,
          2.0 * products * static_cast<double>(batch * heads * tokens * kFeatures * kFeatures),
          peak);
}

int Register() {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const bool backward : {false, true}) {
      for (const Keep keep : {Keep::kNone, Keep::kKv, Keep::kKvQkv}) {
        const std::string name = std::string("flao/") + (backward ? "bwd/" : "fwd/") +
                                 attnops::Name(dtype) + "/" + kKeepNames[static_cast<int>(keep)];
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { Run(state, backward, dtype, keep); })
            ->ArgNames({"B", "N"})
            ->Args({12, 256})
            ->Args({12, 1024})
            ->Args({1, 100000})
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return 0;
}
const int registered = Register();

}  // namespace
