// md_lrpe_cosine on the shapes of the published tables: bytes_per_second counts what the
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

constexpr std::int64_t kBatch = 12;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kFeatures = 128;

struct Variant {
  bool backward;
  DType dtype;
  Activation act;
  bool with_table;
};

// Arguments: number of axes, side of the grid, tokens in front.
void Run(benchmark::State& state, const Variant& variant) {
  const int axes = static_cast<int>(state.range(0));
  attnops::MdLrpeCosineOptions options;
  options.l = state.range(2);
  options.act = variant.act;
  std::int64_t tokens = 1;
  std::int64_t positions = 0;
  std::vector<std::int64_t> grid(static_cast<std::size_t>(axes), state.range(1));
  for (const std::int64_t side : grid) {
    tokens *= side;
    positions += side;
  }
  tokens += options.l;
  options.shape = grid;

  const attnops::Dims x_shape = {kBatch, kHeads, tokens, kFeatures};
  const attnops::Dims out_shape = {kBatch, kHeads, tokens, 2 * kFeatures};
  const std::int64_t elements = kBatch * kHeads * tokens * kFeatures;
  const auto x_bits = RandomBits(elements, variant.dtype);
  const auto d_bits = RandomBits(variant.backward ? 2 * elements : 0, variant.dtype);
  AlignedBuffer result(elements * (variant.backward ? 1 : 2), variant.dtype);
  const std::int64_t angles = (kFeatures + axes - 1) / axes;
  const std::vector<float> theta_data = Angles(kHeads, angles);
  std::vector<float> table_data(static_cast<std::size_t>(kHeads * positions * angles * 2));

  const ConstTensorView x(x_bits.data(), variant.dtype, x_shape);
  const ConstTensorView d_out(d_bits.data(), variant.dtype, out_shape);
  const ConstTensorView theta(theta_data.data(), {kHeads, angles});
  const TensorView table(table_data.data(), {kHeads, positions, angles, 2});
  const TensorView out(result.data(), variant.dtype, variant.backward ? x_shape : out_shape);
  if (variant.with_table) attnops::LrpeTable(theta, options.shape, kFeatures, table);

  for (auto _ : state) {
    if (variant.backward) {
      variant.with_table ? attnops::MdLrpeCosineBackwardWithTable(x, table, d_out, out, options)
                         : attnops::MdLrpeCosineBackward(x, theta, d_out, out, options);
    } else {
      variant.with_table ? attnops::MdLrpeCosineWithTable(x, table, out, options)
                         : attnops::MdLrpeCosine(x, theta, out, options);
    }
  }
  const bool reads_x = variant.backward && variant.act.kind != Activation::Kind::kNone;
  state.SetBytesProcessed(state.iterations() * (reads_x ? 4 : 3) * elements *
                          attnops::SizeOf(variant.dtype));
  state.SetLabel(attnops::GetTarget());
}

int Register() {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const bool backward : {false, true}) {
      for (const bool with_table : {false, true}) {
        for (const auto& act : attnops_benchmark::Activations(2)) {
          const std::string name = std::string("md_lrpe_cosine/") + (backward ? "bwd/" : "fwd/") +
                                   attnops::Name(dtype) + "/" + act.name +
                                   (with_table ? "/table" : "/theta");
          const Variant variant{backward, dtype, act.act, with_table};
          benchmark::RegisterBenchmark(name.c_str(),
                                       [=](benchmark::State& state) { Run(state, variant); })
              ->ArgNames({"k", "n", "l"})
              ->Args({1, 256, 0})
              ->Args({1, 2048, 0})
              ->Args({1, 2048, 10})
              ->Args({2, 32, 0})
              ->Args({3, 8, 0})
              ->Args({3, 16, 10})
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
  return 0;
}
const int registered = Register();

}  // namespace
