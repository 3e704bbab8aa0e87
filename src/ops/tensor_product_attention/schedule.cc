// The schedule of tpa_decode.
#include <algorithm>

#include "src/core/numeric.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/tensor_product_attention/kernels.h"
#include "src/ops/tensor_product_attention/pieces.h"
#include "src/ops/tensor_product_attention/workspace.h"

namespace attnops::tensor_product_attention {
namespace {

// Fewer heads than this in a task would leave a register tile partly empty.
constexpr std::int64_t kTaskHeads = 4;

// A call and its memory. How the sequence is cut depends on its length alone, pieces are merged in
// their order, and a head's result does not depend on which others are computed with it: so
// neither the split nor the number of threads is seen in the bits.
class Call {
 public:
  Call(const Problem& problem, DType dtype, TargetIndex target)
      : problem_(problem),
        kernels_(KernelsFor(dtype, target)),
        piece_(PieceSize(problem.M)),
        pieces_(DivideUp(problem.M, piece_)) {
    const double tokens = static_cast<double>(problem.B) * static_cast<double>(problem.M);
    const double work = tokens * static_cast<double>(problem.H) *
                        (static_cast<double>(problem.D) + static_cast<double>(problem.E));
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
  }

  void Run(TpaSplit split) const {
    if (split == TpaSplit::kAuto) split = Choose();
    switch (split) {
      case TpaSplit::kBN:
        return ByPieces();
      case TpaSplit::kBH:
        return ByHeads(HeadGroups());
      default:
        return ByHeads(1);
    }
  }

 private:
  std::int64_t HeadGroups() const {
    return std::clamp<std::int64_t>(DivideUp(workers_, problem_.B), 1,
                                    DivideUp(problem_.H, kTaskHeads));
  }

  std::int64_t GroupSize(std::int64_t groups) const {
    return RoundUp(DivideUp(problem_.H, groups), kTaskHeads);
  }

  // Each group of heads repeats the work that heads share: the product through the rank, and the
  // conversion of bk and bv. Scores and weights are computed for whole chunks of heads.
  TpaSplit Choose() const {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double D = number(problem_.D), E = number(problem_.E), R = number(problem_.R);
    const bool through_rank = problem_.through_rank;
    const double shared = (through_rank ? R * D : 0) + kConvertKey * D + kConvertValue * E;
    const auto token = [&](std::int64_t heads) {
      const double places = number(Places(heads));
      return shared + places * kExp + (through_rank ? 2 * places * R : number(heads) * D) +
             number(heads) * E;
    };
    const auto work = [&](std::int64_t tasks, std::int64_t tokens, std::int64_t heads) {
      return SplitWork{tasks, number(DivideUp(tasks, workers_)) * number(tokens), token(heads)};
    };
    const std::int64_t groups = HeadGroups();
    return ChooseSplit(work(problem_.B, problem_.M, problem_.H),
                       work(problem_.B * groups, problem_.M, GroupSize(groups)),
                       work(problem_.B * pieces_, std::min(piece_, problem_.M), problem_.H));
  }

  // Places of heads in storage order: whole chunks.
  std::int64_t Places(std::int64_t heads) const { return RoundUp(heads, kernels_.chunk); }

  Range PieceAt(std::int64_t i) const {
    return {i * piece_, std::min(problem_.M, (i + 1) * piece_)};
  }

  // The memory of each worker.
  struct Workspaces {
    Matrices aq, bq, q, t, s, right, s_pairs, v_pairs, bq_pairs;
    Arrays left16, factor;
    std::int64_t left16_stride = 0;

    Workspace At(std::int64_t i) const {
      return {aq.At(i),
              bq.At(i),
              q.At(i),
              t.At(i),
              s.At(i),
              right.At(i),
              {reinterpret_cast<BFloat16*>(left16.At(i)), left16_stride},
              s_pairs.At(i),
              v_pairs.At(i),
              bq_pairs.At(i),
              factor.At(i)};
    }
  };
  void PlanWorkspaces(ScratchPlan& plan, Workspaces& work, std::int64_t heads) const {
    const std::int64_t D = problem_.D, R = problem_.R;
    const bool through_rank = problem_.through_rank;
    const std::int64_t places = Places(heads);
    work.aq.Plan(plan, through_rank ? R : places, through_rank ? places : R, kernels_.chunk);
    work.bq.Plan(plan, R, D, kernels_.chunk);
    work.q.Plan(plan, places, through_rank ? 0 : D, kernels_.chunk);
    work.t.Plan(plan, through_rank ? R : places, kBlockTokens, kernels_.chunk);
    work.s.Plan(plan, kBlockTokens, places, kernels_.chunk);
    work.right.Plan(plan, std::max(kBlockTokens, kTransposedFeatures), kernels_.tile_columns,
                    kernels_.chunk);
    if (problem_.score_dot != nullptr) {
      work.left16_stride = RoundUp(D, kernels_.chunk) + kernels_.chunk;
      plan.AddForWorkers(work.left16, (through_rank ? R : places) * work.left16_stride / 2);
    }
    if (problem_.HasRankLanes(kernels_.chunk / 2)) {
      work.bq_pairs.Plan(plan, RoundUp(D, kernels_.chunk) / 2, R, kernels_.chunk);
    }
    if (problem_.value_dot != nullptr) {
      work.s_pairs.Plan(plan, kBlockTokens / 2, places, kernels_.chunk);
      work.v_pairs.Plan(plan, kBlockTokens / 2, problem_.E, kernels_.chunk);
    }
    plan.AddForWorkers(work.factor, places);
  }

  // A task is a batch and a group of heads: all pieces, one after the other.
  void ByHeads(std::int64_t groups) const {
    const std::int64_t size = GroupSize(groups);
    groups = DivideUp(problem_.H, size);
    const std::int64_t tasks = problem_.B * groups;
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
    Workspaces works;
    Partials sums, pieces;
    ScratchPlan plan;
    PlanWorkspaces(plan, works, size);
    sums.Plan(plan, Places(size), problem_.E, kernels_.chunk);
    pieces.Plan(plan, Places(size), problem_.E, kernels_.chunk);
    Scratch scratch(plan.Bytes(workers));
    plan.Take(scratch, workers);
    RunTasks(tasks, workers, [&](std::int64_t task, int worker) {
      const Workspace work = works.At(worker);
      const Partial sum = sums.At(worker), piece = pieces.At(worker);
      const std::int64_t batch = task / groups;
      const std::int64_t first = task % groups * size;
      const Range heads{first, std::min(problem_.H, first + size)};
      const Range rows{0, Places(heads.size())};
      kernels_.prepare(problem_, batch, heads, work);
      kernels_.attend(problem_, batch, heads, PieceAt(0), work, sum);
      for (std::int64_t i = 1; i < pieces_; ++i) {
        kernels_.attend(problem_, batch, heads, PieceAt(i), work, piece);
        kernels_.merge(problem_.E, heads.size(), rows, piece, sum);
      }
      kernels_.finish(problem_, batch, heads, rows, sum);
    });
  }

  // A task is a piece of a batch. A wave of as many pieces as kPartialBytes has room for is
  // computed, then merged.
  void ByPieces() const {
    const std::int64_t all = problem_.B * pieces_;
    const std::int64_t partial_bytes =
        Partials::Bytes(Places(problem_.H), problem_.E, kernels_.chunk);
    const std::int64_t fit = std::max<std::int64_t>(kPartialBytes / partial_bytes, workers_);
    const std::int64_t wave = std::min(all, fit);
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, wave));
    Workspaces works;
    Partials partials;  // of the wave's pieces, and the sum of a batch that goes on in the next
    ScratchPlan plan;
    PlanWorkspaces(plan, works, problem_.H);
    partials.Plan(plan, Places(problem_.H), problem_.E, kernels_.chunk, wave + 1);
    Scratch scratch(plan.Bytes(workers));
    plan.Take(scratch, workers);
    const Range heads{0, problem_.H};
    for (std::int64_t begin = 0; begin < all; begin += wave) {
      const std::int64_t end = std::min(all, begin + wave);
      RunTasks(end - begin, workers, [&](std::int64_t task, int worker) {
        const Workspace work = works.At(worker);
        const std::int64_t batch = (begin + task) / pieces_;
        kernels_.prepare(problem_, batch, heads, work);
        kernels_.attend(problem_, batch, heads, PieceAt((begin + task) % pieces_), work,
                        partials.At(task));
      });
      MergeWave({begin, end}, partials, wave);
    }
  }

  // Merges the results of the pieces `wave`, counted over all batches, head by head. The partial
  // result at `last` is the sum of a batch that began in an earlier wave, and becomes the sum of
  // one that goes on in the next.
  void MergeWave(Range wave, const Partials& partials, std::int64_t last) const {
    const std::int64_t groups = DivideUp(Places(problem_.H), kTaskHeads);
    const std::int64_t first_batch = wave.begin / pieces_;
    const std::int64_t batches = DivideUp(wave.end, pieces_) - first_batch;
    // Batches in their order: the first may read the last of the partials, the last one writes it.
    const auto merge = [&](std::int64_t batch, Range rows) {
      const std::int64_t begin = std::max(wave.begin, batch * pieces_);
      const std::int64_t end = std::min(wave.end, (batch + 1) * pieces_);
      const bool starts = begin == batch * pieces_;
      const Partial sum = partials.At(starts ? begin - wave.begin : last);
      for (std::int64_t i = begin + (starts ? 1 : 0); i < end; ++i) {
        kernels_.merge(problem_.E, problem_.H, rows, partials.At(i - wave.begin), sum);
      }
      if (end == (batch + 1) * pieces_) {
        kernels_.finish(problem_, batch, {0, problem_.H}, rows, sum);
      } else if (starts) {
        kernels_.copy(problem_.E, rows, sum, partials.At(last));
      }
    };
    RunTasks(groups, workers_, [&](std::int64_t group, int) {
      const Range rows{group * kTaskHeads, std::min(Places(problem_.H), (group + 1) * kTaskHeads)};
      for (std::int64_t i = 0; i < batches; ++i) merge(first_batch + i, rows);
    });
  }

  Problem problem_;
  Kernels kernels_;
  std::int64_t piece_, pieces_;  // tokens of each piece but the last, and how many pieces there are
  int workers_ = 1;
};

}  // namespace

void Run(const Problem& problem, DType dtype, Precision precision, TpaSplit split) {
  const TargetIndex target = ChosenTarget();
  Problem own = problem;
  const DotTile dot = precision == Precision::kHighest ? nullptr : FindDotTile(target);
  if (precision == Precision::kMedium) own.value_dot = dot;
  // bq and bk as they are give exact products at half the cost. Two parts of q or of a weight would
  // cost what float32 does.
  if (precision == Precision::kMedium || own.through_rank) own.score_dot = dot;
  Call(own, dtype, target).Run(split);
}

}  // namespace attnops::tensor_product_attention
