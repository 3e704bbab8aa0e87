#include "src/positions/angles.h"

#include "src/core/assert.h"
#include "src/core/numeric.h"
#include "src/positions/kernels.h"

namespace attnops {
namespace {

// Bound of Angles::steps, which all workers share.
constexpr std::int64_t kStepBytes = 2 << 20;

}  // namespace

Angles AnglesOf(const AngleSource& source, std::int64_t count, std::int64_t chunk) {
  Angles angles;
  angles.shape = source.shape;
  angles.offset = source.offset;
  angles.count = count;
  angles.per_axis = source.per_axis;
  angles.width = RoundUp(count, chunk);
  if (source.table != nullptr) {
    angles.from_table = true;
    angles.table = static_cast<const float*>(source.table->data());
    angles.rows = source.table->shape(0);
    angles.table_row = source.table->stride(0);
    angles.table_index = source.table->stride(1);
    angles.step_count = Angles::kMaxSteps;
  } else {
    angles.rows = source.theta->shape(0);
    const auto size = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t step = std::max<std::int64_t>(angles.rows * angles.RowSize() * size, 1);
    angles.step_count = std::clamp<std::int64_t>(kStepBytes / step, 1, Angles::kMaxSteps);
  }
  return angles;
}

std::size_t AnglesScratch(const Angles& angles) {
  if (angles.from_table) return 0;
  const std::int64_t count = angles.rows * angles.width;
  return Scratch::Size<std::uint32_t>(2 * count) + Scratch::Size<float>(count) +
         Scratch::Size<float>(angles.step_count * 2 * count);
}

void StartAngles(TargetIndex target, DType dtype, const ConstTensorView& theta, Scratch& scratch,
                 Angles& angles) {
  ATTNOPS_DASSERT(!angles.from_table);
  const positions::Kernels kernels = positions::KernelsFor(dtype, target);
  const std::int64_t count = angles.rows * angles.width;
  angles.turns = scratch.Take<std::uint32_t>(2 * count);
  angles.poison = scratch.Take<float>(count);
  angles.steps = scratch.Take<float>(angles.step_count * 2 * count);
  kernels.fill_turns(theta, angles);
  std::int64_t longest = 0;
  for (int axis = 0; axis < angles.axes(); ++axis) longest = std::max(longest, angles.shape[axis]);
  kernels.fill_steps(angles, std::min(angles.step_count, longest));
}

}  // namespace attnops
