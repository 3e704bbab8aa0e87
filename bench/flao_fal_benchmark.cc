// flao_fal on the shapes of the published tables, and with other encodings and activations, each
// with its share of the FMA peak, measured before and after.
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/inputs.h"
#include "bench/random_tensor.h"
#include "bench/rate.h"

namespace {

using attnops::Activation;
using attnops::DType;
using attnops::Lrpe;
using attnops::bench::RandomTensor;

constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kFeatures = 128;

struct Variant {
  const char* name;
  Activation q_act, k_act, v_act, g_act;
  Lrpe lrpe;
};

void Run(benchmark::State& state, bool backward, DType dtype, const Variant& variant) {
  const std::int64_t batch = state.range(0);
  const std::int64_t heads = batch == 1 ? 1 : kHeads;
  const std::int64_t tokens = state.range(1);
  const attnops::Dims shape = {batch, heads, tokens, kFeatures};
  std::vector<RandomTensor> tensors;
  for (int i = 0; i < (backward ? 9 : 5); ++i) tensors.emplace_back(dtype, shape);
  const auto at = [&](std::size_t i) { return tensors[i].view(); };
  const bool cosine = variant.lrpe == Lrpe::kCosine;
  const std::int64_t angles = cosine ? kFeatures : kFeatures / 2;
  const std::vector<float> theta = attnops_benchmark::Angles(heads, angles);
  attnops::FlaoFalOptions options;
  options.q_act = variant.q_act;
  options.k_act = variant.k_act;
  options.v_act = variant.v_act;
  options.g_act = variant.g_act;
  options.lrpe = variant.lrpe;
  if (variant.lrpe != Lrpe::kNone) {
    options.theta = attnops::ConstTensorView(theta.data(), {heads, angles});
  }
  const double peak = attnops::MeasureFmaPeak(attnops::bench::kPeakSeconds);
  for (auto _ : state) {
    if (backward) {
      attnops::FlaoFalBackward(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8),
                               options);
    } else {
      attnops::FlaoFal(at(0), at(1), at(2), at(3), at(4), options);
    }
  }
  // Nothing is kept: in the backward six products.
  const std::int64_t inner = cosine ? 2 * kFeatures : kFeatures;
  const double product = 2.0 * static_cast<double>(batch * heads * tokens * inner * kFeatures);
  attnops::bench::SetRate(state, (backward ? 6 : 2) * product, peak);
}

int Register() {
  const Activation none, silu = Activation::Silu();
  const Activation features = Activation::Softmax(-1), sequence = Activation::Softmax(2);
  // The first two are those of the tables.
  const std::vector<Variant> variants = {
      {"cosine/silu", silu, silu, none, silu, Lrpe::kCosine},
      {"cosine/softmax-features", features, silu, none, silu, Lrpe::kCosine},
      {"cosine/softmax-sequence", sequence, sequence, none, silu, Lrpe::kCosine},
      {"cosine/none", none, none, none, none, Lrpe::kCosine},
      {"rotate/silu", silu, silu, none, silu, Lrpe::kRotate},
      {"none/silu", silu, silu, none, silu, Lrpe::kNone},
      {"none/none", none, none, none, none, Lrpe::kNone}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const bool backward : {false, true}) {
      for (const Variant& variant : variants) {
        const std::string name = std::string("flao_fal/") + (backward ? "bwd/" : "fwd/") +
                                 attnops::Name(dtype) + "/" + variant.name;
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { Run(state, backward, dtype, variant); })
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
