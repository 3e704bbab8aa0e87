#include "src/positions/ids.h"

#include <algorithm>

#include "src/core/assert.h"
#include "src/core/checks.h"
#include "src/core/numeric.h"

namespace attnops {
namespace {

void CheckData(const char* op, const char* name, const IntegerView& view) {
  bool empty = false;
  for (int i = 0; i < view.rank(); ++i) {
    if (view.shape(i) < 0) {
      Fail(op, name, " must not have negative sizes; its shape is ", ToString(view.shape()));
    }
    empty = empty || view.shape(i) == 0;
  }
  if (!empty && view.data() == nullptr) Fail(op, name, " has no data");
}

}  // namespace

bool BlockPositions::operator==(const BlockPositions& other) const {
  for (int s = 0; s < streams; ++s) {
    if (!std::equal(base[s], base[s] + tokens, other.base[s]) ||
        !std::equal(step[s], step[s] + tokens, other.step[s])) {
      return false;
    }
  }
  return true;
}

bool BlockPositions::IsRun() const {
  for (std::int64_t i = 1; i < tokens; ++i) {
    if (base[0][i] != base[0][0] || step[0][i] != step[0][0] + i) return false;
  }
  return streams == 1;
}

void FindPositions(const PositionIds& ids, int streams, std::int64_t step_count, std::int64_t batch,
                   std::int64_t first, std::int64_t tokens, BlockPositions& to) {
  ATTNOPS_DASSERT(tokens <= BlockPositions::kTokens && streams <= Dims::kMaxRank);
  to.streams = streams;
  to.tokens = tokens;
  for (int s = 0; s < streams; ++s) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t position = ids.At(s, batch, first + i);
      to.step[s][i] = FloorModulo(position, step_count);
      to.base[s][i] = position - to.step[s][i];
    }
  }
}

std::uint32_t StepsOfLine(std::int64_t first, std::int64_t n, std::int64_t step_count) {
  std::uint32_t steps = 0;
  for (std::int64_t i = 0; i < std::min(n, step_count); ++i) {
    steps |= std::uint32_t{1} << FloorModulo(first + i, step_count);
  }
  return steps;
}

PositionIds CheckPositions(const char* op, const IntegerView& positions, std::int64_t batches,
                           std::int64_t tokens, int sections) {
  constexpr char kName[] = "positions";
  CheckData(op, kName, positions);
  const int rank = positions.rank();
  const auto is = [&](int axis, std::int64_t size) { return positions.shape(axis) == size; };
  const bool fits = sections > 0 ? rank == 3 && is(0, sections) && is(1, batches) && is(2, tokens)
                    : rank == 1  ? is(0, tokens)
                                 : rank == 2 && is(0, batches) && is(1, tokens);
  if (!fits) {
    if (sections > 0) {
      Fail(op, kName, " must have the shape (", sections, ", ", batches, ", ", tokens,
           ") (sections, B, N); its shape is ", ToString(positions.shape()));
    }
    Fail(op, kName, " must have the shape (", tokens, ") or (", batches, ", ", tokens,
         "); its shape is ", ToString(positions.shape()));
  }
  PositionIds ids;
  ids.data = positions.data();
  ids.wide = positions.wide();
  ids.stream = rank == 3 ? positions.stride(0) : 0;
  ids.batch = rank >= 2 ? positions.stride(rank - 2) : 0;
  ids.token = positions.stride(rank - 1);
  return ids;
}

PositionIds CheckOffsets(const char* op, const IntegerView& offsets, std::int64_t batches) {
  constexpr char kName[] = "offset";
  CheckData(op, kName, offsets);
  if (offsets.rank() != 1 || offsets.shape(0) != batches) {
    Fail(op, kName, " must have the shape (", batches, "); its shape is ",
         ToString(offsets.shape()));
  }
  PositionIds ids;
  ids.data = offsets.data();
  ids.wide = offsets.wide();
  ids.counts = true;
  ids.batch = offsets.stride(0);
  return ids;
}

void CheckPositionRange(const char* op, const char* name, const PositionIds& ids, int streams,
                        std::int64_t batches, std::int64_t tokens, std::int64_t lowest,
                        std::int64_t highest, const char* what) {
  if (batches == 0 || tokens == 0) return;
  const auto check = [&](std::int64_t position) {
    if (position < lowest || position > highest) {
      Fail(op, name, " must be from ", lowest, " to ", highest, what, "; one is ", position);
    }
  };
  // Ids that do not depend on the batch are looked at once; of counted ones the ends are enough.
  const std::int64_t rows = ids.batch == 0 ? 1 : batches;
  for (int s = 0; s < streams; ++s) {
    for (std::int64_t b = 0; b < rows; ++b) {
      std::int64_t low = ids.At(s, b, 0), high = low;
      if (ids.counts) {
        check(low);
        high = low + tokens - 1;
      } else {
        for (std::int64_t t = 1; t < tokens; ++t) {
          const std::int64_t position = ids.At(s, b, t);
          low = std::min(low, position);
          high = std::max(high, position);
        }
      }
      check(low);
      check(high);
    }
  }
}

}  // namespace attnops
