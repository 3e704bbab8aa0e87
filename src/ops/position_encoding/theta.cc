// The schedule of the gradient of theta.
#include "src/positions/theta.h"

#include <algorithm>

#include "src/core/tasks.h"
#include "src/ops/position_encoding/work.h"

namespace attnops::position_encoding {
namespace {

// The sums of theta's gradient are cut into at most so many pieces, which are merged in their
// order. A piece is consecutive blocks, each with all batches.
constexpr std::int64_t kMostPieces = 32;

struct ThetaWork {
  const Work& work;
  Arrays factors;  // of each worker: the positions of a block, and rows of f(x)
  ThetaSums sums;

  std::int64_t Tokens() const { return work.angles.step_count; }
  std::int64_t FactorsSize() const { return Tokens() * work.angles.width; }
  std::int64_t RowsSize() const { return Tokens() * work.PlainRow(); }
  // Blocks with a position, each of every batch.
  std::int64_t Units(std::int64_t batches) const {
    return (work.Blocks() - work.PrefixBlocks()) * batches;
  }
};

// Adds the batches and heads of a group to the sums.
void AddGroup(const ThetaWork& theta, const Region& group, const Columns& columns) {
  const Work& work = theta.work;
  const std::int64_t batches = group.batch_end - group.batch_begin;
  const std::int64_t groups = DivideUp(group.head_end - group.head_begin, work.head_group);
  const std::int64_t units = theta.Units(batches), pieces = theta.sums.pieces;
  RunTasks(pieces * groups, work.workers, [&](std::int64_t task, int worker) {
    const std::int64_t piece = task / groups;
    const std::int64_t end = units * (piece + 1) / pieces;
    float* factors = theta.factors.At(worker);
    for (std::int64_t unit = units * piece / pieces; unit < end;) {
      const std::int64_t block = unit / batches;
      const std::int64_t batch = unit % batches;
      const std::int64_t last = std::min(batches, batch + end - unit);
      unit += last - batch;
      const Region region =
          work.RegionOf(work.PrefixBlocks() + block, task % groups, group.head_begin,
                        group.head_end, group.batch_begin + batch, group.batch_begin + last);
      work.ForEachTable(region, work.memory.At(worker), false, [&](const Work::RegionAngles& of) {
        work.angle_kernels.fill_factors(work.angles, of.positions,
                                        region.token_begin - work.problem.prefix,
                                        region.token_end - region.token_begin, factors);
        const auto add = [&](const Problem& halves, const Region& at, const AngleTable& table) {
          for (std::int64_t b = at.batch_begin; b < at.batch_end; ++b) {
            for (std::int64_t h = at.head_begin; h < at.head_end; ++h) {
              const Region one{b, b + 1, at.token_begin, at.token_end, h, h + 1};
              work.kernels.add_theta(halves, one, table.OfRow(h - at.head_begin), factors, columns,
                                     factors + theta.FactorsSize(), theta.sums.At(piece, h));
            }
          }
        };
        work.WithHalves(of, worker, Work::Results::kNone, add);
      });
    }
  });
}

}  // namespace

void RunTheta(Call call, const TensorView& d_theta) {
  const Problem& problem = call.problem;
  SetZero(d_theta);
  if (d_theta.size() == 0 || problem.B == 0 || problem.N <= problem.prefix || problem.H == 0 ||
      problem.part == 0) {
    return;
  }
  const TargetIndex target = ChosenTarget();
  call.pass = Pass::kForward;  // whose statistics of a softmax are those of f(x)
  Work work(call, target);
  const SequencePlan plan(work, Pass::kForward);
  const bool sequence = call.axis == SoftmaxAxis::kSequence;
  ThetaWork theta{work, {}, {}};
  theta.sums = {std::min(kMostPieces, theta.Units(problem.B)), problem.H, work.angles.width};
  ScratchPlan arrays;
  arrays.AddForWorkers(work.memory, work.WorkerScratch());
  arrays.AddForWorkers(theta.factors, theta.FactorsSize() + theta.RowsSize());
  if (sequence) arrays.Add(work.statistics, plan.StatisticsSize(), 1);
  Scratch scratch(AnglesScratch(work.angles) + arrays.Bytes(work.workers) + theta.sums.Bytes());
  StartAngles(target, work.order, call.angles,
              StepsOf(work.angles, problem.B, problem.N - problem.prefix), scratch, work.angles);
  arrays.Take(scratch, work.workers);
  theta.sums.Take(scratch);
  if (sequence) {
    PiecesDone done = MakePiecesDone(work, plan);
    ForEachColumnGroup(work, plan, [&](const Region& group) {
      AddGroup(theta, group, SumColumns(work, plan, Pass::kForward, group, done));
    });
  } else {
    AddGroup(theta, {0, problem.B, 0, problem.N, 0, problem.H}, {});
  }
  StoreThetaGradient({&theta.sums}, work.angles, problem.encoded, work.angle_kernels.storage_offset,
                     d_theta);
}

}  // namespace attnops::position_encoding
