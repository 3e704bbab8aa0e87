// Measuring the machine's limits.
#include "attnops/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "src/core/measure.h"
#include "src/core/tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/simd/machine.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/core/target.h"
#include "src/simd/io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Copies n floats, a multiple of four vectors, past the caches.
void CopyStreamed(const float* from, float* to, std::size_t n) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < n; i += 4 * lanes) {
    const VF v0 = hn::Load(d, from + i);
    const VF v1 = hn::Load(d, from + i + lanes);
    const VF v2 = hn::Load(d, from + i + 2 * lanes);
    const VF v3 = hn::Load(d, from + i + 3 * lanes);
    hn::Stream(v0, d, to + i);
    hn::Stream(v1, d, to + i + lanes);
    hn::Stream(v2, d, to + i + 2 * lanes);
    hn::Stream(v3, d, to + i + 3 * lanes);
  }
  hwy::FlushStream();
}

// Multiply-adds in twelve independent chains, enough for two units of latency 5 and
// few enough for 16 registers. Returns the operations done; `sink` keeps the result.
double MultiplyAdds(std::int64_t rounds, float* sink) {
  const DF d;
  const VF m = hn::Set(d, 0.9999f);
  const VF a = hn::Set(d, 1e-4f);
  VF c0 = hn::Set(d, 0.1f), c1 = hn::Set(d, 0.2f), c2 = hn::Set(d, 0.3f), c3 = hn::Set(d, 0.4f);
  VF c4 = hn::Set(d, 0.5f), c5 = hn::Set(d, 0.6f), c6 = hn::Set(d, 0.7f), c7 = hn::Set(d, 0.8f);
  VF c8 = hn::Set(d, 0.9f), c9 = hn::Set(d, 1.1f), ca = hn::Set(d, 1.2f), cb = hn::Set(d, 1.3f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, m, a);
    c1 = hn::MulAdd(c1, m, a);
    c2 = hn::MulAdd(c2, m, a);
    c3 = hn::MulAdd(c3, m, a);
    c4 = hn::MulAdd(c4, m, a);
    c5 = hn::MulAdd(c5, m, a);
    c6 = hn::MulAdd(c6, m, a);
    c7 = hn::MulAdd(c7, m, a);
    c8 = hn::MulAdd(c8, m, a);
    c9 = hn::MulAdd(c9, m, a);
    ca = hn::MulAdd(ca, m, a);
    cb = hn::MulAdd(cb, m, a);
  }
  const VF sum = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)),
                         hn::Add(hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)),
                                 hn::Add(hn::Add(c8, c9), hn::Add(ca, cb))));
  *sink = hn::GetLane(sum);
  return 2.0 * 12.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnops {
namespace {

ATTNOPS_EXPORT(CopyStreamed);
ATTNOPS_EXPORT(MultiplyAdds);

// Memory in huge pages where the system has them, every page touched.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 1, bytes);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  float* data() const { return static_cast<float*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

}  // namespace

double MeasureCopyBandwidth(double seconds) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const Pages from(kBytes);
  const Pages to(kBytes);
  const int workers = MaxWorkers();
  // Slices of a size at which memcpy bypasses the caches, too.
  const std::int64_t slices = std::max(1, std::min(16, workers)) * std::int64_t{2};
  const std::size_t slice = kBytes / sizeof(float) / static_cast<std::size_t>(slices);
  const auto copy = ATTNOPS_DISPATCH(CopyStreamed, BestTarget());
  const double streamed = MedianTime(seconds / 2, [&] {
    RunTasks(slices, workers, [&](std::int64_t i, int) {
      copy(from.data() + static_cast<std::size_t>(i) * slice,
           to.data() + static_cast<std::size_t>(i) * slice, slice);
    });
  });
  const double plain = MedianTime(seconds / 2, [&] {
    RunTasks(slices, workers, [&](std::int64_t i, int) {
      std::memcpy(to.data() + static_cast<std::size_t>(i) * slice,
                  from.data() + static_cast<std::size_t>(i) * slice, slice * sizeof(float));
    });
  });
  return 2.0 * static_cast<double>(kBytes) / std::min(streamed, plain);
}

double MeasureFmaPeak(double seconds) {
  return MeasurePeak(seconds, ATTNOPS_DISPATCH(MultiplyAdds, BestTarget()));
}

}  // namespace attnops
#endif  // HWY_ONCE
