// A tensor of any type and strides inside guard zones.
#ifndef ATTNOPS_TESTS_SUPPORT_GUARDED_TENSOR_H_
#define ATTNOPS_TESTS_SUPPORT_GUARDED_TENSOR_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops::testing {

// Owns the memory that the view spans, with a guard zone before and after it. Guard zones and gaps
// (what no index reaches) hold one NaN pattern, the elements start as another: whatever is read
// without permission spoils the result, and whatever is written or left out is found by the checks.
class GuardedTensor {
 public:
  // Contiguous.
  GuardedTensor(DType dtype, const Dims& shape);
  // Any strides: negative, 0, with gaps. The lowest element is `shift` elements past a multiple of
  // 64 bytes.
  GuardedTensor(DType dtype, const Dims& shape, const Dims& strides, int shift = 0);
  GuardedTensor(const GuardedTensor&) = delete;
  GuardedTensor& operator=(const GuardedTensor&) = delete;
  // The memory stays where it is, and with it the alignment.
  GuardedTensor(GuardedTensor&&) = default;
  GuardedTensor& operator=(GuardedTensor&&) = default;

  // Sets the elements, in row-major order of the indices, to the nearest values of the type.
  // With a stride of 0 the last value stays.
  void Fill(const std::vector<double>& values);
  // The elements in row-major order of the indices.
  std::vector<double> Values() const;
  // Makes every element the starting NaN again.
  void Poison();

  TensorView view();
  ConstTensorView view() const;
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  std::int64_t size() const { return static_cast<std::int64_t>(positions_.size()); }

  // The elements as stored, in row-major order of the indices.
  std::vector<std::uint32_t> Bits() const;
  // Everything, guards included, to see whether anything changes.
  const std::vector<std::uint8_t>& memory() const { return memory_; }

  // No guard or gap has changed.
  ::testing::AssertionResult GuardsIntact() const;
  // The guards are intact and every element was written.
  ::testing::AssertionResult AllWritten() const;
  // Nothing was written at all.
  ::testing::AssertionResult Untouched() const;

 private:
  std::uint32_t Load(std::int64_t position) const;
  void Store(std::int64_t position, std::uint32_t bits);

  DType dtype_;
  Dims shape_;
  Dims strides_;
  std::vector<std::uint8_t> memory_;
  std::int64_t first_ = 0;               // the position of index (0, …, 0)
  std::vector<std::int64_t> positions_;  // of each element, counted in elements of the memory
  std::vector<std::int64_t> guards_;     // every position that no element has
};

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_GUARDED_TENSOR_H_
