#include "src/positions/grid.h"

#include "src/core/checks.h"

namespace attnops {
namespace {

// n_1·…·n_k == tokens, without overflow.
bool GridFits(const Dims& shape, std::int64_t tokens) {
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 0) return tokens == 0;
  }
  for (int i = 0; i < shape.rank(); ++i) {
    if (tokens <= 0 || tokens % shape[i] != 0) return false;
    tokens /= shape[i];
  }
  return tokens == 1;
}

}  // namespace

void CheckGrid(const char* op, const Dims& shape) {
  if (shape.rank() < 1) {
    Fail(op, "shape must have 1 to ", Dims::kMaxRank, " axes; it has none");
  }
  // Positions are exact to 2^31.
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < 0 || shape[i] > kLimit) {
      Fail(op, "shape must have sizes from 0 to ", kLimit, "; one is ", shape[i]);
    }
  }
}

void CheckGridTokens(const char* op, const char* x_name, std::int64_t tokens, const Dims& shape,
                     std::int64_t l) {
  if (l < 0) Fail(op, "l must not be negative; it is ", l);
  if (!GridFits(shape, tokens - l)) {
    Fail(op, x_name, " has ", tokens, " tokens; expected l = ", l, " and those of shape ",
         ToString(shape));
  }
}

void CheckGridOffset(const char* op, const Dims& shape, std::int64_t offset) {
  CheckOffset(op, offset);
  if (offset != 0 && shape.rank() > 1) {
    Fail(op, "offset must be 0 with ", shape.rank(), " axes; it is ", offset);
  }
}

void CheckAngles(const char* op, const char* name, std::int64_t angles, const Dims& shape,
                 const char* x_name, std::int64_t count, const char* what) {
  const std::int64_t needed = count / shape.rank() + (count % shape.rank() != 0 ? 1 : 0);
  if (angles < needed) {
    Fail(op, name, " has ", angles, " angles a head; ", x_name, " has ", count, " ", what, " on ",
         shape.rank(), " axes (expected at least ", needed, ")");
  }
}

void CheckPairAngles(const char* op, std::int64_t angles, const char* x_name, std::int64_t pairs) {
  if (pairs > 0 && (angles < 1 || angles > pairs)) {
    Fail(op, "theta has ", angles, " angles a head; ", x_name, " has ", pairs,
         " pairs (expected 1 to ", pairs, ")");
  }
}

std::int64_t TableRows(const Dims& shape) {
  std::int64_t rows = 0;
  for (int i = 0; i < shape.rank(); ++i) rows += shape[i];
  return rows;
}

}  // namespace attnops
