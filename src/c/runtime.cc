// Version, precision, target, threads and measurements for C.
#include <string>
#include <vector>

#include "attnops/machine.h"
#include "attnops/parallel.h"
#include "attnops/precision.h"
#include "attnops/target.h"
#include "attnops/version.h"
#include "src/c/convert.h"

namespace attnops::c {
namespace {

std::int32_t NumberOf(Precision precision) { return static_cast<std::int32_t>(precision) + 1; }

// Gives out a text that lives until the thread asks again.
void GiveText(const char** to, std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  *to = kept.c_str();
}

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : " ") + name;
  return joined;
}

// The body of a parallel-for as a C function.
void CallBody(void* body, int64_t begin, int64_t end) {
  (*static_cast<const ParallelForBody*>(body))(begin, end);
}

}  // namespace
}  // namespace attnops::c

using namespace attnops::c;  // NOLINT(google-build-using-namespace)

const char* attnops_version(void) { return attnops::Version(); }

attnops_status attnops_set_precision(int32_t precision) {
  return Guard([&] {
    const Arguments arguments("attnops_set_precision");
    attnops::SetPrecision(
        arguments.OptionalPrecision(precision).value_or(attnops::Precision::kAuto));
  });
}

attnops_status attnops_get_precision(int32_t* precision) {
  return Guard([&] {
    Arguments("attnops_get_precision").Given("precision", precision) =
        NumberOf(attnops::GetPrecision());
  });
}

attnops_status attnops_effective_precision(int32_t dtype, int32_t precision, int32_t* effective) {
  return Guard([&] {
    const Arguments arguments("attnops_effective_precision");
    arguments.Given("effective", effective) = NumberOf(attnops::EffectivePrecision(
        arguments.Type("dtype", dtype), arguments.OptionalPrecision(precision)));
  });
}

attnops_status attnops_set_target(const char* name) {
  return Guard([&] { attnops::SetTarget(name != nullptr ? name : ""); });
}

attnops_status attnops_get_target(const char** name) {
  return Guard([&] {
    GiveText(&Arguments("attnops_get_target").Given("name", name), attnops::GetTarget());
  });
}

attnops_status attnops_supported_targets(const char** names) {
  return Guard([&] {
    GiveText(&Arguments("attnops_supported_targets").Given("names", names),
             Join(attnops::SupportedTargets()));
  });
}

attnops_status attnops_compiled_targets(const char** names) {
  return Guard([&] {
    GiveText(&Arguments("attnops_compiled_targets").Given("names", names),
             Join(attnops::CompiledTargets()));
  });
}

attnops_status attnops_set_num_threads(int32_t n) {
  return Guard([&] { attnops::SetNumThreads(n); });
}

int32_t attnops_get_num_threads(void) { return attnops::GetNumThreads(); }

attnops_status attnops_set_parallel_for(attnops_parallel_for parallel_for, void* data,
                                        int32_t num_threads) {
  return Guard([&] {
    if (parallel_for == nullptr) {
      attnops::SetParallelFor({});
      return;
    }
    if (num_threads < 1) {
      throw attnops::Error("attnops_set_parallel_for: num_threads must be at least 1; it is " +
                           std::to_string(num_threads));
    }
    attnops::SetParallelFor(
        [=](std::int64_t n, const attnops::ParallelForBody& body) {
          parallel_for(data, n, CallBody, const_cast<attnops::ParallelForBody*>(&body));
        },
        [=] { return num_threads; });
  });
}

attnops_status attnops_measure_copy_bandwidth(double seconds, double* bytes_per_second) {
  return Guard([&] {
    Arguments("attnops_measure_copy_bandwidth").Given("bytes_per_second", bytes_per_second) =
        attnops::MeasureCopyBandwidth(seconds);
  });
}

attnops_status attnops_measure_fma_peak(double seconds, double* flops) {
  return Guard([&] {
    Arguments("attnops_measure_fma_peak").Given("flops", flops) = attnops::MeasureFmaPeak(seconds);
  });
}

attnops_status attnops_measure_bf16_peak(double seconds, double* flops) {
  return Guard([&] {
    Arguments("attnops_measure_bf16_peak").Given("flops", flops) =
        attnops::MeasureBf16Peak(seconds);
  });
}
