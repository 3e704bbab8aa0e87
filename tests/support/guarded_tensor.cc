#include "tests/support/guarded_tensor.h"

#include <algorithm>
#include <cstring>

#include "tests/support/rounding.h"

namespace attnops::testing {
namespace {

// More than the widest vector of any target.
constexpr std::int64_t kGuardElements = 96;
constexpr std::int64_t kAlignment = 64;

struct Patterns {
  std::uint32_t poison;
  std::uint32_t guard;
};

// Quiet NaNs with payloads that arithmetic does not produce.
Patterns PatternsOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {0x7EAD, 0xFEBF};
    case DType::kBFloat16:
      return {0x7FDA, 0xFFEB};
    case DType::kFloat32:
      break;
  }
  return {0x7FC0DEAD, 0xFFC0BEEF};
}

Dims ContiguousStrides(const Dims& shape) {
  return TensorView(nullptr, DType::kFloat32, shape).strides();
}

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, const Dims& shape)
    : GuardedTensor(dtype, shape, ContiguousStrides(shape)) {}

GuardedTensor::GuardedTensor(DType dtype, const Dims& shape, const Dims& strides, int shift)
    : dtype_(dtype), shape_(shape), strides_(strides) {
  const std::int64_t count = TensorView(nullptr, dtype, shape, strides).size();
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (int i = 0; i < shape.rank() && count > 0; ++i) {
    const std::int64_t reach = (shape[i] - 1) * strides[i];
    (reach < 0 ? lowest : highest) += reach;
  }
  const std::int64_t span = count > 0 ? highest - lowest + 1 : 0;
  const int size = SizeOf(dtype);
  memory_.resize((2 * kGuardElements + span + shift) * size + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  const std::int64_t misalignment = (address + kGuardElements * size) % kAlignment;
  first_ = kGuardElements + (kAlignment - misalignment) % kAlignment / size + shift - lowest;

  std::vector<bool> reached(memory_.size() / size, false);
  positions_.reserve(count);
  std::vector<std::int64_t> index(shape.rank(), 0);
  for (std::int64_t n = 0, position = first_; n < count; ++n) {
    positions_.push_back(position);
    reached[position] = true;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      position += strides[i];
      if (++index[i] < shape[i]) break;
      position -= shape[i] * strides[i];
      index[i] = 0;
    }
  }
  for (std::size_t position = 0; position < reached.size(); ++position) {
    if (reached[position]) continue;
    guards_.push_back(position);
    Store(position, PatternsOf(dtype).guard);
  }
  Poison();
}

std::uint32_t GuardedTensor::Load(std::int64_t position) const {
  // Sizes that are known to the compiler make this one instruction.
  if (dtype_ == DType::kFloat32) {
    std::uint32_t bits;
    std::memcpy(&bits, memory_.data() + position * 4, 4);
    return bits;
  }
  std::uint16_t bits;
  std::memcpy(&bits, memory_.data() + position * 2, 2);
  return bits;
}

void GuardedTensor::Store(std::int64_t position, std::uint32_t bits) {
  if (dtype_ == DType::kFloat32) {
    std::memcpy(memory_.data() + position * 4, &bits, 4);
  } else {
    const auto half = static_cast<std::uint16_t>(bits);
    std::memcpy(memory_.data() + position * 2, &half, 2);
  }
}

void GuardedTensor::Fill(const std::vector<double>& values) {
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    const std::uint32_t bits = BitsOf(static_cast<float>(values.at(i)));
    Store(positions_[i], dtype_ == DType::kFloat16    ? Float16Bits(bits)
                         : dtype_ == DType::kBFloat16 ? BFloat16Bits(bits)
                                                      : bits);
  }
}

std::vector<double> GuardedTensor::Values() const {
  std::vector<double> values;
  values.reserve(positions_.size());
  for (std::int64_t position : positions_) {
    const std::uint32_t bits = Load(position);
    const auto half = static_cast<std::uint16_t>(bits);
    values.push_back(dtype_ == DType::kFloat16    ? FloatOf(Float16{half})
                     : dtype_ == DType::kBFloat16 ? FloatOf(BFloat16{half})
                                                  : FloatOf(bits));
  }
  return values;
}

void GuardedTensor::Poison() {
  for (std::int64_t position : positions_) Store(position, PatternsOf(dtype_).poison);
}

TensorView GuardedTensor::view() {
  return {memory_.data() + first_ * SizeOf(dtype_), dtype_, shape_, strides_};
}

ConstTensorView GuardedTensor::view() const {
  return {memory_.data() + first_ * SizeOf(dtype_), dtype_, shape_, strides_};
}

std::vector<std::uint32_t> GuardedTensor::Bits() const {
  std::vector<std::uint32_t> bits;
  bits.reserve(positions_.size());
  for (std::int64_t position : positions_) bits.push_back(Load(position));
  return bits;
}

::testing::AssertionResult GuardedTensor::GuardsIntact() const {
  for (std::int64_t position : guards_) {
    if (Load(position) != PatternsOf(dtype_).guard) {
      return ::testing::AssertionFailure() << "written outside the tensor, at " << position - first_
                                           << " elements from its start";
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult GuardedTensor::AllWritten() const {
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    if (Load(positions_[i]) == PatternsOf(dtype_).poison) {
      return ::testing::AssertionFailure() << "element " << i << " was not written";
    }
  }
  return GuardsIntact();
}

::testing::AssertionResult GuardedTensor::Untouched() const {
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    if (Load(positions_[i]) != PatternsOf(dtype_).poison) {
      return ::testing::AssertionFailure() << "element " << i << " was written";
    }
  }
  return GuardsIntact();
}

}  // namespace attnops::testing
