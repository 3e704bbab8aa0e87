#include "src/core/target.h"

#include <hwy/highway.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "attnops/error.h"

namespace attnops {
namespace {

using Target = std::int64_t;  // one bit of Highway's masks

// Best first: lower bits are better targets.
std::vector<Target> TargetsOf(std::int64_t mask) {
  std::vector<Target> targets;
  for (; mask != 0; mask &= mask - 1) targets.push_back(mask & -mask);
  return targets;
}

std::vector<std::string> NamesOf(std::int64_t mask) {
  std::vector<std::string> names;
  for (const Target target : TargetsOf(mask)) names.emplace_back(hwy::TargetName(target));
  return names;
}

// The targets that the CPU and the system have, with what Highway asks for each. Its own function
// needs its library, which few systems have as a static one; a test compares the two.
std::int64_t CpuTargets() {
#if defined(ATTNOPS_LINK_HIGHWAY)
  return hwy::SupportedTargets();
#elif defined(__x86_64__) || defined(__i386__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // Compilers' names for these two are recent.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
  const bool lzcnt =
      __get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 5)) != 0;
  __builtin_cpu_init();
  const bool sse4 = __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
                    __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
                    __builtin_cpu_supports("aes");
  const bool avx2 = sse4 && f16c && lzcnt && __builtin_cpu_supports("avx") &&
                    __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
  return (sse4 ? HWY_SSE4 : 0) | (avx2 ? HWY_AVX2 : 0) | (avx3 ? HWY_AVX3 : 0);
#elif defined(__aarch64__) && defined(__linux__)
  std::int64_t targets = (getauxval(AT_HWCAP) & HWCAP_AES) != 0 ? HWY_NEON : 0;
#ifdef HWY_NEON_WITHOUT_AES
  targets |= HWY_NEON_WITHOUT_AES;
#endif
  return targets;
#else
  return HWY_STATIC_TARGET;
#endif
}

// The compiled targets that the CPU has, asked of the processor once.
std::int64_t SupportedMask() {
  static const std::int64_t mask =
      (CpuTargets() & HWY_TARGETS) | (HWY_TARGETS & (HWY_SCALAR | HWY_EMU128));
  return mask;
}

Target Find(const char* what, const std::string& name) {
  for (const Target target : TargetsOf(SupportedMask())) {
    if (name == hwy::TargetName(target)) return target;
  }
  std::string text = std::string(what) + " is \"" + name + "\", which is ";
  bool compiled = false;
  for (const std::string& known : CompiledTargets()) compiled = compiled || known == name;
  text += compiled ? "not supported by this CPU" : "no known target";
  text += "; it must be one of";
  for (const std::string& known : SupportedTargets()) text += " " + known;
  throw Error(text);
}

Target DefaultTarget() {
  const char* name = std::getenv("ATTNOPS_TARGET");
  if (name != nullptr && *name != '\0') return Find("ATTNOPS_TARGET", name);
  return SupportedMask() & -SupportedMask();
}

std::atomic<Target> chosen{0};  // 0: not chosen yet

Target Chosen() {
  Target target = chosen.load(std::memory_order_relaxed);
  if (target == 0) {
    const Target first = DefaultTarget();
    // Another thread may have chosen meanwhile; then its choice holds.
    if (chosen.compare_exchange_strong(target, first)) target = first;
  }
  return target;
}

TargetIndex IndexOf(Target target) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  (void)target;
  return {0};  // a single target: the table's first entry is it
#else
  // Entry 0 of the table is not a target's, the last is the fallback.
  if (target == HWY_SCALAR || target == HWY_EMU128) return {HWY_MAX_DYNAMIC_TARGETS + 1};
  return {hwy::Num0BitsBelowLS1Bit_Nonzero64(
      static_cast<std::uint64_t>(HWY_CHOSEN_TARGET_SHIFT(target)))};
#endif
}

}  // namespace

std::vector<std::string> SupportedTargets() { return NamesOf(SupportedMask()); }

std::vector<std::string> CompiledTargets() { return NamesOf(HWY_TARGETS); }

std::string GetTarget() { return hwy::TargetName(Chosen()); }

void SetTarget(const std::string& name) {
  chosen = name.empty() ? DefaultTarget() : Find("SetTarget: name", name);
}

TargetIndex ChosenTarget() { return IndexOf(Chosen()); }

TargetIndex BestTarget() { return IndexOf(SupportedMask() & -SupportedMask()); }

}  // namespace attnops
