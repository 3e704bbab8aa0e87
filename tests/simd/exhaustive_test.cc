// All 2^32 floats to float16 and bfloat16, on every target: to nearest even, a NaN stays a NaN.
// Under an emulator, ATTNOPS_EXHAUSTIVE_EVERY=n takes a part of them, every n-th group.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "attnops/target.h"
#include "tests/simd/functions.h"
#include "tests/support/rounding.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// The floats of a chunk share their upper 16 bits, so a chunk is all NaN or has at most one other
// value (infinity) among NaNs, or has no NaN.
constexpr std::uint32_t kChunk = 1 << 16;
constexpr std::uint32_t kChunks = 1 << 16;
constexpr int kThreads = 2;
// Chunks that a thread converts between two changes of the target: few enough for the caches.
constexpr std::uint32_t kGroup = 8;

std::uint32_t EveryGroups() {
  const char* every = std::getenv("ATTNOPS_EXHAUSTIVE_EVERY");
  return every == nullptr ? 1 : static_cast<std::uint32_t>(std::max(1, std::atoi(every)));
}

bool HasNan(std::uint32_t chunk) { return (chunk & 0x7F80) == 0x7F80; }

bool IsNan(Float16 value) { return (value.bits & 0x7FFF) > 0x7C00; }
bool IsNan(BFloat16 value) { return (value.bits & 0x7FFF) > 0x7F80; }

Float16 Expected(std::uint32_t bits, Float16 /*type*/) { return {Float16Bits(bits)}; }
BFloat16 Expected(std::uint32_t bits, BFloat16 /*type*/) { return {BFloat16Bits(bits)}; }

template <typename T>
bool Same(const T* actual, const T* expected, bool has_nan) {
  if (!has_nan) return std::memcmp(actual, expected, kChunk * sizeof(T)) == 0;
  return std::equal(actual, actual + kChunk, expected,
                    [](T a, T e) { return IsNan(e) ? IsNan(a) : a.bits == e.bits; });
}

// One thread's part: its floats, what they become, and the chunks that a target got wrong.
template <typename T>
class Part {
 public:
  void Prepare(std::uint32_t first_chunk) {
    first_chunk_ = first_chunk;
    for (std::uint32_t i = 0; i < kGroup * kChunk; ++i) {
      const std::uint32_t bits = first_chunk * kChunk + i;
      std::memcpy(&floats_[i], &bits, sizeof(bits));
      expected_[i] = Expected(bits, T());
    }
  }

  // Returns the first chunk that is wrong, or kChunks.
  std::uint32_t Check() {
    for (std::uint32_t i = 0; i < kGroup; ++i) {
      simd::ConvertFromFloat(&floats_[i * kChunk], actual_.data(), kChunk);
      if (!Same(actual_.data(), &expected_[i * kChunk], HasNan(first_chunk_ + i))) {
        return first_chunk_ + i;
      }
    }
    return kChunks;
  }

 private:
  std::uint32_t first_chunk_ = 0;
  std::vector<float> floats_ = std::vector<float>(kGroup * kChunk);
  std::vector<T> expected_ = std::vector<T>(kGroup * kChunk);
  std::vector<T> actual_ = std::vector<T>(kChunk);
};

// The target is global, so the threads change it together: all prepare a group each, then go
// through the targets in step.
template <typename T>
void ConvertAll() {
  const TargetRestorer restorer;
  const std::vector<std::string> targets = SupportedTargets();
  const std::uint32_t every = EveryGroups();
  std::size_t steps = 0;
  const auto next_target = [&]() noexcept { SetTarget(targets[steps++ % targets.size()]); };
  std::barrier in_step(kThreads, next_target);
  std::atomic<bool> failed = false;
  std::vector<std::string> failures(kThreads);
  const auto work = [&](int thread) {
    Part<T> part;
    for (std::uint32_t chunk = 0; chunk < kChunks; chunk += kThreads * kGroup * every) {
      part.Prepare(chunk + thread * kGroup);
      for (const std::string& target : targets) {
        in_step.arrive_and_wait();
        const std::uint32_t wrong = part.Check();
        if (wrong != kChunks && failures[thread].empty()) {
          failures[thread] =
              target + " is wrong among the floats with upper bits " + std::to_string(wrong);
          failed = true;
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(failed) << failures[0] << "; " << failures[1];
}

TEST(Exhaustive, FloatToBFloat16) { ConvertAll<BFloat16>(); }

TEST(Exhaustive, FloatToFloat16) { ConvertAll<Float16>(); }

}  // namespace
}  // namespace attnops::testing
