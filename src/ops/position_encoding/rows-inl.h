// Going through all rows of a region.

#if defined(ATTNOPS_SRC_OPS_POSITION_ENCODING_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_POSITION_ENCODING_ROWS_INL_H_
#undef ATTNOPS_SRC_OPS_POSITION_ENCODING_ROWS_INL_H_
#else
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "src/ops/position_encoding/kernels.h"
#include "src/positions/encode-inl.h"
#include "src/simd/strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::position_encoding {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// The rows of a call.
HWY_INLINE RowShape ShapeOf(const Problem& problem, const AngleTable& table) {
  return {problem.part, problem.encoded, table.width, problem.stream, problem.tail};
}

// One row of each tensor.
template <typename T>
struct Row {
  const T* x;
  const T* d_out;
  T* out;
  const float* cos;
  const float* step;  // to add to `cos`, if the table has steps
  const float* columns;
};

// How many tokens ahead rows are prefetched where a stretch is a token of all batches.
constexpr std::int64_t kTokensAhead = 4;

// Runs Kernel::Run on all rows of a region, Kernel::kRowSet at a time and the last rows of a
// stretch singly. A stretch is rows at equal distances. It is all heads of a token, or all tokens
// of a head, whichever are neighbours in memory; the next stretch is the same of the next batch,
// which has the same angles, and its rows are prefetched meanwhile, since the hardware follows a
// stream only within a page. Or it is one token of all batches, followed by the next token: the
// hardware follows as many streams as there are batches at once.
template <class Kernel, typename T>
HWY_INLINE void ForEachRowSet(const Problem& problem, const Region& region, const AngleTable& table,
                              float* scratch, const Columns& columns) {
  constexpr int kRowSet = Kernel::kRowSet;
  static_assert(kRowSet <= rowops::kSoftmaxRows);
  const RowShape shape = ShapeOf(problem, table);
  const bool tokens_inner = problem.tokens_inner;
  const std::int64_t tokens = region.token_end - region.token_begin;
  const std::int64_t heads = region.head_end - region.head_begin;
  const std::int64_t batches = region.batch_end - region.batch_begin;
  const bool by_batch = problem.by_batch;
  const auto of_stretch = [&](std::int64_t head, std::int64_t token, std::int64_t batch)
                              ATTNOPS_INLINE_LAMBDA {
                                return by_batch ? batch : tokens_inner ? token : head;
                              };
  const std::int64_t outer = tokens_inner ? heads : tokens;
  const std::int64_t middle = by_batch ? tokens : batches;
  const std::int64_t inner = of_stretch(heads, tokens, batches);
  // The first row of a stretch, and the step to the next.
  const auto first_row = [&](std::int64_t o, std::int64_t m) ATTNOPS_INLINE_LAMBDA {
    const std::int64_t t = region.token_begin + (by_batch ? m : tokens_inner ? 0 : o);
    const std::int64_t h = region.head_begin + (tokens_inner ? o : 0);
    const std::int64_t b = region.batch_begin + (by_batch ? 0 : m);
    return Row<T>{RowAt<T>(problem.x, b, h, t),
                  RowAt<T>(problem.d_out, b, h, t),
                  RowAt<T>(problem.out, b, h, t),
                  table.Cos(t - region.token_begin, h - region.head_begin),
                  table.Step(t - region.token_begin, h - region.head_begin),
                  columns.data == nullptr ? nullptr : columns.At(b, h)};
  };
  const auto step_of = [&](const auto& tensor) ATTNOPS_INLINE_LAMBDA {
    return of_stretch(tensor.head, tensor.token, tensor.batch);
  };
  const std::int64_t x_step = step_of(problem.x);
  const std::int64_t d_out_step = step_of(problem.d_out);
  const std::int64_t out_step = step_of(problem.out);
  const std::int64_t cos_step = of_stretch(table.RowStride(), table.TokenStride(), 0);
  const std::int64_t step_step =
      table.steps == nullptr ? 0
                             : of_stretch(table.step_count * table.RowStride(), 2 * table.width, 0);
  const std::int64_t columns_step =
      columns.data == nullptr ? 0 : of_stretch(columns.size, 0, columns.heads * columns.size);
  // The first row of the stretch that is prefetched meanwhile.
  const auto next_row = [&](std::int64_t o, std::int64_t m,
                            const Row<T>& row) ATTNOPS_INLINE_LAMBDA {
    if (by_batch) {
      const std::int64_t token = region.token_begin + m;
      const std::int64_t ahead = std::min(kTokensAhead, problem.N - 1 - token);
      Row<T> next = row;
      next.x += ahead * problem.x.token;
      next.d_out += ahead * problem.d_out.token;
      return next;
    }
    return m + 1 < middle ? first_row(o, m + 1) : first_row(std::min(o + 1, outer - 1), 0);
  };

  Row<T> rows[kRowSet];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t m = 0; m < middle; ++m) {
      Row<T> row = first_row(o, m);
      Row<T> next = next_row(o, m, row);
      int count = 0;
      for (std::int64_t i = 0; i < inner; ++i) {
        if constexpr (Kernel::kReadsX) {
          PrefetchRow(next.x, Kernel::kPlainParts * problem.part + problem.tail);
          next.x += x_step;
        }
        if constexpr (Kernel::kReadsGradient) {
          PrefetchRow(next.d_out, 2 * problem.part + problem.tail);
          next.d_out += d_out_step;
        }
        rows[count] = row;
        row = {row.x + x_step,     row.d_out + d_out_step, row.out + out_step,
               row.cos + cos_step, row.step + step_step,   row.columns + columns_step};
        if (++count == kRowSet) {
          Kernel::template Run<kRowSet>(shape, rows, scratch);
          count = 0;
        }
      }
      if constexpr (kRowSet > 1) {
        for (int r = 0; r < count; ++r) Kernel::template Run<1>(shape, rows + r, scratch);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::position_encoding
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_ROWS_INL_H_
