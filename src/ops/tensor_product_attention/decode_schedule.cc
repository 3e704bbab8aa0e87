// The schedule of a decoding step with ranks.
#include <algorithm>
#include <vector>

#include "src/core/numeric.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/tensor_product_attention/pieces.h"
#include "src/ops/tensor_product_attention/ranks.h"
#include "src/ops/tensor_product_attention/workspace.h"

namespace attnops::tensor_product_attention {
namespace {

// A call and its memory. How a sequence is cut depends on its length alone, pieces are merged in
// their order, and a head's result does not depend on which others are computed with it.
class DecodeCall {
 public:
  DecodeCall(const DecodeProblem& problem, TargetIndex target)
      : problem_(problem), kernels_(DecodeKernelsOf(target)) {
    // The queries of an empty sequence attend to one piece without tokens.
    for (std::int64_t b = 0; b < problem.B; ++b) {
      const std::int64_t length = problem.Length(b);
      tokens_ += length;
      longest_ = std::max(longest_, length);
      first_piece_.push_back(pieces_);
      pieces_ += std::max<std::int64_t>(1, DivideUp(length, PieceSize(length)));
    }
    first_piece_.push_back(pieces_);
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double work = number(tokens_) * number(problem.H) *
                        (number(problem.D) + number(problem.Rv) * number(problem.E));
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
                                    DivideUp(problem_.H, kernels_.chunk));
  }

  std::int64_t GroupSize(std::int64_t groups) const {
    return RoundUp(DivideUp(problem_.H, groups), kernels_.chunk);
  }

  // As for rank 1. Sequences have different lengths: whole ones take as long as if all were like
  // the longest, but not longer than one after the other; pieces are shared evenly.
  TpaSplit Choose() const {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double D = number(problem_.D), E = number(problem_.E);
    const double Rq = number(problem_.Rq), Rk = number(problem_.Rk), Rv = number(problem_.Rv);
    const bool through_rank = problem_.through_rank;
    const double shared =
        (through_rank ? Rq * Rk * D : 0) + kConvertKey * Rk * D + kConvertValue * Rv * E;
    const auto token = [&](std::int64_t heads) {
      const double places = number(Places(heads));
      return shared + places * (kExp + Rk * (through_rank ? Rq : D)) + number(heads) * Rv * E;
    };
    const auto whole = [&](std::int64_t groups, std::int64_t heads) {
      const std::int64_t tasks = problem_.B * groups;
      const double all = number(tokens_) * number(groups);
      const double rounds = number(DivideUp(tasks, workers_));
      return SplitWork{tasks, std::min(all, rounds * number(longest_)), token(heads)};
    };
    const std::int64_t groups = HeadGroups();
    const double even =
        std::max(number(tokens_) / workers_, number(std::min(longest_, PieceSize(longest_))));
    return ChooseSplit(whole(1, problem_.H), whole(groups, GroupSize(groups)),
                       {pieces_, even, token(problem_.H)});
  }

  Range PieceAt(std::int64_t batch, std::int64_t i) const {
    const std::int64_t length = problem_.Length(batch);
    const std::int64_t size = PieceSize(length);
    return {i * size, std::min(length, (i + 1) * size)};
  }

  std::int64_t Places(std::int64_t heads) const { return RoundUp(heads, kernels_.chunk); }

  struct Workspaces {
    Matrices aq, bq, q, b, p, t, a, s;
    Arrays row, max, sum, factor;
    PairSpaces products;
    RankPairSpaces pairs;

    DecodeWorkspace At(std::int64_t i) const {
      return {aq.At(i), bq.At(i),  q.At(i),   b.At(i),   p.At(i),      t.At(i),        a.At(i),
              s.At(i),  row.At(i), max.At(i), sum.At(i), factor.At(i), products.At(i), pairs.At(i)};
    }
  };
  void Plan(ScratchPlan& plan, Workspaces& work, std::int64_t heads) const {
    const std::int64_t chunk = kernels_.chunk, block = problem_.BlockTokens();
    const std::int64_t features = RoundUp(problem_.D, chunk);
    const std::int64_t key_rows = block * problem_.Rk;
    const std::int64_t rows = std::max(key_rows, block * problem_.Rv);
    const std::int64_t columns = std::max(problem_.D, problem_.E);
    const bool through_rank = problem_.through_rank;
    work.aq.Plan(plan, through_rank ? problem_.Rq : 0, heads, chunk);
    work.q.Plan(plan, features, heads, chunk);
    work.t.Plan(plan, key_rows, heads, chunk);
    plan.AddForWorkers(
        work.row,
        std::max({heads * std::max(problem_.Rk, problem_.Rv), problem_.D, problem_.E}) + chunk);
    plan.AddForWorkers(work.max, Places(heads));
    plan.AddForWorkers(work.sum, Places(heads));
    plan.AddForWorkers(work.factor, Places(heads));
    if (problem_.InRankPairs()) {
      work.pairs.Plan(plan, problem_, heads, chunk);
      return;
    }
    work.bq.Plan(plan, through_rank ? features : 0, problem_.Rq, chunk);
    work.b.Plan(plan, rows, columns, chunk);
    work.p.Plan(plan, key_rows, through_rank ? problem_.Rq : 0, chunk);
    work.a.Plan(plan, rows, heads, chunk);
    work.s.Plan(plan, block, heads, chunk);
    work.products.Plan(plan, problem_.dot, key_rows, problem_.D, std::max(rows, features), heads,
                       std::max({heads, problem_.Rq, problem_.E}), chunk);
  }

  // A task is a sequence and a group of heads: all pieces, one after the other.
  void ByHeads(std::int64_t groups) const {
    const std::int64_t size = GroupSize(groups);
    groups = DivideUp(problem_.H, size);
    const std::int64_t tasks = problem_.B * groups;
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
    Workspaces works;
    Partials sums, pieces;
    ScratchPlan plan;
    Plan(plan, works, std::min(size, problem_.H));
    sums.Plan(plan, size, problem_.E, kernels_.chunk);
    pieces.Plan(plan, size, problem_.E, kernels_.chunk);
    Scratch scratch(plan.Bytes(workers));
    plan.Take(scratch, workers);
    RunTasks(tasks, workers, [&](std::int64_t task, int worker) {
      const DecodeWorkspace work = works.At(worker);
      const Partial sum = sums.At(worker), piece = pieces.At(worker);
      const std::int64_t batch = task / groups, first = task % groups * size;
      const Range heads{first, std::min(problem_.H, first + size)};
      const Range rows{0, heads.size()};
      kernels_.prepare(problem_, batch, heads, work);
      kernels_.attend(problem_, batch, heads, PieceAt(batch, 0), work, sum);
      for (std::int64_t i = 1; i < first_piece_[batch + 1] - first_piece_[batch]; ++i) {
        kernels_.attend(problem_, batch, heads, PieceAt(batch, i), work, piece);
        kernels_.merge(problem_.E, heads.size(), rows, piece, sum);
      }
      kernels_.finish(problem_, batch, heads, rows, work.row, sum);
    });
  }

  // A task is a piece of a sequence. A wave of as many sequences as kPartialBytes has room for, at
  // least one, is computed, then merged.
  void ByPieces() const {
    const std::int64_t partial_bytes =
        Partials::Bytes(Places(problem_.H), problem_.E, kernels_.chunk);
    const std::int64_t fit = kPartialBytes / partial_bytes;
    std::int64_t most = 0;
    const auto end_of_wave = [&](std::int64_t begin) {
      std::int64_t end = begin + 1;
      while (end < problem_.B && first_piece_[end + 1] - first_piece_[begin] <= fit) ++end;
      return end;
    };
    for (std::int64_t begin = 0; begin < problem_.B; begin = end_of_wave(begin)) {
      most = std::max(most, first_piece_[end_of_wave(begin)] - first_piece_[begin]);
    }
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, most));
    Workspaces works;
    Partials partials;
    ScratchPlan plan;
    Plan(plan, works, problem_.H);
    partials.Plan(plan, Places(problem_.H), problem_.E, kernels_.chunk, most);
    Scratch scratch(plan.Bytes(workers));
    plan.Take(scratch, workers);
    const Range heads{0, problem_.H};
    for (std::int64_t begin = 0; begin < problem_.B;) {
      const std::int64_t end = end_of_wave(begin);
      const std::int64_t first = first_piece_[begin];
      RunTasks(first_piece_[end] - first, workers, [&](std::int64_t task, int worker) {
        const DecodeWorkspace work = works.At(worker);
        const auto after = std::upper_bound(first_piece_.begin(), first_piece_.end(), first + task);
        const std::int64_t batch = after - first_piece_.begin() - 1;
        kernels_.prepare(problem_, batch, heads, work);
        kernels_.attend(problem_, batch, heads, PieceAt(batch, first + task - first_piece_[batch]),
                        work, partials.At(task));
      });
      const std::int64_t groups = DivideUp(problem_.H, kMergedHeads);
      RunTasks((end - begin) * groups, workers, [&](std::int64_t task, int worker) {
        const std::int64_t batch = begin + task / groups;
        const std::int64_t head = task % groups * kMergedHeads;
        const Range rows{head, std::min(problem_.H, head + kMergedHeads)};
        const Partial sum = partials.At(first_piece_[batch] - first);
        for (std::int64_t i = first_piece_[batch] + 1; i < first_piece_[batch + 1]; ++i) {
          kernels_.merge(problem_.E, problem_.H, rows, partials.At(i - first), sum);
        }
        kernels_.finish(problem_, batch, heads, rows, works.At(worker).row, sum);
      });
      begin = end;
    }
  }

  static constexpr std::int64_t kMergedHeads = 8;

  DecodeProblem problem_;
  DecodeKernels kernels_;
  std::vector<std::int64_t> first_piece_;  // of each sequence, and the number of all pieces
  std::int64_t pieces_ = 0, tokens_ = 0, longest_ = 0;
  int workers_ = 1;
};

}  // namespace

void RunDecode(const DecodeProblem& problem, Precision precision, TpaSplit split) {
  const TargetIndex target = ChosenTarget();
  DecodeProblem own = problem;
  // Two parts of a weight would cost what float32 does.
  if (precision == Precision::kMedium) own.dot = FindDotTile(target);
  DecodeCall(own, target).Run(split);
}

}  // namespace attnops::tensor_product_attention
