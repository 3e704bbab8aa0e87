// The sums of the gradient of theta: float64, for each piece of the work, merged in a fixed order.
#ifndef ATTNOPS_SRC_POSITIONS_THETA_H_
#define ATTNOPS_SRC_POSITIONS_THETA_H_

#include <cstdint>
#include <initializer_list>

#include "attnops/view.h"
#include "src/core/scratch.h"
#include "src/positions/angles.h"

namespace attnops {

// Sums of (pieces, heads, width) angles, in the storage order of a type.
struct ThetaSums {
  std::int64_t pieces = 0, heads = 0, width = 0;
  double* data = nullptr;

  std::int64_t size() const { return pieces * heads * width; }
  std::size_t Bytes() const { return Scratch::Size<double>(size()); }
  // Takes the sums, 0 at first, from scratch memory.
  void Take(Scratch& scratch);
  double* At(std::int64_t piece, std::int64_t head) const {
    return data + (piece * heads + head) * width;
  }
};

// d_theta is float32, has theta's shape and shares no memory with theta.
void CheckThetaGradient(const char* op, const TensorView& d_theta, const ConstTensorView& theta);
void SetZero(const TensorView& d_theta);

// Writes the gradient: the sum of all `sums` over the pieces and over what a theta is shared by. Of
// the angles the first `encoded` count; storage_offset says where an angle is in a row of sums.
void StoreThetaGradient(std::initializer_list<const ThetaSums*> sums, const Angles& angles,
                        std::int64_t encoded, std::int64_t (*storage_offset)(std::int64_t),
                        const TensorView& d_theta);

}  // namespace attnops

#endif  // ATTNOPS_SRC_POSITIONS_THETA_H_
