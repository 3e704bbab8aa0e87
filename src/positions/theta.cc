#include "src/positions/theta.h"

#include <algorithm>

#include "src/core/checks.h"

namespace attnops {

void ThetaSums::Take(Scratch& scratch) {
  data = scratch.Take<double>(size());
  std::fill_n(data, size(), 0.0);
}

void CheckThetaGradient(const char* op, const TensorView& d_theta, const ConstTensorView& theta) {
  CheckShape(op, "d_theta", d_theta, theta.shape());
  if (d_theta.dtype() != DType::kFloat32) {
    Fail(op, "d_theta must be float32; it is ", Name(d_theta.dtype()));
  }
  CheckOutput(op, "d_theta", d_theta);
  CheckApart(op, "d_theta", d_theta, "theta", theta);
}

void SetZero(const TensorView& d_theta) {
  for (std::int64_t row = 0; row < d_theta.shape(0); ++row) {
    std::fill_n(static_cast<float*>(d_theta.data()) + row * d_theta.stride(0), d_theta.shape(1),
                0.0f);
  }
}

void StoreThetaGradient(std::initializer_list<const ThetaSums*> sums, const Angles& angles,
                        std::int64_t encoded, std::int64_t (*storage_offset)(std::int64_t),
                        const TensorView& d_theta) {
  const std::int64_t rows = d_theta.shape(0), columns = d_theta.shape(1);
  // The angles of a theta: one of each axis, or all of them.
  const std::int64_t step = columns == 1 ? 1 : angles.per_axis;
  for (std::int64_t row = 0; row < rows; ++row) {
    float* to = static_cast<float*>(d_theta.data()) + row * d_theta.stride(0);
    for (std::int64_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (const ThetaSums* of : sums) {
        for (std::int64_t h = rows == 1 ? 0 : row; h < (rows == 1 ? of->heads : row + 1); ++h) {
          for (std::int64_t c = column; c < encoded; c += step) {
            for (std::int64_t i = 0; i < of->pieces; ++i) sum += of->At(i, h)[storage_offset(c)];
          }
        }
      }
      to[column] = static_cast<float>(sum);
    }
  }
}

}  // namespace attnops
