// Activations of a whole tensor in plain double-precision loops, for the references of the
// operators that fuse them.
#ifndef ATTNOPS_TESTS_REFERENCE_ACTIVATION_H_
#define ATTNOPS_TESTS_REFERENCE_ACTIVATION_H_

#include <cstdint>
#include <vector>

#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops::reference {

enum class Axis { kFeatures, kSequence };

// f, for a tensor of `shape` in row-major order.
struct TensorActivation {
  Activation::Kind kind = Activation::Kind::kNone;
  Dims shape;
  int softmax_axis = 0;

  // The groups of elements that one softmax normalises, as indices into x.
  std::vector<std::vector<std::int64_t>> SoftmaxGroups() const;

  // y = f(x).
  std::vector<double> Forward(const std::vector<double>& x) const;

  // dx from dy.
  std::vector<double> Backward(const std::vector<double>& x, const std::vector<double>& dy) const;
};

}  // namespace attnops::reference

#endif  // ATTNOPS_TESTS_REFERENCE_ACTIVATION_H_
