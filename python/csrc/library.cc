// The operators as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <vector>

#include "pool.h"
#include "tensors.h"

namespace attnops::torch_binding {
namespace {

Tensor LrpeRotate(const Tensor& x, const Tensor& theta, std::int64_t offset, std::string act,
                  std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "lrpe_rotate";
  const LrpeRotateOptions options{offset, ActivationOf(kOp, "act", act, "dim", dim)};
  const Tensor x_read = Readable(kOp, "x", x);
  const Tensor theta_read = Readable(kOp, "theta", theta);
  const Tensor out = NewTensor(x);
  attnops::LrpeRotate(ViewOf(x_read), ViewOf(theta_read), ViewOf(out), options);
  return out;
}

Tensor LrpeRotateBackward(const Tensor& x, const Tensor& theta, const Tensor& d_out,
                          std::int64_t offset, std::string act, std::optional<std::int64_t> dim) {
  constexpr char kOp[] = "lrpe_rotate";
  const LrpeRotateOptions options{offset, ActivationOf(kOp, "act", act, "dim", dim)};
  const Tensor x_read = Readable(kOp, "x", x);
  const Tensor theta_read = Readable(kOp, "theta", theta);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const Tensor dx = NewTensor(x);
  attnops::LrpeRotateBackward(ViewOf(x_read), ViewOf(theta_read), ViewOf(d_out_read), ViewOf(dx),
                              options);
  return dx;
}

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
  m.def("lrpe_rotate(Tensor x, Tensor theta, SymInt offset, str act, int? dim) -> Tensor");
  m.def(
      "lrpe_rotate_backward(Tensor x, Tensor theta, Tensor d_out, SymInt offset, str act, "
      "int? dim) -> Tensor");
  m.def("empty_cache() -> ()");
  m.def("get_target() -> str");
  m.def("set_target(str name) -> ()");
  m.def("supported_targets() -> str");
  m.def("compiled_targets() -> str");
  m.def("copy_bandwidth(float seconds) -> float");
  m.def("fma_peak(float seconds) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("lrpe_rotate", TORCH_BOX(&attnops::torch_binding::LrpeRotate));
  m.impl("lrpe_rotate_backward", TORCH_BOX(&attnops::torch_binding::LrpeRotateBackward));
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
