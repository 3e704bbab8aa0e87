// The table of cos and sin for md_lrpe_cosine.
#include <algorithm>

#include "attnops/md_lrpe_cosine.h"
#include "src/core/checks.h"
#include "src/core/numeric.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/positions/angles.h"
#include "src/positions/grid.h"
#include "src/positions/kernels.h"

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
  // The angles of one line serve every axis of the grid, each from the line's first index on.
  const TargetIndex target = ChosenTarget();
  const positions::Kernels kernels = positions::KernelsOf<float>(target);
  AngleSource source;
  source.theta = &theta;
  source.shape = {table.shape(1)};
  source.offset = offset;
  source.per_axis = theta.shape(1);
  Angles angles = AnglesOf(source, theta.shape(1), kernels.chunk);
  const int workers = MaxWorkers();
  Arrays tables_of_workers;
  ScratchPlan plan;
  plan.AddForWorkers(tables_of_workers, angles.step_count * angles.RowSize());
  Scratch scratch(AnglesScratch(angles) + plan.Bytes(workers));
  plan.Take(scratch, workers);
  // Each group of indices has one base, as in the tables of the encodings.
  const std::int64_t lead = FloorModulo(offset, angles.step_count);
  StartAngles(target, DType::kFloat32, source, StepsOf(angles, 1, table.shape(1)), scratch, angles);

  std::int64_t begin = 0;  // row of the result where the axis begins
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t n = shape[axis];
    const std::int64_t groups = DivideUp(n + lead, angles.step_count);  // of indices
    RunTasks(groups * angles.rows, workers, [&](std::int64_t task, int worker) {
      const std::int64_t row = task / groups;
      const std::int64_t group = task % groups * angles.step_count - lead;
      const std::int64_t first = std::max<std::int64_t>(0, group);
      const std::int64_t indices = std::min(group + angles.step_count, n) - first;
      float* own_table = tables_of_workers.At(worker);
      kernels.fill_table(angles, row, row + 1, first, indices, own_table);
      for (std::int64_t i = 0; i < indices; ++i) {
        const float* cos = own_table + i * angles.RowSize();
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
