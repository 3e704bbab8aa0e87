// Targets, the pool and measurements as torch.ops.attnops.*, and the use of torch's threads. The
// operators are registered in their families' files.
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pool.h"

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
double CopyBandwidth(double seconds) { return MeasureCopyBandwidth(seconds); }
double FmaPeak(double seconds) { return MeasureFmaPeak(seconds); }

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
  m.def("copy_bandwidth(float seconds) -> float");
  m.def("fma_peak(float seconds) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CompositeExplicitAutograd, m) {
  m.impl("empty_cache", TORCH_BOX(&attnops::torch_binding::EmptyCache));
  m.impl("get_target", TORCH_BOX(&attnops::torch_binding::GetTargetName));
  m.impl("set_target", TORCH_BOX(&attnops::torch_binding::SetTargetName));
  m.impl("supported_targets", TORCH_BOX(&attnops::torch_binding::SupportedTargetNames));
  m.impl("compiled_targets", TORCH_BOX(&attnops::torch_binding::CompiledTargetNames));
  m.impl("copy_bandwidth", TORCH_BOX(&attnops::torch_binding::CopyBandwidth));
  m.impl("fma_peak", TORCH_BOX(&attnops::torch_binding::FmaPeak));
}
