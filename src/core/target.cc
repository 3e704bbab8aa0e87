#include "src/core/target.h"

#include <hwy/highway.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

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

// The CPU's targets, asked of the processor once: the result of Highway's
// function may be changed by others in the process.
std::int64_t SupportedMask() {
  static const std::int64_t mask =
      (hwy::SupportedTargets() & HWY_TARGETS) | (HWY_TARGETS & (HWY_SCALAR | HWY_EMU128));
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
  return {0};  // a single target: HWY_EXPORT's table has one entry
#else
  // Entry 0 of the table is Highway's own initialisation, the last the fallback.
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
