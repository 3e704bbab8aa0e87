// The schedule of tensor product attention of many queries, both passes.
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

// The backward keeps the gradients of a wave of heads: as many as fit into kWaveBytes, which stays
// in the caches, but at least one for each thread if that fits into kMostWaveBytes.
constexpr std::int64_t kWaveBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMostWaveBytes = std::int64_t{28} << 20;
// Bound of the sums over heads. Longer sequences are cut into segments, with passes of their own
// for queries and keys.
constexpr std::int64_t kSumBytes = std::int64_t{24} << 20;
// Bound of what the heads of all tasks at work have in the forward through the ranks.
constexpr std::int64_t kOutputBytes = std::int64_t{24} << 20;
// Tasks for each thread that make their different sizes even.
constexpr std::int64_t kTasksOfWorker = 8;
// The products of a vector of queries and a block of keys stay in L1 for so many pairs of ranks.
constexpr std::int64_t kMostRanks = 16;
// What a score through the ranks costs beside its multiply-adds, in multiply-adds.
constexpr std::int64_t kRankScores = 4;
// Tokens whose gradients a task takes apart.
constexpr std::int64_t kSplitTokens = 32;

std::int64_t FloatBytes(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(float));
}

class PrefillCall {
 public:
  PrefillCall(const PrefillProblem& problem, TargetIndex target)
      : problem_(problem), kernels_(tpa_prefill::KernelsFor(problem.dtype, target)) {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double work = number(problem.B) * number(problem.H) * number(problem.N) *
                        number(problem.M) * (number(problem.D) + number(problem.E));
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
  }

  // A task is a block of queries of some heads: of one, or of all if their scores are had through
  // the ranks, but of fewer where there would be too few tasks or too much memory. Late queries see
  // the most keys and come first.
  void Forward() const {
    const std::int64_t block = problem_.through_ranks ? kRankQueryBlock : kQueryBlock;
    const std::int64_t blocks = DivideUp(problem_.N, block);
    const std::int64_t heads = HeadsOfTask(blocks * problem_.B);
    const std::int64_t groups = DivideUp(problem_.H, heads);
    const std::int64_t tasks = blocks * problem_.B * groups;
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
    Workspaces works;
    ScratchPlan plan;
    Plan(plan, works, false, heads);
    Scratch scratch(plan.Bytes(workers));
    plan.Take(scratch, workers);
    RunTasks(tasks, workers, [&](std::int64_t task, int worker) {
      const std::int64_t first = (blocks - 1 - task / (problem_.B * groups)) * block;
      const std::int64_t head = task % groups * heads;
      kernels_.attend(problem_, task / groups % problem_.B,
                      {head, std::min(problem_.H, head + heads)},
                      {first, std::min(problem_.N, first + block)}, works.At(worker));
    });
  }

  // The gradients of all tokens at once or, if their sums take too much memory, of the queries and
  // then of the keys of one segment after the other, for which all scores are computed twice.
  void Backward(const PrefillGradients& gradients) const {
    const std::int64_t segment = SegmentSize();
    const Range none{0, 0};
    for (std::int64_t batch = 0; batch < problem_.B; ++batch) {
      if (std::max(problem_.N, problem_.M) <= segment) {
        Backward(gradients, batch, {{0, problem_.N}, {0, problem_.M}});
        continue;
      }
      for (std::int64_t first = 0; first < problem_.N; first += segment) {
        Backward(gradients, batch, {{first, std::min(problem_.N, first + segment)}, none});
      }
      for (std::int64_t first = 0; first < problem_.M; first += segment) {
        Backward(gradients, batch, {none, {first, std::min(problem_.M, first + segment)}});
      }
    }
  }

 private:
  struct Workspaces {
    Matrices q, q_transposed, k, v, s, out, d_out, d_out_transposed, ds;
    Arrays max, sum, factor;
    PairSpaces pairs;
    RanksWorkspaces ranks;

    PrefillWorkspace At(std::int64_t i) const {
      return {q.At(i),
              q_transposed.At(i),
              k.At(i),
              v.At(i),
              s.At(i),
              out.At(i),
              max.At(i),
              sum.At(i),
              factor.At(i),
              pairs.At(i),
              ranks.At(i),
              d_out.At(i),
              d_out_transposed.At(i),
              ds.At(i)};
    }
  };

  // Heads of a task of the forward, where there are so many tasks for all heads.
  std::int64_t HeadsOfTask(std::int64_t tasks) const {
    if (!problem_.through_ranks) return 1;
    // Causal tasks differ in size.
    const std::int64_t wanted = workers_ == 1 ? 1 : kTasksOfWorker * workers_;
    const std::int64_t of_head = FloatBytes(
        Panels::Size(kRankQueryBlock, problem_.E, kernels_.chunk) + kRankQueryBlock * problem_.Rq);
    const std::int64_t fit =
        std::clamp<std::int64_t>(kOutputBytes / workers_ / of_head, 1, problem_.H);
    const std::int64_t groups =
        std::max(DivideUp(problem_.H, fit),
                 std::min(DivideUp(wanted, tasks), DivideUp(problem_.H, kHeadsTogether)));
    return DivideUp(problem_.H, groups);
  }

  void Plan(ScratchPlan& plan, Workspaces& work, bool backward, std::int64_t heads) const {
    const std::int64_t D = problem_.D, E = problem_.E, chunk = kernels_.chunk;
    const bool ranks = !backward && problem_.through_ranks;
    const std::int64_t queries =
        RoundUp(std::min(problem_.N, ranks ? kRankQueryBlock : kQueryBlock), chunk);
    const std::int64_t rows_of_d = RoundUp(D, chunk), rows_of_e = RoundUp(E, chunk);
    work.q.Plan(plan, queries, D, chunk);
    work.q_transposed.Plan(plan, rows_of_d, queries, chunk);
    work.k.Plan(plan, kKeyBlock, D, chunk);
    work.v.Plan(plan, kKeyBlock, E, chunk);
    work.s.Plan(plan, kKeyBlock, queries, chunk);
    plan.AddForWorkers(work.max, heads * queries);
    plan.AddForWorkers(work.sum, heads * queries);
    if (backward) {
      work.d_out.Plan(plan, queries, E, chunk);
      work.d_out_transposed.Plan(plan, rows_of_e, queries, chunk);
      work.ds.Plan(plan, kKeyBlock, queries, chunk);
    } else {
      plan.AddForWorkers(work.factor, heads * queries);
      if (!ranks) work.out.Plan(plan, queries, E, chunk);
    }
    if (ranks) work.ranks.Plan(plan, problem_, heads, queries, chunk);
    const std::int64_t features = std::max({rows_of_d, rows_of_e, queries});
    work.pairs.Plan(plan, problem_.dot, kKeyBlock * (ranks ? problem_.Rk : 1), features,
                    std::max(features, kKeyBlock), queries,
                    std::max(features, ranks ? problem_.Rq * chunk : 0), chunk);
  }

  std::int64_t Columns(std::int64_t features) const { return RoundUp(features, kernels_.chunk); }

  std::int64_t SegmentSize() const {
    const std::int64_t token = FloatBytes((problem_.Rq + problem_.Rk) * Columns(problem_.D) +
                                          problem_.Rv * Columns(problem_.E));
    return std::max<std::int64_t>(
        kQueryBlock, kSumBytes / std::max<std::int64_t>(token, 1) / kQueryBlock * kQueryBlock);
  }

  struct Waves {
    Matrices q, k, v;

    HeadGradients At(std::int64_t i) const { return {q.At(i), k.At(i), v.At(i)}; }
  };

  // One pass over all heads of a batch, in waves. The gradients of the whole rows of a head are
  // computed by one task; then those of the factors follow from them, token by token, in the order
  // of the heads.
  void Backward(const PrefillGradients& gradients, std::int64_t batch,
                const BackwardRanges& ranges) const {
    const std::int64_t D = problem_.D, E = problem_.E, chunk = kernels_.chunk;
    const std::int64_t queries = ranges.queries.size(), keys = ranges.keys.size();
    const std::int64_t head_bytes =
        FloatBytes(Panels::Size(queries, D, chunk) + Panels::Size(keys, D, chunk) +
                   Panels::Size(keys, E, chunk));
    const std::int64_t wanted = std::max<std::int64_t>(workers_, kWaveBytes / (head_bytes + 1));
    const std::int64_t fit = std::max<std::int64_t>(1, kMostWaveBytes / (head_bytes + 1));
    std::int64_t wave = std::min({wanted, fit, problem_.H});
    if (wave > workers_) wave = wave / workers_ * workers_;
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, wave));
    Workspaces works;
    Waves waves;
    Arrays bq, bk, bv;
    ScratchPlan plan;
    Plan(plan, works, true, 1);
    const auto add = [&](Matrices& matrices, std::int64_t rows, std::int64_t columns) {
      matrices.panel = Panels::PanelSize(rows, chunk);
      plan.Add(matrices.arrays, Panels::Size(rows, columns, chunk), wave);
    };
    add(waves.q, queries, D);
    add(waves.k, keys, D);
    add(waves.v, keys, E);
    plan.Add(bq, queries * problem_.Rq * Columns(D), 1);
    plan.Add(bk, keys * problem_.Rk * Columns(D), 1);
    plan.Add(bv, keys * problem_.Rv * Columns(E), 1);
    Scratch scratch(plan.Bytes(workers));
    plan.Take(scratch, workers);
    std::vector<HeadGradients> of_heads;
    for (std::int64_t i = 0; i < wave; ++i) of_heads.push_back(waves.At(i));
    const FactorSums sums{bq.data, bk.data, bv.data};
    const std::int64_t query_tasks = DivideUp(queries, kSplitTokens);
    const std::int64_t key_tasks = DivideUp(keys, kSplitTokens);
    for (std::int64_t first = 0; first < problem_.H; first += wave) {
      const Range heads{first, std::min(problem_.H, first + wave)};
      RunTasks(heads.size(), workers, [&](std::int64_t task, int worker) {
        kernels_.backward(problem_, gradients, batch, first + task, ranges, works.At(worker),
                          of_heads[static_cast<std::size_t>(task)]);
      });
      RunTasks(query_tasks + key_tasks, workers_, [&](std::int64_t task, int) {
        const bool of_query = task < query_tasks;
        const std::int64_t begin = (of_query ? task : task - query_tasks) * kSplitTokens;
        const Range tokens{begin, std::min(of_query ? queries : keys, begin + kSplitTokens)};
        const auto split = of_query ? kernels_.split_queries : kernels_.split_keys;
        split(problem_, gradients, batch, heads, of_query ? ranges.queries : ranges.keys, tokens,
              of_heads.data(), sums);
      });
    }
  }

  PrefillProblem problem_;
  PrefillKernels kernels_;
  int workers_ = 1;
};

PrefillCall CallOf(PrefillProblem problem, Precision precision) {
  const TargetIndex target = ChosenTarget();
  // Two parts of a weight would cost what float32 does.
  if (precision == Precision::kMedium) problem.dot = FindDotTile(target);
  problem.through_ranks = ThroughRanks(problem);
  return PrefillCall(problem, target);
}

}  // namespace

// Scores cost R_q·R_k·D multiply-adds for a query and a key, and R_q·R_k for each head, or D for
// each head; those of bfloat16 products count half.
bool ThroughRanks(const PrefillProblem& problem) {
  if (problem.aq.data == nullptr || problem.Rq < 1 || problem.Rk < 1) return false;
  const std::int64_t ranks = problem.Rq * problem.Rk;
  if (problem.Rq > kMostQueryRanks || ranks > kMostRanks) return false;
  const std::int64_t D = problem.dot == nullptr ? problem.D : DivideUp(problem.D, 2);
  return ranks * (D + problem.H) + kRankScores * problem.H < problem.H * D;
}

void RunPrefill(const PrefillProblem& problem, Precision precision) {
  CallOf(problem, precision).Forward();
}

void RunPrefillBackward(const PrefillProblem& problem, const PrefillGradients& gradients,
                        Precision precision) {
  CallOf(problem, precision).Backward(gradients);
}

}  // namespace attnops::tensor_product_attention
