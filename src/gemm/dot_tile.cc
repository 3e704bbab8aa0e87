#include "src/gemm/dot_tile.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "attnops/machine.h"
#include "attnops/precision.h"
#include "src/core/measure.h"
#include "src/core/precision.h"
#include "src/gemm/kernels.h"

namespace attnops {
namespace {

// How often emulation is switched on.
std::atomic<int>& Emulations() {
  static std::atomic<int> count = [] {
    const char* value = std::getenv("ATTNOPS_EMULATE_BF16");
    return value != nullptr && std::string(value) == "1" ? 1 : 0;
  }();
  return count;
}

}  // namespace

void SwitchDotTileEmulation(bool on) { Emulations() += on ? 1 : -1; }

DotTile FindDotTile(TargetIndex target) {
  const gemm::Kernels kernels = gemm::KernelsOf<BFloat16>(target);
  if (kernels.takes_avx512) {
    // The tables of this target are as wide as the instructions'.
    if (const DotTile tile = DotTileAvx512(); tile != nullptr) return tile;
  }
  return Emulations() > 0 ? kernels.dot_tile : nullptr;
}

Precision EffectivePrecision(DType dtype, std::optional<Precision> precision) {
  const Precision wanted = PrecisionOf("EffectivePrecision", precision, dtype);
  return FindDotTile(ChosenTarget()) == nullptr ? Precision::kHighest : wanted;
}

double MeasureBf16Peak(double seconds) {
  return DotTileAvx512() == nullptr ? 0 : MeasurePeak(seconds, DotPairsAvx512);
}

}  // namespace attnops
