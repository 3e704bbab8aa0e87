// Targets, the pool and measurements as torch.ops.attnops.*, and the use of torch's threads. The
// operators are registered in their families' files.
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pool.h"
#include "tensors.h"

namespace attnops::torch_binding {
namespace {

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : " ") + name;
  return joined;
}

void EmptyCache() { PoolEmpty(); }
std::string GetTargetName() { return GetTarget(); }
void SetTargetName(std::string name) { SetTarget(name); }
std::string SupportedTargetNames() { return Join(SupportedTargets()); }
std::string CompiledTargetNames() { return Join(CompiledTargets()); }
void SetPrecisionNumber(std::int64_t precision) {
  SetPrecision(ChoiceOf("set_precision", "precision", precision, Precision::kMedium));
}
std::int64_t GetPrecisionNumber() { return static_cast<std::int64_t>(GetPrecision()); }
std::int64_t EffectivePrecisionNumber(std::optional<std::int64_t> precision) {
  return static_cast<std::int64_t>(
      EffectivePrecision(DType::kBFloat16, PrecisionOf("effective_precision", precision)));
}
double CopyBandwidth(double seconds) { return MeasureCopyBandwidth(seconds); }
double FmaPeak(double seconds) { return MeasureFmaPeak(seconds); }
double Bf16Peak(double seconds) { return MeasureBf16Peak(seconds); }

// One pool of threads in the process: torch's.
const bool uses_torch_threads = [] {
  SetParallelFor([](std::int64_t n,
                    const ParallelForBody& body) { torch::stable::parallel_for(0, n, 1, body); },
                 [] { return static_cast<int>(torch::stable::get_num_threads()); });
  return true;
}();

}  // namespace
}  // namespace attnops::torch_binding

STABLE_TORCH_LIBRARY(attnops, m) {
  m.def("empty_cache() -> ()");
  m.def("get_target() -> str");
  m.def("set_target(str name) -> ()");
  m.def("supported_targets() -> str");
  m.def("compiled_targets() -> str");
  m.def("set_precision(int precision) -> ()");
  m.def("get_precision() -> int");
  m.def("effective_precision(int? precision=None) -> int");
  m.def("copy_bandwidth(float seconds) -> float");
  m.def("fma_peak(float seconds) -> float");
  m.def("bf16_peak(float seconds) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CompositeExplicitAutograd, m) {
  m.impl("empty_cache", TORCH_BOX(&attnops::torch_binding::EmptyCache));
  m.impl("get_target", TORCH_BOX(&attnops::torch_binding::GetTargetName));
  m.impl("set_target", TORCH_BOX(&attnops::torch_binding::SetTargetName));
  m.impl("supported_targets", TORCH_BOX(&attnops::torch_binding::SupportedTargetNames));
  m.impl("compiled_targets", TORCH_BOX(&attnops::torch_binding::CompiledTargetNames));
  m.impl("set_precision", TORCH_BOX(&attnops::torch_binding::SetPrecisionNumber));
  m.impl("get_precision", TORCH_BOX(&attnops::torch_binding::GetPrecisionNumber));
  m.impl("effective_precision", TORCH_BOX(&attnops::torch_binding::EffectivePrecisionNumber));
  m.impl("copy_bandwidth", TORCH_BOX(&attnops::torch_binding::CopyBandwidth));
  m.impl("fma_peak", TORCH_BOX(&attnops::torch_binding::FmaPeak));
  m.impl("bf16_peak", TORCH_BOX(&attnops::torch_binding::Bf16Peak));
}
