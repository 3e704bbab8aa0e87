// What lrpe_rotate and rope share: positions of tokens and pairs of features.
#ifndef ATTNOPS_ROTARY_OPTIONS_H_
#define ATTNOPS_ROTARY_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

// A strided view of integers of 32 or 64 bits.
class IntegerView {
 public:
  // Contiguous, in row-major order.
  IntegerView(const std::int32_t* data, const Dims& shape) : IntegerView(data, false, shape) {}
  IntegerView(const std::int64_t* data, const Dims& shape) : IntegerView(data, true, shape) {}
  // Strides in elements, one for each axis.
  IntegerView(const std::int32_t* data, const Dims& shape, const Dims& strides)
      : data_(data), wide_(false), layout_(nullptr, DType::kFloat32, shape, strides) {}
  IntegerView(const std::int64_t* data, const Dims& shape, const Dims& strides)
      : data_(data), wide_(true), layout_(nullptr, DType::kFloat32, shape, strides) {}

  const void* data() const { return data_; }
  bool wide() const { return wide_; }  // whether the integers have 64 bits
  int rank() const { return layout_.rank(); }
  const Dims& shape() const { return layout_.shape(); }
  std::int64_t shape(int i) const { return layout_.shape(i); }
  std::int64_t stride(int i) const { return layout_.stride(i); }

 private:
  IntegerView(const void* data, bool wide, const Dims& shape)
      : data_(data), wide_(wide), layout_(nullptr, DType::kFloat32, shape) {}

  const void* data_;
  bool wide_;
  ConstTensorView layout_;  // of the shape and the strides alone
};

// The order of the axes of a tensor: (B,N,H,D) or (B,H,N,D).
enum class Layout { kBnhd, kBhnd };

// How the features of a token are rotated. Positions are within ±2^31.
struct RotaryOptions {
  // The position of each token, (N) or (B,N), or with `sections` (k,B,N), in place of offset+t.
  std::optional<IntegerView> positions = {};
  // The position of each batch's first token, (B), in place of one offset for all.
  std::optional<IntegerView> offsets = {};
  // The features that are rotated, the first r of D; all of them unless given. r is even.
  std::optional<std::int64_t> rotary_dim = {};
  // Whether pairs are neighbours (2j, 2j+1) and not halves (j, j+r/2).
  bool interleaved = false;
  // s_1 … s_k with the sum r/2: pair j of section i has the positions[i]. With sections_interleaved
  // pair j has the positions[i], i = j mod k, if j < k·s_i, else positions[0]; i counts from 0.
  Dims sections = {};
  bool sections_interleaved = false;
  float scale = 1.0f;  // a factor of all cosines and sines
  Layout layout = Layout::kBnhd;
};

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_ROTARY_OPTIONS_H_
