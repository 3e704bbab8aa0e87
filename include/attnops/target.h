// The instruction set in use. The best one that the CPU has is chosen at the
// first call; the environment variable ATTNOPS_TARGET or SetTarget forces one.
#ifndef ATTNOPS_TARGET_H_
#define ATTNOPS_TARGET_H_

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace attnops {

// Names of the compiled targets that this CPU has, best first ("AVX3", "AVX2",
// "SSE4", "SCALAR" on x86; AVX3 is AVX-512).
std::vector<std::string> SupportedTargets();

// All compiled targets, best first.
std::vector<std::string> CompiledTargets();

// The target in use. Throws Error if ATTNOPS_TARGET names no supported target.
std::string GetTarget();

// Forces a target for all calls that start later; an empty name goes back to ATTNOPS_TARGET
// or, without it, the best. Throws Error if the name is unknown or the CPU does
// not have it.
void SetTarget(const std::string& name);

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_TARGET_H_
