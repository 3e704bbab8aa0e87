// The table of cos and sin for md_lrpe_cosine.
#include <algorithm>

#include "attnops/md_lrpe_cosine.h"
#include "src/core/checks.h"
#include "src/core/grid.h"
#include "src/core/numeric.h"
#include "src/core/parallel.h"
#include "src/core/scratch.h"
#include "src/simd/encoding/encoding.h"

namespace attnops {
namespace {

constexpr char kOp[] = "lrpe_table";

void Check(const ConstTensorView& theta, const Dims& shape, std::int64_t d, const TensorView& table,
           std::int64_t offset) {
  CheckGrid(kOp, shape);
  CheckTheta(kOp, theta, "x", theta.dtype(), theta.rank() == 2 ? theta.shape(0) : 0);
  if (d < 0) Fail(kOp, "d must not be negative; it is ", d);
  CheckAngles(kOp, "theta", theta.shape(1), shape, "x", d, "features");
  CheckGridOffset(kOp, shape, offset);
  CheckShape(kOp, "table", table, {theta.shape(0), TableRows(shape), theta.shape(1), 2});
  if (table.dtype() != DType::kFloat32) {
    Fail(kOp, "table must be float32; it is ", Name(table.dtype()));
  }
  CheckOutput(kOp, "table", table);
  CheckApart(kOp, "table", table, "theta", theta);
}

}  // namespace

void LrpeTable(const ConstTensorView& theta, const Dims& shape, std::int64_t d,
               const TensorView& table, std::int64_t offset) {
  Check(theta, shape, d, table, offset);
  if (table.size() == 0) return;
  // All angles as those of one axis, which begins anew at each axis of the grid.
  const EncodingKernels kernels =
      CosineFloat32Kernels(ChosenTarget(), Pass::kForward, Activation::Kind::kNone, SoftmaxAxis::kNone);
  Angles angles = AnglesOf({&theta, nullptr, {table.shape(1)}, offset, theta.shape(1)},
                           theta.shape(1), kernels.chunk);
  const int workers = MaxWorkers();
  const std::int64_t worker_size = angles.block * angles.RowSize();
  Scratch scratch(AnglesScratch(angles) + Scratch::Size<float>(workers * worker_size));
  StartAngles(kernels, theta, scratch, angles);
  float* memory = scratch.Take<float>(workers * worker_size);

  std::int64_t begin = 0;  // of the axis in the table
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t n = shape[axis];
    const std::int64_t blocks = DivideUp(n, angles.block);
    RunTasks(blocks * angles.rows, workers, [&](std::int64_t task, int worker) {
      const std::int64_t row = task / blocks;
      const std::int64_t first = task % blocks * angles.block;
      const std::int64_t indices = std::min(angles.block, n - first);
      float* block = memory + worker * worker_size;
      kernels.fill_table(angles, row, row + 1, first, indices, block);
      for (std::int64_t i = 0; i < indices; ++i) {
        const float* cos = block + i * angles.RowSize();
        const float* sin = cos + angles.width;
        float* to = static_cast<float*>(table.data()) + row * table.stride(0) +
                    (begin + first + i) * table.stride(1);
        for (std::int64_t e = 0; e < theta.shape(1); ++e) {
          to[e * table.stride(2)] = cos[e];
          to[e * table.stride(2) + 1] = sin[e];
        }
      }
    });
    begin += n;
  }
}

}  // namespace attnops
