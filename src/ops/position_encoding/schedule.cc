// The schedule of the position encodings.
#include <algorithm>
#include <atomic>
#include <vector>

#include "src/core/dtype_switch.h"
#include "src/core/numeric.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/positions/kernels.h"

namespace attnops::position_encoding {
namespace {

// Bounds of a worker's table. Where heads are neighbours in memory, the table is for many heads, so
// that a stretch is all heads of a token. Where tokens are neighbours, a stretch is tokens of one
// head, and the smaller table stays in L1.
constexpr std::int64_t kTableBytes = 128 << 10;
constexpr std::int64_t kHeadTableBytes = 16 << 10;
// Outputs from this size on bypass the caches: read for ownership and evictions would
// cost as much again as the writing. Below it the reader may still find them there.
constexpr std::int64_t kStreamBytes = 4 << 20;
// Calls below this size are not worth waking a thread for.
constexpr std::int64_t kSerialBytes = 64 << 10;
// Going through the batches token by token (Problem::by_batch) pays from this size of the output
// on, which does not fit the caches, and with at least so many batches. A task then has at most
// kRunBlocks consecutive blocks of a head.
constexpr std::int64_t kByBatchBytes = 32 << 20;
constexpr std::int64_t kByBatchStreams = 4;
constexpr std::int64_t kRunBlocks = 16;
// Tasks that a worker should have, so that none waits long for the last one: tasks of a share of
// the batches, each of which costs a table, and tasks of a run of blocks.
constexpr std::int64_t kWorkerTasks = 8;
constexpr std::int64_t kWorkerRuns = 32;
// Softmax over the sequence cuts it into at most kMostPieces pieces of at least kPieceBlocks
// blocks: the first block of a piece is read once more for the maximum, and pieces have to be
// merged. It takes as many columns at a time as the statistics of all their pieces have room for in
// kColumnBytes. Both passes then take scratch of about the same size: were that of the backward
// larger, malloc might keep the forward's beside it.
constexpr std::int64_t kMostPieces = 32;
constexpr std::int64_t kPieceBlocks = 4;
constexpr std::int64_t kColumnBytes = 7 << 19;

// For at most so many batches the angles of a block are not a table but computed in registers, from
// the first token's and a step: more arithmetic, less memory. It pays without an activation only.
constexpr std::int64_t kSteppedBatches = 2;

constexpr std::int64_t kFloat = sizeof(float);

// Whether every chunk of the output starts at a multiple of the vector size.
bool IsAligned(const Problem& problem, const Kernels& kernels, DType dtype) {
  const auto aligned = [&](std::int64_t elements) {
    return elements * SizeOf(dtype) % kernels.vector_bytes == 0;
  };
  const Output& out = problem.out;
  return reinterpret_cast<std::intptr_t>(out.data) % kernels.vector_bytes == 0 &&
         problem.part % kernels.chunk == 0 && (problem.B == 1 || aligned(out.batch)) &&
         (problem.N == 1 || aligned(out.token)) && (problem.H == 1 || aligned(out.head));
}

// One call: the problem, its kernels and its angles.
struct Work {
  Problem problem;
  Kernels kernels;
  positions::Kernels angle_kernels;
  Angles angles;
  Arrays memory;            // of each worker: a table, and rows for a softmax
  Arrays statistics;        // of softmax over the sequence
  std::int64_t head_group;  // heads that a table is made for
  int workers;

  std::int64_t PrefixBlocks() const { return DivideUp(problem.prefix, angles.step_count); }
  std::int64_t Blocks() const {
    return PrefixBlocks() + DivideUp(problem.N - problem.prefix, angles.step_count);
  }
  std::int64_t HeadGroups() const { return DivideUp(problem.H, head_group); }
  std::int64_t PlainRow() const { return kernels.plain_parts * angles.width; }
  std::int64_t WorkerScratch() const { return TableSize() + rowops::kSoftmaxRows * 2 * PlainRow(); }
  std::int64_t TableSize() const {
    return angles.step_count * std::min(angles.rows, head_group) * angles.RowSize();
  }

  // Into how many shares `batches` are divided where `undivided` tasks are too few. A share of
  // fewer than 4 would cost as much for its angles as for its rows.
  std::int64_t BatchShares(std::int64_t batches, std::int64_t undivided) const {
    return std::min(DivideUp(batches, 4), DivideUp(kWorkerTasks * workers, undivided));
  }

  bool InPrefix(const Region& region) const { return region.token_begin < problem.prefix; }
  bool IsStepped(const Region& region) const {
    return kernels.apply_stepped != nullptr && angles.OnLine() && !InPrefix(region) &&
           region.batch_end - region.batch_begin <= kSteppedBatches;
  }

  // Fills `table` with the angles of a region's tokens; tokens of the prefix have none.
  AngleTable FillTable(const Region& region, float* table) const {
    const bool shared = angles.rows == 1;
    const std::int64_t begin = shared ? 0 : region.head_begin;
    const std::int64_t end = shared ? 1 : region.head_end;
    const bool stepped = IsStepped(region);
    if (!InPrefix(region)) {
      angle_kernels.fill_table(angles, begin, end, region.token_begin - problem.prefix,
                               stepped ? 1 : region.token_end - region.token_begin, table);
    }
    return {table, end - begin, angles.width, stepped ? angles.Step(begin, 0) : nullptr,
            angles.step_count};
  }

  // The region of a block, of group `group` of the heads [head_begin, head_end), and of batches.
  Region RegionOf(std::int64_t block, std::int64_t group, std::int64_t head_begin,
                  std::int64_t head_end, std::int64_t batch_begin, std::int64_t batch_end) const {
    const bool prefix = block < PrefixBlocks();
    const std::int64_t start = prefix ? 0 : problem.prefix;
    const std::int64_t token = start + (block - (prefix ? 0 : PrefixBlocks())) * angles.step_count;
    const std::int64_t head = head_begin + group * head_group;
    return {batch_begin, batch_end,
            token,       std::min(prefix ? problem.prefix : problem.N, token + angles.step_count),
            head,        std::min(head_end, head + head_group)};
  }

  void Apply(const Region& region, int worker, const Columns& columns) const {
    const auto apply = InPrefix(region)    ? kernels.apply_prefix
                       : IsStepped(region) ? kernels.apply_stepped
                                           : kernels.apply;
    float* table = memory.At(worker);
    apply(problem, region, FillTable(region, table), table + TableSize(), columns);
  }
};

// Everything but softmax over the sequence: each block of tokens and group of heads is a task,
// its table is made once and all batches stream past it. Where that gives few tasks, the
// batches are divided too.
void RunBlocks(const Work& work) {
  const std::int64_t B = work.problem.B;
  const std::int64_t blocks = work.Blocks(), groups = work.HeadGroups();
  const std::int64_t shares = work.BatchShares(B, blocks * groups);
  // With by_batch a task has a run of blocks of one head: the hardware follows its streams for
  // longer.
  const bool by_batch = work.problem.by_batch;
  const std::int64_t most = std::min(kRunBlocks, blocks * groups / (kWorkerRuns * work.workers));
  const std::int64_t run = by_batch ? std::max<std::int64_t>(1, most) : 1;
  const std::int64_t runs = DivideUp(blocks, run);
  RunTasks(runs * groups * shares, work.workers, [&](std::int64_t task, int worker) {
    const std::int64_t share = task % shares;
    const std::int64_t undivided = task / shares;
    const std::int64_t group = by_batch ? undivided / runs : undivided % groups;
    const std::int64_t first = (by_batch ? undivided % runs : undivided / groups) * run;
    for (std::int64_t block = first; block < std::min(first + run, blocks); ++block) {
      work.Apply(work.RegionOf(block, group, 0, work.problem.H, B * share / shares,
                               B * (share + 1) / shares),
                 worker, {});
    }
  });
}

// How softmax over the sequence divides the columns (b,h) and the sequence.
struct SequencePlan {
  std::int64_t piece_blocks;  // blocks in a piece, the unit whose sums are merged in order
  std::int64_t pieces;
  std::int64_t column_size;  // floats of one (b,h)'s statistics
  std::int64_t batches;      // in a group
  std::int64_t heads;        // in a group; all of them unless batches is 1

  SequencePlan(const Work& work, Pass pass) {
    const Problem& problem = work.problem;
    piece_blocks = std::max(kPieceBlocks, DivideUp(work.Blocks(), kMostPieces));
    pieces = DivideUp(work.Blocks(), piece_blocks);
    column_size = Columns::Rows(pass) * work.PlainRow();
    const std::int64_t fit = kColumnBytes / (pieces * column_size * kFloat);
    heads = std::clamp<std::int64_t>(fit, 1, problem.H);
    const std::int64_t most = std::clamp<std::int64_t>(fit / problem.H, 1, problem.B);
    batches = DivideUp(problem.B, DivideUp(problem.B, most));  // groups of equal size
  }

  std::int64_t StatisticsSize() const { return pieces * batches * heads * column_size; }
};

// Softmax over the sequence for the columns of a group of batches and heads: sums of each piece
// of the sequence, pieces merged in their order, output. `done` counts the pieces that are done,
// for each group of heads and share of the batches.
void RunColumns(const Work& work, const SequencePlan& plan, Pass pass,
                const Region& group_of_columns, std::vector<std::atomic<std::int64_t>>& done) {
  const Kernels& kernels = work.kernels;
  const std::int64_t batch = group_of_columns.batch_begin;
  const std::int64_t batches = group_of_columns.batch_end - batch;
  const std::int64_t head = group_of_columns.head_begin;
  const std::int64_t head_end = group_of_columns.head_end;
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
    const std::int64_t group = task / shares % groups;
    const std::int64_t piece = task / shares / groups;
    const std::int64_t first = piece * plan.piece_blocks;
    const std::int64_t last = std::min(work.Blocks(), first + plan.piece_blocks);
    const std::int64_t begin = batch + batches * share / shares;
    const std::int64_t end = batch + batches * (share + 1) / shares;
    const Columns columns = columns_of(piece);
    const auto for_each_column = [&](const auto& f) {
      const Region region = work.RegionOf(first, group, head, head_end, begin, end);
      for (std::int64_t b = begin; b < end; ++b) {
        for (std::int64_t h = region.head_begin; h < region.head_end; ++h) f(b, h);
      }
    };
    for_each_column([&](std::int64_t b, std::int64_t h) {
      kernels.start_columns(columns.At(b, h), work.PlainRow());
    });
    AngleTable table{work.memory.At(worker), 1, work.angles.width};
    for (std::int64_t block = first; block < last; ++block) {
      const Region region = work.RegionOf(block, group, head, head_end, begin, end);
      if (pass == Pass::kBackward) {
        table = work.FillTable(region, work.memory.At(worker));
      }
      const auto add = work.InPrefix(region) ? kernels.add_prefix_columns : kernels.add_columns;
      add(work.problem, region, table, columns, block == first);
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
  RunTasks(work.Blocks() * groups, work.workers, [&](std::int64_t task, int worker) {
    work.Apply(work.RegionOf(task / groups, task % groups, head, head_end, batch, batch + batches),
               worker, columns_of(0));
  });
}

void RunSequence(const Work& work, const SequencePlan& plan, Pass pass) {
  const Problem& problem = work.problem;
  const std::int64_t groups = DivideUp(plan.heads, work.head_group);
  std::vector<std::atomic<std::int64_t>> done(
      static_cast<std::size_t>(groups * work.BatchShares(plan.batches, 1)));
  for (std::int64_t b = 0; b < problem.B; b += plan.batches) {
    for (std::int64_t h = 0; h < problem.H; h += plan.heads) {
      const Region group{b, std::min(problem.B, b + plan.batches), 0, problem.N,
                         h, std::min(problem.H, h + plan.heads)};
      RunColumns(work, plan, pass, group, done);
    }
  }
}

Kernels KernelsFor(const Call& call, TargetIndex target) {
  const Choice choice = WithType(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return call.encoding == Encoding::kRotate ? KernelsOf<Encoding::kRotate, T>(target)
                                              : KernelsOf<Encoding::kCosine, T>(target);
  });
  return choice(call.pass, call.act, call.axis);
}

}  // namespace

void Run(Call call) {
  Problem& problem = call.problem;
  // Sizes of empty tensors may be such that their product overflows.
  if (problem.B == 0 || problem.N == 0 || problem.H == 0 || problem.part == 0) return;
  Work work;
  const TargetIndex target = ChosenTarget();
  work.kernels = KernelsFor(call, target);
  work.angle_kernels = positions::KernelsFor(call.dtype, target);
  const std::int64_t out_parts = call.pass == Pass::kForward ? 2 : work.kernels.plain_parts;
  const std::int64_t bytes =
      problem.B * problem.N * problem.H * problem.part * out_parts * SizeOf(call.dtype);
  problem.stream = bytes >= kStreamBytes && IsAligned(problem, work.kernels, call.dtype);
  problem.tokens_inner = problem.H == 1 || (problem.N > 1 && problem.out.token < problem.out.head);
  // by_batch has the most reads under way, and pays where there are more reads than writes. Rows of
  // d_out and dx must have different sizes: else the last 12 bits of a load's address are those of
  // the previous batch's store, and it waits for that store.
  problem.by_batch = call.encoding == Encoding::kCosine && call.pass == Pass::kBackward &&
                     problem.tokens_inner && problem.B >= kByBatchStreams && bytes >= kByBatchBytes;
  work.problem = problem;
  work.workers = bytes < kSerialBytes ? 1 : MaxWorkers();

  Angles& angles = work.angles;
  angles = AnglesOf(call.angles, problem.part, work.kernels.chunk);
  const std::int64_t table_bytes = problem.tokens_inner ? kHeadTableBytes : kTableBytes;
  work.head_group =
      angles.rows == 1
          ? problem.H
          : std::clamp<std::int64_t>(table_bytes / (angles.step_count * angles.RowSize() * kFloat),
                                     1, problem.H);

  const SequencePlan plan(work, call.pass);
  const bool sequence = call.axis == SoftmaxAxis::kSequence;
  ScratchPlan arrays;
  arrays.AddForWorkers(work.memory, work.WorkerScratch());
  if (sequence) arrays.Add(work.statistics, plan.StatisticsSize(), 1);
  Scratch scratch(AnglesScratch(angles) + arrays.Bytes(work.workers));
  // Angles come first, so that the workers' tables do not begin where tensors in huge pages do:
  // loads of the one would wait for stores to the other at the same last 12 bits of an address.
  if (!angles.from_table) StartAngles(target, call.dtype, *call.angles.theta, scratch, angles);
  arrays.Take(scratch, work.workers);
  if (sequence) {
    RunSequence(work, plan, call.pass);
  } else {
    RunBlocks(work);
  }
}

}  // namespace attnops::position_encoding
