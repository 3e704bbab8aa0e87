// The statistics of softmax over the sequence.
#include <algorithm>

#include "src/core/tasks.h"
#include "src/ops/position_encoding/work.h"

namespace attnops::position_encoding {
namespace {

// Softmax over the sequence cuts it into at most kMostPieces pieces of at least kPieceBlocks
// blocks: the first block of a piece is read once more for the maximum, and pieces have to be
// merged. It takes as many columns at a time as the statistics of all their pieces have room for in
// kColumnBytes. Both passes then take scratch of about the same size: were that of the backward
// larger, malloc might keep the forward's beside it.
constexpr std::int64_t kMostPieces = 32;
constexpr std::int64_t kPieceBlocks = 4;
constexpr std::int64_t kColumnBytes = 7 << 19;

}  // namespace

SequencePlan::SequencePlan(const Work& work, Pass pass) {
  const Problem& problem = work.problem;
  piece_blocks = std::max(kPieceBlocks, DivideUp(work.Blocks(), kMostPieces));
  pieces = DivideUp(work.Blocks(), piece_blocks);
  column_size = Columns::Rows(pass) * work.PlainRow();
  const auto bytes = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fit = kColumnBytes / std::max<std::int64_t>(pieces * column_size * bytes, 1);
  heads = std::clamp<std::int64_t>(fit, 1, problem.H);
  const std::int64_t most = std::clamp<std::int64_t>(fit / problem.H, 1, problem.B);
  batches = DivideUp(problem.B, DivideUp(problem.B, most));  // groups of equal size
}

PiecesDone MakePiecesDone(const Work& work, const SequencePlan& plan) {
  const std::int64_t groups = DivideUp(plan.heads, work.head_group);
  return PiecesDone(static_cast<std::size_t>(groups * work.BatchShares(plan.batches, 1)));
}

Columns SumColumns(const Work& work, const SequencePlan& plan, Pass pass, const Region& group,
                   PiecesDone& done) {
  const Kernels& kernels = work.kernels;
  const std::int64_t batch = group.batch_begin;
  const std::int64_t batches = group.batch_end - batch;
  const std::int64_t head = group.head_begin;
  const std::int64_t head_end = group.head_end;
  const std::int64_t groups = DivideUp(head_end - head, work.head_group);
  const std::int64_t piece_size = batches * (head_end - head) * plan.column_size;
  const auto columns_of = [&](std::int64_t piece) {
    return Columns{work.statistics.data + piece * piece_size, batch, head, head_end - head,
                   plan.column_size};
  };
  const std::int64_t undivided = plan.pieces * groups;
  const std::int64_t shares = work.BatchShares(batches, undivided);
  for (auto& pieces : done) pieces = 0;
  RunTasks(undivided * shares, work.workers, [&](std::int64_t task, int worker) {
    const std::int64_t share = task % shares;
    const std::int64_t of_heads = task / shares % groups;
    const std::int64_t piece = task / shares / groups;
    const std::int64_t first = piece * plan.piece_blocks;
    const std::int64_t last = std::min(work.Blocks(), first + plan.piece_blocks);
    const std::int64_t begin = batch + batches * share / shares;
    const std::int64_t end = batch + batches * (share + 1) / shares;
    const Columns columns = columns_of(piece);
    const auto for_each_column = [&](const auto& f) {
      const Region region = work.RegionOf(first, of_heads, head, head_end, begin, end);
      for (std::int64_t b = begin; b < end; ++b) {
        for (std::int64_t h = region.head_begin; h < region.head_end; ++h) f(b, h);
      }
    };
    for_each_column([&](std::int64_t b, std::int64_t h) {
      kernels.start_columns(columns.At(b, h), work.PlainRow());
    });
    for (std::int64_t block = first; block < last; ++block) {
      const Region region = work.RegionOf(block, of_heads, head, head_end, begin, end);
      const auto add = work.InPrefix(region) ? kernels.add_prefix_columns : kernels.add_columns;
      const auto add_region = [&](const Work::RegionAngles& of) {
        work.WithHalves(of, worker, Work::Results::kNone,
                        [&](const Problem& halves, const Region& at, const AngleTable& table) {
                          add(halves, at, table, columns, block == first);
                        });
      };
      float* table = work.memory.At(worker);
      if (pass == Pass::kBackward) {
        work.ForEachTable(region, table, false, add_region);
      } else {
        add_region({region, {table, 1, work.angles.width}, nullptr});
      }
    }
    // The task that does the last piece merges them all: a parallel region of its own would cost
    // waking the threads again.
    auto& pieces_done = done[static_cast<std::size_t>(task % (groups * shares))];
    if (pieces_done.fetch_add(1, std::memory_order_acq_rel) + 1 < plan.pieces) return;
    for_each_column([&](std::int64_t b, std::int64_t h) {
      float* to = columns_of(0).At(b, h);
      for (std::int64_t i = 1; i < plan.pieces; ++i) {
        kernels.merge_columns(to, columns_of(i).At(b, h), work.PlainRow());
      }
      kernels.finish_columns(to, work.PlainRow());
    });
  });
  return columns_of(0);
}

}  // namespace attnops::position_encoding
