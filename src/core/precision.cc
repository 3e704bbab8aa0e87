#include "src/core/precision.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "src/core/checks.h"

namespace attnops {
namespace {

constexpr int kUnset = -1;
std::atomic<int> chosen{kUnset};

bool IsKnown(Precision precision) {
  const int value = static_cast<int>(precision);
  return value >= 0 && value <= static_cast<int>(Precision::kMedium);
}

Precision FromEnvironment() {
  const char* value = std::getenv("ATTNOPS_PRECISION");
  const std::string name = value == nullptr ? "" : value;
  if (name.empty() || name == "auto") return Precision::kAuto;
  if (name == "highest") return Precision::kHighest;
  if (name == "high") return Precision::kHigh;
  if (name == "medium") return Precision::kMedium;
  throw Error("ATTNOPS_PRECISION is \"" + name +
              "\"; it must be one of auto, highest, high, medium");
}

}  // namespace

void SetPrecision(Precision precision) {
  if (!IsKnown(precision)) {
    Fail("SetPrecision", "precision is no known one (", static_cast<int>(precision), ")");
  }
  chosen = static_cast<int>(precision);
}

Precision GetPrecision() {
  int value = chosen;
  if (value == kUnset) {
    const int first = static_cast<int>(FromEnvironment());
    if (chosen.compare_exchange_strong(value, first)) value = first;
  }
  return static_cast<Precision>(value);
}

Precision PrecisionOf(const char* op, std::optional<Precision> precision, DType dtype) {
  if (precision && !IsKnown(*precision)) {
    Fail(op, "precision is no known one (", static_cast<int>(*precision), ")");
  }
  const Precision wanted = precision ? *precision : GetPrecision();
  if (dtype != DType::kBFloat16) return Precision::kHighest;
  return wanted == Precision::kAuto ? Precision::kMedium : wanted;
}

}  // namespace attnops
