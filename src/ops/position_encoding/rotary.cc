#include "src/ops/position_encoding/rotary.h"

#include <algorithm>
#include <cmath>

#include "src/core/checks.h"

namespace attnops::position_encoding {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 31;

void CheckSections(const char* op, std::int64_t rotated, const RotaryOptions& options) {
  const Dims& sections = options.sections;
  if (sections.rank() == 0) {
    if (options.sections_interleaved) {
      Fail(op, "sections_interleaved must be false without sections; it is true");
    }
    return;
  }
  if (!options.positions) Fail(op, "sections need positions (sections, B, N); there are none");
  std::int64_t sum = 0;
  for (int i = 0; i < sections.rank(); ++i) {
    if (sections[i] < 0 || sections[i] > rotated / 2) {
      Fail(op, "sections must have sizes from 0 to ", rotated / 2, "; one is ", sections[i]);
    }
    sum += sections[i];
  }
  if (sum != rotated / 2) {
    Fail(op, "sections must have the sum ", rotated / 2, ", the rotated pairs; it is ", sum);
  }
}

}  // namespace

const char* AxesOf(Layout layout) { return layout == Layout::kBnhd ? "(B,N,H,D)" : "(B,H,N,D)"; }

std::int64_t CheckRotated(const char* op, const char* x_name, std::int64_t features,
                          const RotaryOptions& options) {
  if (features % 2 != 0) {
    Fail(op, x_name, " must have an even number of features; it has ", features);
  }
  const std::int64_t rotated = options.rotary_dim.value_or(features);
  if (rotated % 2 != 0 || rotated < 0 || rotated > features) {
    Fail(op, "rotary_dim must be even and from 0 to ", features, "; it is ", rotated);
  }
  return rotated;
}

void CheckRotary(const char* op, std::int64_t batches, std::int64_t tokens, std::int64_t rotated,
                 std::int64_t offset, const RotaryOptions& options, std::int64_t table_rows,
                 AngleSource& angles) {
  CheckOffset(op, offset);
  if (offset != 0 && (options.positions || options.offsets)) {
    Fail(op, "offset must be 0 with positions; it is ", offset);
  }
  if (options.positions && options.offsets) {
    Fail(op, "offset must be 0 with positions; it is a tensor");
  }
  if (!std::isfinite(options.scale)) Fail(op, "scale must be finite; it is ", options.scale);
  CheckSections(op, rotated, options);
  angles.shape = {tokens};
  angles.offset = offset;
  angles.per_axis = std::max<std::int64_t>(rotated / 2, 1);
  angles.sections = options.sections;
  angles.sections_interleaved = options.sections_interleaved;
  angles.scale = options.scale;
  const int streams = std::max(1, options.sections.rank());
  if (options.positions) {
    angles.ids = CheckPositions(op, *options.positions, batches, tokens, options.sections.rank());
  } else if (options.offsets) {
    angles.ids = CheckOffsets(op, *options.offsets, batches);
  }
  const char* name = options.positions ? "positions" : "offset";
  if (table_rows >= 0) {
    const char* what = ", the rows of cos_sin";
    if (angles.ids.data != nullptr) {
      CheckPositionRange(op, name, angles.ids, streams, batches, tokens, 0, table_rows - 1, what);
    } else if (tokens > 0 && batches > 0 && (offset < 0 || offset + tokens > table_rows)) {
      Fail(op, "offset must be from 0 to ", table_rows - tokens, " for ", tokens, " tokens and ",
           table_rows, " rows of cos_sin; it is ", offset);
    }
  } else if (angles.ids.data != nullptr) {
    // An offset is bounded itself, as one for all batches is.
    CheckPositionRange(op, name, angles.ids, streams, batches,
                       options.positions ? tokens : std::min<std::int64_t>(tokens, 1), -kLimit,
                       kLimit, "");
  }
}

void OffsetAsIds(std::int64_t offset, std::int64_t& storage, AngleSource& angles) {
  storage = offset;
  angles.ids = {};
  angles.ids.data = &storage;
  angles.ids.wide = true;
  angles.ids.counts = true;
}

void SetProblem(const Call& call, const RotaryAxes& axes, const ConstTensorView& x,
                std::int64_t angle_count, Problem& problem) {
  const Pairs& pairs = call.pairs;
  problem.B = x.shape(0);
  problem.N = x.shape(axes.sequence);
  problem.H = axes.Heads(x);
  problem.x = problem.d_out = axes.RowsOf(x);
  problem.out = {nullptr, problem.x.batch, problem.x.head, problem.x.token};
  const bool gathers = call.Gathers();
  problem.part = gathers ? pairs.features / 2 : pairs.rotated / 2;
  problem.tail = gathers ? 0 : pairs.features - pairs.rotated;
  problem.encoded = angle_count == 1 ? pairs.rotated / 2 : std::min(angle_count, pairs.rotated / 2);
  problem.prefix = 0;
}

}  // namespace attnops::position_encoding
