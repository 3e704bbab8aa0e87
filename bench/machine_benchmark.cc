// The machine's limits, to hold the operators' figures against.
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

namespace {

void BM_CopyBandwidth(benchmark::State& state) {
  double rate = 0;
  for (auto _ : state) rate = attnops::MeasureCopyBandwidth(0.5);
  state.counters["bytes_per_second"] = rate;
}
BENCHMARK(BM_CopyBandwidth)->Iterations(1)->Unit(benchmark::kMillisecond);

void BM_FmaPeak(benchmark::State& state) {
  double rate = 0;
  for (auto _ : state) rate = attnops::MeasureFmaPeak(0.2);
  state.counters["flops_per_second"] = rate;
}
BENCHMARK(BM_FmaPeak)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
