#include "src/core/overlap.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace attnops {
namespace {

using Wide = __int128;  // distances between any two addresses, and products of them

// A number of steps of `stride` bytes, from `least` to `most`.
struct Steps {
  std::int64_t stride;  // positive
  std::int64_t least, most;
};

// Adds the steps along the axes of a view, forwards or backwards.
void AddSteps(const ConstTensorView& view, bool backwards, std::vector<Steps>& steps) {
  for (int i = 0; i < view.rank(); ++i) {
    const std::int64_t most = view.shape(i) - 1;
    if (view.stride(i) == 0 || most == 0) continue;
    const std::int64_t stride = view.stride(i) * SizeOf(view.dtype());
    const bool down = (stride < 0) != backwards;
    steps.push_back({stride < 0 ? -stride : stride, down ? -most : 0, down ? 0 : most});
  }
}

// Whether some choice of steps, from the largest stride to the smallest, ends at `distance`.
class Search {
 public:
  Search(std::vector<Steps> steps, Wide distance) {
    std::sort(steps.begin(), steps.end(),
              [](const Steps& a, const Steps& b) { return a.stride > b.stride; });
    // Steps of the same stride are merged.
    for (const Steps& one : steps) {
      if (!steps_.empty() && steps_.back().stride == one.stride) {
        steps_.back().least += one.least;
        steps_.back().most += one.most;
      } else {
        steps_.push_back(one);
      }
    }
    lowest_.resize(steps_.size() + 1);
    highest_.resize(steps_.size() + 1);
    for (std::size_t i = steps_.size(); i-- > 0;) {
      lowest_[i] = lowest_[i + 1] + Wide{steps_[i].stride} * steps_[i].least;
      highest_[i] = highest_[i + 1] + Wide{steps_[i].stride} * steps_[i].most;
    }
    found_ = Find(0, distance);
  }

  bool found() const { return found_; }

 private:
  static constexpr int kMostTries = 10000;

  static Wide FloorDivide(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }

  // The steps from index i on.
  bool Find(std::size_t i, Wide distance) {
    if (distance < lowest_[i] || distance > highest_[i]) return false;
    if (i == steps_.size()) return true;
    const Steps& own = steps_[i];
    // The distance that remains must be within reach of the steps after i.
    const Wide first = -FloorDivide(highest_[i + 1] - distance, own.stride);
    const Wide last = FloorDivide(distance - lowest_[i + 1], own.stride);
    for (Wide n = std::max<Wide>(own.least, first); n <= std::min<Wide>(own.most, last); ++n) {
      if (++tries_ > kMostTries) return false;
      if (Find(i + 1, distance - n * own.stride)) return true;
    }
    return false;
  }

  std::vector<Steps> steps_;
  std::vector<Wide> lowest_, highest_;  // reach of the steps from each index on
  int tries_ = 0;
  bool found_;
};

// The first byte of a view and the one behind its last.
struct Span {
  Wide begin, end;

  explicit Span(const ConstTensorView& view) {
    begin = end = reinterpret_cast<std::intptr_t>(view.data());
    const Wide size = SizeOf(view.dtype());
    for (int i = 0; i < view.rank(); ++i) {
      const Wide reach = Wide{view.stride(i)} * (view.shape(i) - 1) * size;
      (reach < 0 ? begin : end) += reach;
    }
    end += size;
  }
};

}  // namespace

bool ShareMemory(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const Span span_a(a), span_b(b);
  if (span_a.end <= span_b.begin || span_b.end <= span_a.begin) return false;
  // Some byte of an element of a is at the same address as one of b.
  std::vector<Steps> steps;
  AddSteps(a, false, steps);
  AddSteps(b, true, steps);
  steps.push_back({1, -(SizeOf(b.dtype()) - 1), SizeOf(a.dtype()) - 1});
  const Wide distance =
      Wide{reinterpret_cast<std::intptr_t>(b.data())} - reinterpret_cast<std::intptr_t>(a.data());
  return Search(steps, distance).found();
}

}  // namespace attnops
