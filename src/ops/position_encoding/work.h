// One call of a position encoding: its problem, kernels, angles and blocks of tokens.
#ifndef ATTNOPS_SRC_OPS_POSITION_ENCODING_WORK_H_
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_WORK_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/core/numeric.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/positions/kernels.h"

namespace attnops::position_encoding {

// For at most so many batches the angles of a block are not a table but computed in registers, from
// the first token's and a step: more arithmetic, less memory. It pays without an activation only,
// and where few heads share a table.
constexpr std::int64_t kSteppedBatches = 2;
constexpr std::int64_t kSteppedHeads = 4;
// Tasks that a worker should have, so that none waits long for the last one: tasks of a share of
// the batches, each of which costs a table.
constexpr std::int64_t kWorkerTasks = 8;

struct Work {
  // Chooses kernels and cuts the heads into groups. A call of fewer than kSerialBytes has one
  // worker.
  Work(const Call& call, TargetIndex target);

  Problem problem;
  Problem second;
  bool both;
  Pairs pairs;
  bool gathers;  // whether rows are gathered
  DType dtype;
  DType order;  // the tables are in its storage order
  Kernels kernels;
  positions::Kernels angle_kernels;
  Angles angles;
  Arrays memory;            // of each worker: a table, rows for a softmax, gathered rows
  Arrays statistics;        // of softmax over the sequence
  std::int64_t head_group;  // heads that a table is made for
  std::int64_t lead;        // tokens that the first block is short of: blocks end at the bases
  int workers;

  std::int64_t PrefixBlocks() const { return DivideUp(problem.prefix, angles.step_count); }
  std::int64_t Blocks() const {
    return PrefixBlocks() + DivideUp(problem.N - problem.prefix + lead, angles.step_count);
  }
  std::int64_t HeadGroups() const { return DivideUp(problem.H, head_group); }
  std::int64_t PlainRow() const { return kernels.plain_parts * angles.width; }
  std::int64_t TableSize() const {
    return angles.step_count * std::min(angles.rows, head_group) * angles.RowSize();
  }
  std::int64_t SoftmaxSize() const { return rowops::kSoftmaxRows * 2 * PlainRow(); }
  // Gathered rows of x, d_out and the result, for a block of a head.
  std::int64_t GatheredSize() const { return gathers ? 3 * angles.step_count * pairs.features : 0; }
  std::int64_t WorkerScratch() const { return TableSize() + SoftmaxSize() + GatheredSize(); }

  // Into how many shares `batches` are divided where `undivided` tasks are too few. A share of
  // fewer than 4 would cost as much for its angles as for its rows.
  std::int64_t BatchShares(std::int64_t batches, std::int64_t undivided) const {
    return std::min(DivideUp(batches, 4), DivideUp(kWorkerTasks * workers, undivided));
  }

  bool InPrefix(const Region& region) const { return region.token_begin < problem.prefix; }

  // The region of a block, of group `group` of the heads [head_begin, head_end), and of batches.
  Region RegionOf(std::int64_t block, std::int64_t group, std::int64_t head_begin,
                  std::int64_t head_end, std::int64_t batch_begin, std::int64_t batch_end) const;

  // A region's angles: its batches have the same ones. The positions are null unless there are ids.
  struct RegionAngles {
    Region region;
    AngleTable table;
    const BlockPositions* positions;
  };
  // Calls f(RegionAngles) for the batches of a region, consecutive ones with the same positions
  // together, with tables at `table`. With `stepped` they may have steps.
  template <class F>
  void ForEachTable(const Region& region, float* table, bool stepped, const F& f) const {
    if (!angles.HasIds() || InPrefix(region)) {
      return f(RegionAngles{region, FillTable(region, nullptr, table, stepped), nullptr});
    }
    BlockPositions found[2];
    BlockPositions *current = &found[0], *next = &found[1];
    Region same = region;
    Find(region, region.batch_begin, *current);
    while (same.batch_begin < region.batch_end) {
      same.batch_end = angles.ids.batch == 0 ? region.batch_end : same.batch_begin + 1;
      for (; same.batch_end < region.batch_end; ++same.batch_end) {
        Find(region, same.batch_end, *next);
        if (!(*next == *current)) break;
      }
      f(RegionAngles{same, FillTable(same, current, table, stepped), current});
      same.batch_begin = same.batch_end;
      std::swap(current, next);
    }
  }

  // Calls f(problem, region, table) with a problem whose pairs are halves. If rows must be
  // gathered, that is for each batch and head, and the results are scattered afterwards if there
  // are any.
  enum class Results { kNone, kWritten };
  template <class F>
  void WithHalves(const RegionAngles& of, int worker, Results results, const F& f) const {
    if (!gathers) return f(problem, of.region, of.table);
    const Region& region = of.region;
    const std::int64_t tokens = region.token_end - region.token_begin;
    float* gathered = memory.At(worker) + TableSize() + SoftmaxSize();
    const std::int64_t size = GatheredSize() / 3;
    Problem local = problem;
    local.x = {gathered, 0, 0, pairs.features};
    local.d_out = {gathered + size, 0, 0, pairs.features};
    local.out = {gathered + 2 * size, 0, 0, pairs.features};
    local.stream = false;
    for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
      for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::int64_t token = region.token_begin + t;
          kernels.gather(pairs, AddressOf(problem.x, b, h, token), AddressOf(local.x, 0, 0, t));
          kernels.gather(pairs, AddressOf(problem.d_out, b, h, token),
                         AddressOf(local.d_out, 0, 0, t));
        }
        f(local, Region{b, b + 1, 0, tokens, h, h + 1}, of.table.OfRow(h - region.head_begin));
        for (std::int64_t t = 0; results == Results::kWritten && t < tokens; ++t) {
          kernels.scatter(pairs, AddressOf(local.out, 0, 0, t),
                          AddressOf(problem.out, b, h, region.token_begin + t));
        }
      }
    }
  }

  // Writes a region of the result, of both problems.
  void Apply(const Region& region, int worker, const Columns& columns) const;

 private:
  template <typename Pointer>
  void* AddressOf(const StridedTensor<Pointer>& tensor, std::int64_t b, std::int64_t h,
                  std::int64_t t) const {
    const std::int64_t at = b * tensor.batch + h * tensor.head + t * tensor.token;
    return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(tensor.data))) +
           at * SizeOf(dtype);
  }
  void Find(const Region& region, std::int64_t batch, BlockPositions& to) const {
    FindPositions(angles.ids, angles.streams, angles.step_count, batch,
                  region.token_begin - problem.prefix, region.token_end - region.token_begin, to);
  }
  bool IsStepped(const Region& region, const BlockPositions* positions) const;
  // Fills `table` with the angles of a region's tokens; tokens of the prefix have none.
  AngleTable FillTable(const Region& region, const BlockPositions* positions, float* table,
                       bool stepped) const;
};

// How softmax over the sequence divides the columns (b,h) and the sequence.
struct SequencePlan {
  std::int64_t piece_blocks;  // blocks in a piece, the unit whose sums are merged in order
  std::int64_t pieces;
  std::int64_t column_size;  // floats of one (b,h)'s statistics
  std::int64_t batches;      // in a group
  std::int64_t heads;        // in a group; all of them unless batches is 1

  SequencePlan(const Work& work, Pass pass);

  std::int64_t StatisticsSize() const { return pieces * batches * heads * column_size; }
};

// Finds the statistics of the columns of a group of batches and heads; `done` counts the pieces
// that are done, for each group of heads and share of the batches.
using PiecesDone = std::vector<std::atomic<std::int64_t>>;
PiecesDone MakePiecesDone(const Work& work, const SequencePlan& plan);
Columns SumColumns(const Work& work, const SequencePlan& plan, Pass pass, const Region& group,
                   PiecesDone& done);

// Calls f(group) for the groups of columns, as many batches and heads as the plan says.
template <class F>
void ForEachColumnGroup(const Work& work, const SequencePlan& plan, const F& f) {
  const Problem& problem = work.problem;
  for (std::int64_t b = 0; b < problem.B; b += plan.batches) {
    for (std::int64_t h = 0; h < problem.H; h += plan.heads) {
      f(Region{b, std::min(problem.B, b + plan.batches), 0, problem.N, h,
               std::min(problem.H, h + plan.heads)});
    }
  }
}

}  // namespace attnops::position_encoding

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_WORK_H_
