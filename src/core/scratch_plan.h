// A list of the arrays that a call needs, taken from one scratch memory.
#ifndef ATTNOPS_SRC_CORE_SCRATCH_PLAN_H_
#define ATTNOPS_SRC_CORE_SCRATCH_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/core/assert.h"
#include "src/core/scratch.h"

namespace attnops {

// Arrays of floats of one size.
struct Arrays {
  float* data = nullptr;
  std::int64_t stride = 0;

  float* At(std::int64_t i) const { return data + i * stride; }
};

// Arrays are added one by one, then all are taken at once. The arrays of a worker are contiguous:
// where they alternated with another worker's, both workers were slower.
class ScratchPlan {
 public:
  // `count` arrays of `size` floats.
  void Add(Arrays& arrays, std::int64_t size, std::int64_t count) {
    Append({&arrays, Padded(size), count});
    shared_ += Padded(size) * count;
  }
  // An array for each worker.
  void AddForWorkers(Arrays& arrays, std::int64_t size) {
    Append({&arrays, Padded(size), kForWorkers});
    worker_ += Padded(size);
  }

  std::size_t Bytes(int workers) const {
    return static_cast<std::size_t>(shared_ + workers * worker_) * sizeof(float);
  }
  void Take(Scratch& scratch, int workers) const {
    float* of_worker = scratch.Take<float>(workers * worker_);
    for (int i = 0; i < count_; ++i) {
      const Entry& entry = entries_[i];
      if (entry.count == kForWorkers) {
        *entry.arrays = {of_worker, worker_};
        of_worker += entry.size;
      } else {
        *entry.arrays = {scratch.Take<float>(entry.size * entry.count), entry.size};
      }
    }
  }

 private:
  static constexpr std::int64_t kForWorkers = -1;
  struct Entry {
    Arrays* arrays;
    std::int64_t size, count;
  };

  void Append(const Entry& entry) {
    ATTNOPS_DASSERT(count_ < static_cast<int>(entries_.size()));
    entries_[count_++] = entry;
  }
  static std::int64_t Padded(std::int64_t size) {
    return static_cast<std::int64_t>(Scratch::Size<float>(size) / sizeof(float));
  }

  std::array<Entry, 24> entries_;
  int count_ = 0;
  std::int64_t shared_ = 0, worker_ = 0;  // floats
};

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_SCRATCH_PLAN_H_
