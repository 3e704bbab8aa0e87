// The schedule of the position encodings.
#include <algorithm>

#include "src/core/dtype_switch.h"
#include "src/core/tasks.h"
#include "src/ops/position_encoding/work.h"

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
// Going through batches token by token (Problem::by_batch) pays from this size of the output on,
// which does not fit the caches. So many batches are taken at a time, through at most kRunBlocks
// consecutive blocks of a head: the hardware follows fewer streams at once better, which is worth
// making the tables anew for each group of batches.
constexpr std::int64_t kByBatchBytes = 32 << 20;
constexpr std::int64_t kByBatchStreams = 4;
constexpr std::int64_t kRunBlocks = 16;
// Tasks of a run of blocks that a worker should have.
constexpr std::int64_t kWorkerRuns = 32;
constexpr std::int64_t kFloat = sizeof(float);

// Whether every chunk of the output starts at a multiple of the vector size.
bool IsAligned(const Problem& problem, const Pairs& pairs, const Kernels& kernels, DType dtype) {
  const auto aligned = [&](std::int64_t elements) {
    return elements * SizeOf(dtype) % kernels.vector_bytes == 0;
  };
  const Output& out = problem.out;
  const std::int64_t whole = pairs.interleaved ? pairs.features : problem.part;
  return reinterpret_cast<std::intptr_t>(out.data) % kernels.vector_bytes == 0 &&
         whole % kernels.chunk == 0 && problem.tail % kernels.chunk == 0 &&
         (problem.B == 1 || aligned(out.batch)) && (problem.N == 1 || aligned(out.token)) &&
         (problem.H == 1 || aligned(out.head));
}

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
    const std::int64_t end = B * (share + 1) / shares;
    const std::int64_t streams = by_batch ? kByBatchStreams : end;
    for (std::int64_t batch = B * share / shares; batch < end; batch += streams) {
      for (std::int64_t block = first; block < std::min(first + run, blocks); ++block) {
        work.Apply(
            work.RegionOf(block, group, 0, work.problem.H, batch, std::min(end, batch + streams)),
            worker, {});
      }
    }
  });
}

// Softmax over the sequence: the statistics of a group of columns, then its output.
void RunSequence(const Work& work, const SequencePlan& plan, Pass pass) {
  PiecesDone done = MakePiecesDone(work, plan);
  ForEachColumnGroup(work, plan, [&](const Region& group) {
    const Columns columns = SumColumns(work, plan, pass, group, done);
    const std::int64_t groups = DivideUp(group.head_end - group.head_begin, work.head_group);
    RunTasks(work.Blocks() * groups, work.workers, [&](std::int64_t task, int worker) {
      work.Apply(work.RegionOf(task / groups, task % groups, group.head_begin, group.head_end,
                               group.batch_begin, group.batch_end),
                 worker, columns);
    });
  });
}

Kernels KernelsFor(const Call& call, TargetIndex target) {
  const Choice choice = WithType(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return call.encoding == Encoding::kRotate ? KernelsOf<Encoding::kRotate, T>(target)
                                              : KernelsOf<Encoding::kCosine, T>(target);
  });
  return choice(call.pass, call.act, call.axis);
}

// What Run sets of a problem; returns the bytes of the output.
std::int64_t Complete(const Call& call, const Kernels& kernels, Problem& problem) {
  const std::int64_t out_parts = call.pass == Pass::kForward ? 2 : kernels.plain_parts;
  const std::int64_t bytes = problem.B * problem.N * problem.H *
                             (problem.part * out_parts + problem.tail) * SizeOf(call.dtype);
  const void* read = call.pass == Pass::kForward ? problem.x.data : problem.d_out.data;
  // A result in place of its input is in the caches already.
  problem.stream = bytes >= kStreamBytes && read != problem.out.data &&
                   IsAligned(problem, call.pairs, kernels, call.dtype);
  problem.tokens_inner = problem.H == 1 || (problem.N > 1 && problem.out.token < problem.out.head);
  // by_batch has the most reads under way, and pays where there are more reads than writes. Rows of
  // d_out and dx must have different sizes: else the last 12 bits of a load's address are those of
  // the previous batch's store, and it waits for that store.
  problem.by_batch = call.encoding == Encoding::kCosine && call.pass == Pass::kBackward &&
                     problem.tokens_inner && problem.B >= kByBatchStreams && bytes >= kByBatchBytes;
  return bytes;
}

}  // namespace

Work::Work(const Call& call, TargetIndex target)
    : problem(call.problem),
      second(call.second),
      both(call.both),
      pairs(call.pairs),
      dtype(call.dtype),
      kernels(KernelsFor(call, target)) {
  gathers = call.Gathers();
  order = pairs.interleaved && !gathers ? DType::kFloat32 : dtype;
  angle_kernels = positions::KernelsFor(order, target);
  std::int64_t bytes = Complete(call, kernels, problem);
  if (both) bytes += Complete(call, kernels, second);
  workers = bytes < kSerialBytes ? 1 : MaxWorkers();
  angles = AnglesOf(call.angles, problem.part, kernels.chunk);
  lead = angles.OnLine() && !angles.HasIds() ? FloorModulo(angles.offset, angles.step_count) : 0;
  const std::int64_t table_bytes = problem.tokens_inner ? kHeadTableBytes : kTableBytes;
  head_group = angles.rows == 1 ? problem.H
                                : std::clamp<std::int64_t>(
                                      table_bytes / (angles.step_count * angles.RowSize() * kFloat),
                                      1, problem.H);
}

Region Work::RegionOf(std::int64_t block, std::int64_t group, std::int64_t head_begin,
                      std::int64_t head_end, std::int64_t batch_begin,
                      std::int64_t batch_end) const {
  const bool in_prefix = block < PrefixBlocks();
  const std::int64_t start = in_prefix ? 0 : problem.prefix;
  const std::int64_t end = in_prefix ? problem.prefix : problem.N;
  const std::int64_t token = in_prefix
                                 ? block * angles.step_count
                                 : start + (block - PrefixBlocks()) * angles.step_count - lead;
  const std::int64_t head = head_begin + group * head_group;
  return {batch_begin,
          batch_end,
          std::max(start, token),
          std::min(end, token + angles.step_count),
          head,
          std::min(head_end, head + head_group)};
}

bool Work::IsStepped(const Region& region, const BlockPositions* positions) const {
  return kernels.apply_stepped != nullptr && pairs.AreHalves() && angles.OnLine() &&
         !InPrefix(region) && region.batch_end - region.batch_begin <= kSteppedBatches &&
         (angles.rows > 1 || problem.H <= kSteppedHeads) &&
         (positions == nullptr || positions->IsRun());
}

AngleTable Work::FillTable(const Region& region, const BlockPositions* positions, float* table,
                           bool stepped) const {
  const bool shared = angles.rows == 1;
  const std::int64_t begin = shared ? 0 : region.head_begin;
  const std::int64_t end = shared ? 1 : region.head_end;
  AngleTable filled{table, end - begin, angles.width, nullptr, angles.step_count};
  if (InPrefix(region)) return filled;
  const std::int64_t first = region.token_begin - problem.prefix;
  if (stepped && IsStepped(region, positions)) {
    // The base alone; a token adds its step.
    const std::int64_t position =
        positions != nullptr ? positions->At(0, 0) : angles.offset + first;
    const std::int64_t step = FloorModulo(position, angles.step_count);
    BlockPositions base;
    base.streams = 1;
    base.tokens = 1;
    base.base[0][0] = position - step;
    base.step[0][0] = 0;
    angle_kernels.fill_positions(angles, begin, end, base, table);
    filled.steps = angles.Step(begin, step);
  } else if (positions != nullptr) {
    angle_kernels.fill_positions(angles, begin, end, *positions, table);
  } else {
    angle_kernels.fill_table(angles, begin, end, first, region.token_end - region.token_begin,
                             table);
  }
  return filled;
}

void Work::Apply(const Region& region, int worker, const Columns& columns) const {
  float* table = memory.At(worker);
  float* scratch = table + TableSize();
  ForEachTable(region, table, true, [&](const RegionAngles& of) {
    const auto apply = InPrefix(region)               ? kernels.apply_prefix
                       : of.table.steps != nullptr    ? kernels.apply_stepped
                       : gathers || pairs.AreHalves() ? kernels.apply
                       : pairs.interleaved            ? kernels.apply_neighbours
                                                      : kernels.apply_tail;
    WithHalves(of, worker, Results::kWritten,
               [&](const Problem& halves, const Region& at, const AngleTable& angles_at) {
                 apply(halves, at, angles_at, scratch, columns);
               });
    if (!both) return;
    Region of_second = of.region;
    of_second.head_begin = 0;
    of_second.head_end = second.H;
    apply(second, of_second, of.table, scratch, columns);
  });
}

void Run(Call call) {
  const Problem& problem = call.problem;
  // Sizes of empty tensors may be such that their product overflows.
  if (problem.B == 0 || problem.N == 0 || problem.H == 0 || problem.part + problem.tail == 0) {
    return;
  }
  const TargetIndex target = ChosenTarget();
  Work work(call, target);
  const SequencePlan plan(work, call.pass);
  const bool sequence = call.axis == SoftmaxAxis::kSequence;
  ScratchPlan arrays;
  arrays.AddForWorkers(work.memory, work.WorkerScratch());
  if (sequence) arrays.Add(work.statistics, plan.StatisticsSize(), 1);
  Scratch scratch(AnglesScratch(work.angles) + arrays.Bytes(work.workers));
  // Angles come first, so that the workers' tables do not begin where tensors in huge pages do:
  // loads of the one would wait for stores to the other at the same last 12 bits of an address.
  if (!work.angles.from_table) {
    StartAngles(target, work.order, call.angles,
                StepsOf(work.angles, work.problem.B, work.problem.N - work.problem.prefix), scratch,
                work.angles);
  }
  arrays.Take(scratch, work.workers);
  if (sequence) {
    RunSequence(work, plan, call.pass);
  } else {
    RunBlocks(work);
  }
}

}  // namespace attnops::position_encoding
