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
  angles.ids = source.ids;
  angles.streams = std::max(1, source.sections.rank());
  angles.scale = source.scale;
  if (source.cos_sin != nullptr) {
    angles.cos_sin = source.cos_sin->data();
    angles.cos_sin_type = source.cos_sin->dtype();
    angles.cos_sin_row = source.cos_sin->stride(0);
    angles.rows = 1;
    angles.step_count = Angles::kMaxSteps;
  } else if (source.table != nullptr) {
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
  const std::size_t streams =
      angles.streams > 1 ? Scratch::Size<std::uint32_t>(angles.width) : std::size_t{0};
  if (angles.cos_sin != nullptr) return streams;
  const std::int64_t count = angles.rows * angles.width;
  return streams + Scratch::Size<std::uint32_t>(2 * count) + Scratch::Size<float>(count) +
         Scratch::Size<float>(angles.step_count * 2 * count);
}

std::uint32_t StepsOf(const Angles& angles, std::int64_t batches, std::int64_t tokens) {
  const std::uint32_t all = (std::uint32_t{1} << angles.step_count) - 1;
  if (!angles.HasIds()) {
    if (angles.axes() == 1) return StepsOfLine(angles.offset, tokens, angles.step_count);
    std::int64_t longest = 0;
    for (int i = 0; i < angles.axes(); ++i) longest = std::max(longest, angles.shape[i]);
    return StepsOfLine(0, longest, angles.step_count);
  }
  // The steps of a few tokens are worth finding: they are most of the work of decoding one.
  if (batches * tokens * angles.streams >= angles.step_count) return all;
  std::uint32_t steps = 0;
  for (int s = 0; s < angles.streams; ++s) {
    for (std::int64_t b = 0; b < batches; ++b) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        steps |= StepsOfLine(angles.ids.At(s, b, t), 1, angles.step_count);
      }
    }
  }
  return steps;
}

void StartAngles(TargetIndex target, DType order, const AngleSource& source, std::uint32_t steps,
                 Scratch& scratch, Angles& angles) {
  ATTNOPS_DASSERT(!angles.from_table);
  const positions::Kernels kernels = positions::KernelsFor(order, target);
  if (angles.streams > 1) {
    angles.stream_of = scratch.Take<std::uint32_t>(angles.width);
    kernels.fill_streams(source.sections, source.sections_interleaved, angles);
  }
  if (angles.cos_sin != nullptr) return;
  const std::int64_t count = angles.rows * angles.width;
  angles.turns = scratch.Take<std::uint32_t>(2 * count);
  angles.poison = scratch.Take<float>(count);
  angles.steps = scratch.Take<float>(angles.step_count * 2 * count);
  kernels.fill_turns(*source.theta, angles);
  kernels.fill_steps(angles, steps);
}

}  // namespace attnops
