// linear_attention on the shapes of the bench's tables, with its share of the FMA peak, and steps
// of one token with their share of the copy bandwidth.
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

#include "bench/random_tensor.h"
#include "bench/rate.h"

namespace {

using attnops::Dims;
using attnops::DType;
using attnops::bench::kPeakSeconds;
using attnops::bench::RandomTensor;
using attnops::bench::SetRate;

constexpr std::int64_t kHeads = 12, kFeatures = 128;
constexpr const char* kDecays[] = {"none", "constant", "scalar", "vector"};

Dims DecayShape(int decay, std::int64_t batch, std::int64_t tokens, std::int64_t heads) {
  if (decay == 1) return {heads};
  return decay == 2 ? Dims{batch, tokens, heads} : Dims{batch, tokens, heads, kFeatures};
}

void Run(benchmark::State& state, bool backward, int decay) {
  const std::int64_t batch = state.range(0), tokens = state.range(1);
  const std::int64_t heads = batch == 1 ? 1 : kHeads;
  const Dims shape = {batch, tokens, heads, kFeatures};
  RandomTensor q(DType::kBFloat16, shape), k(DType::kBFloat16, shape), v(DType::kBFloat16, shape);
  RandomTensor out(DType::kBFloat16, shape), dq(DType::kBFloat16, shape);
  RandomTensor dk(DType::kBFloat16, shape), dv(DType::kBFloat16, shape);
  RandomTensor logs(DType::kFloat32, DecayShape(decay, batch, tokens, heads));
  RandomTensor d_logs(DType::kFloat32, DecayShape(decay, batch, tokens, heads));
  auto* data = static_cast<float*>(logs.view().data());
  for (std::int64_t i = 0; i < logs.view().size(); ++i) data[i] = -0.05f * data[i] * data[i];
  attnops::LinearAttentionOptions options;
  attnops::LinearAttentionGradients gradients;
  if (decay > 0) {
    options.log_decay = logs.view();
    gradients.d_log_decay = d_logs.view();
  }
  const double peak = attnops::MeasureFmaPeak(kPeakSeconds);
  for (auto _ : state) {
    if (backward) {
      attnops::LinearAttentionBackward(q.view(), k.view(), v.view(), out.view(), dq.view(),
                                       dk.view(), dv.view(), options, gradients);
    } else {
      attnops::LinearAttention(q.view(), k.view(), v.view(), out.view(), options);
    }
  }
  const std::int64_t of_token = backward ? 32 * 5 * kFeatures + 5 * kFeatures * kFeatures
                                         : 32 * 2 * kFeatures + 2 * kFeatures * kFeatures;
  SetRate(state, 2.0 * static_cast<double>(batch * heads * tokens * of_token), peak);
}

void Step(benchmark::State& state) {
  const std::int64_t batch = state.range(0);
  const Dims shape = {batch, 1, kHeads, kFeatures};
  RandomTensor q(DType::kBFloat16, shape), k(DType::kBFloat16, shape), v(DType::kBFloat16, shape);
  RandomTensor out(DType::kBFloat16, shape);
  RandomTensor states(DType::kFloat32, {batch, kHeads, kFeatures, kFeatures});
  attnops::LinearAttentionOptions options;
  options.initial_state = states.view();
  options.state = states.view();
  const double bandwidth = attnops::MeasureCopyBandwidth(kPeakSeconds);
  for (auto _ : state) {
    attnops::LinearAttention(q.view(), k.view(), v.view(), out.view(), options);
  }
  SetRate(state, 2.0 * 4 * static_cast<double>(states.view().size()), bandwidth);
}
BENCHMARK(Step)->ArgName("B")->Arg(1)->Arg(32)->UseRealTime();

int Register() {
  for (const bool backward : {false, true}) {
    for (int decay = 0; decay < 4; ++decay) {
      const std::string name =
          std::string("linear_attention/") + (backward ? "bwd/" : "fwd/") + kDecays[decay];
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { Run(state, backward, decay); })
          ->ArgNames({"B", "N"})
          ->Args({12, 1024})
          ->Args({1, 100000})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return 0;
}
const int registered = Register();

}  // namespace
