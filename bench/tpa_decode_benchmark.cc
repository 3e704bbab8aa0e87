// tpa_decode on the shapes of the published tables, with its share of the limit: the larger of the
// time to read the inputs and that of the multiply-adds, both measured before and after.
#include <attnops/attnops.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/random_tensor.h"

namespace {

using attnops::DType;
using attnops::TpaSplit;
using attnops::bench::RandomTensor;

constexpr std::int64_t kHeads = 32, kRank = 16, kFeatures = 128;
constexpr double kLimitSeconds = 0.02;

struct Limits {
  double bandwidth = attnops::MeasureCopyBandwidth(kLimitSeconds);
  double fma = attnops::MeasureFmaPeak(kLimitSeconds);
};

void Run(benchmark::State& state, DType dtype, TpaSplit split) {
  const std::int64_t batch = state.range(0), tokens = state.range(1);
  RandomTensor aq(dtype, {batch, 1, kHeads, kRank}), bq(dtype, {batch, 1, kRank, kFeatures});
  RandomTensor ak(dtype, {batch, tokens, kHeads}), av(dtype, {batch, tokens, kHeads});
  RandomTensor bk(dtype, {batch, tokens, kFeatures}), bv(dtype, {batch, tokens, kFeatures});
  RandomTensor out(dtype, {batch, 1, kHeads, kFeatures});
  attnops::TpaDecodeOptions options;
  options.split = split;
  const Limits before;
  for (auto _ : state) {
    attnops::TpaDecode(aq.view(), ak.view(), av.view(), bq.view(), bk.view(), bv.view(), out.view(),
                       options);
  }
  const Limits after;
  double bytes = 0;
  for (RandomTensor* tensor : {&aq, &ak, &av, &bq, &bk, &bv}) {
    bytes += static_cast<double>(tensor->view().size() * attnops::SizeOf(dtype));
  }
  const std::int64_t products =
      std::min(kRank * (kFeatures + kHeads), kHeads * kFeatures) + kHeads * kFeatures;
  const double flops = 2.0 * static_cast<double>(batch * tokens * products);
  const double limit = std::max(bytes / std::max(before.bandwidth, after.bandwidth),
                                flops / std::max(before.fma, after.fma));
  using benchmark::Counter;
  state.counters["flops"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["share"] = Counter(limit, Counter::kIsIterationInvariantRate);
  state.SetLabel(attnops::GetTarget());
}

// With the ranks of the published models, from their numbers of heads.
void RunRanks(benchmark::State& state, DType dtype) {
  const std::int64_t batch = state.range(0), tokens = state.range(1), heads = state.range(2);
  constexpr std::int64_t kQuery = 6, kKey = 2, kValue = 2, kWidth = 64;
  RandomTensor aq(dtype, {batch, 1, heads, kQuery}), bq(dtype, {batch, 1, kQuery, kWidth});
  RandomTensor ak(dtype, {batch, tokens, heads, kKey}), bk(dtype, {batch, tokens, kKey, kWidth});
  RandomTensor av(dtype, {batch, tokens, heads, kValue});
  RandomTensor bv(dtype, {batch, tokens, kValue, kWidth});
  RandomTensor out(dtype, {batch, 1, heads, kWidth});
  const auto query = attnops::TpaQuery::Factors(aq.view(), bq.view());
  const attnops::TpaKeys keys{ak.view(), av.view(), bk.view(), bv.view()};
  for (auto _ : state) attnops::TpaDecode(query, keys, out.view());
  const std::int64_t products = kQuery * kKey * (kWidth + heads) + heads * kValue * kWidth;
  const bool pairs = attnops::EffectivePrecision(dtype) == attnops::Precision::kMedium;
  const double peak =
      pairs ? attnops::MeasureBf16Peak(kLimitSeconds) : attnops::MeasureFmaPeak(kLimitSeconds);
  const double flops = 2.0 * static_cast<double>(batch * tokens * products);
  using benchmark::Counter;
  state.counters["flops"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["share"] = Counter(flops / peak, Counter::kIsIterationInvariantRate);
  state.SetLabel(attnops::GetTarget());
}

int Register() {
  const std::pair<const char*, TpaSplit> splits[] = {
      {"auto", TpaSplit::kAuto}, {"b", TpaSplit::kB}, {"bh", TpaSplit::kBH}, {"bn", TpaSplit::kBN}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const auto& [split_name, split] : splits) {
      const std::string name = std::string("tpa_decode/") + attnops::Name(dtype) + "/" + split_name;
      const TpaSplit value = split;
      benchmark::RegisterBenchmark(
          name.c_str(), [dtype, value](benchmark::State& state) { Run(state, dtype, value); })
          ->ArgNames({"B", "M"})
          ->ArgsProduct({{1, 8, 32}, {256, 4096, 32768}})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const std::string name = std::string("tpa_decode/ranks/") + attnops::Name(dtype);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [dtype](benchmark::State& state) { RunRanks(state, dtype); })
        ->ArgNames({"B", "M", "H"})
        ->ArgsProduct({{1, 8, 32}, {512, 4096, 16384}, {34, 47, 61, 78}})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  return 0;
}
const int registered = Register();

}  // namespace
