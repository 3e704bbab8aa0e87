// The tasks of the backward of causal linear attention.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "src/ops/linear_attention/causal_passes.h"
#include "src/ops/linear_attention/causal_schedule.h"

namespace attnops::causal {
namespace {

class BackwardPass : public Passes {
 public:
  explicit BackwardPass(const Call& call) : Passes(call, Pass::kBackward) {
    // A sum for each head of a piece, added in their order.
    if (WantsConstants()) {
      piece_constants_.resize(call.sequences.size() * static_cast<std::size_t>(call.heads) *
                              static_cast<std::size_t>(most_pieces_));
    }
  }

  void Run() {
    ScratchPlan plan;
    PlanWorkspaces(plan);
    // Where decays grow a block may be one token.
    const std::int64_t states = std::min(kRunStates, longest_) + 1;
    PlanStates(plan, block_states_, states);
    PlanStates(plan, run_starts_, most_runs_ > 1 ? most_runs_ * unit_heads_ : 0);
    if (unit_heads_ > 1) {
      const std::int64_t rows = std::min(longest_, kRunTokens);
      plan.AddForWorkers(dq_sums_, rows * Padded(problem_.D));
      plan.AddForWorkers(dk_sums_, rows * Padded(problem_.D));
    }
    if (whole_) {
      const bool cut = most_pieces_ > 1;
      PlanStates(plan, starts_, most_pieces_ * unit_heads_);
      PlanStates(plan, locals_, cut ? unit_heads_ : 0);
      PlanStates(plan, d_ends_, unit_heads_);
      PlanStates(plan, d_runs_, cut ? unit_heads_ : 0);
      PlanLogs(plan, totals_, unit_heads_);
    } else {
      PlanWaves(4);
      PlanSlots(plan, starts_, slots_);
      PlanSlots(plan, locals_, slots_);
      PlanSlots(plan, d_ends_, slots_);
      PlanSlots(plan, totals_, slots_);
    }
    Scratch scratch(plan.Bytes(workers_));
    plan.Take(scratch, workers_);
    MakeWorkspaces();
    if (whole_) {
      RunTasks(units_, workers_, [&](std::int64_t i, int worker) { RunUnit(UnitAt(i), worker); });
    } else {
      ForEachWave([&](const Wave& wave) { RunWave(wave); });
    }
    SumConstants();
  }

 private:
  // What the backward of a piece goes on with, for the first head of a unit; those of the others
  // follow, `step` of them apart.
  struct PieceStates {
    Panels start, d_run, d_local;
    LogDecay total;
  };

  void RunUnit(const Unit& unit, int worker) const {
    const Workspace& work = WorkOf(worker);
    const Pieces pieces = PiecesOf(unit);
    const Panels starts = starts_.At(worker), d_ends = d_ends_.At(worker);
    const Panels local = locals_.At(worker);
    const LogDecay totals = totals_.At(worker);
    const auto start_at = [&](std::int64_t piece, std::int64_t i) {
      return Shifted(starts, piece * unit.heads + i);
    };
    for (std::int64_t i = 0; i < unit.heads; ++i) {
      LoadStart(call_.initial_state, unit, i, start_at(0, i));
      LoadStart(call_.d_state, unit, i, Shifted(d_ends, i));
      for (std::int64_t piece = 0; piece + 1 < pieces.count; ++piece) {
        if (HasKept()) {
          LoadKept(unit, i, pieces.At(piece + 1).begin, start_at(piece + 1, i));
          continue;
        }
        MakeLocal(HeadOf(unit, i), pieces.At(piece), work, local, totals);
        kernels_.combine(problem_, totals, start_at(piece, i), local, start_at(piece + 1, i), work);
      }
    }
    for (std::int64_t piece = pieces.count - 1; piece >= 0; --piece) {
      const bool cut = pieces.count > 1;
      const bool goes_on = piece > 0 || call_.d_initial_state.data != nullptr;
      PieceStates states{start_at(piece, 0), d_ends, {}, totals};
      if (cut) {
        states.d_run = d_runs_.At(worker);
        if (goes_on) states.d_local = local;
      }
      for (std::int64_t i = 0; cut && i < unit.heads; ++i) {
        Copy(Shifted(d_ends, i), Shifted(states.d_run, i));
        kernels_.load_state(problem_, nullptr, 0, Shifted(local, i));
        Zero(Shifted(totals, i));
      }
      RunPiece(unit, piece, states, worker);
      for (std::int64_t i = 0; cut && goes_on && i < unit.heads; ++i) {
        kernels_.combine(problem_, Shifted(totals, i), Shifted(d_ends, i), Shifted(local, i),
                         Shifted(d_ends, i), work);
      }
    }
    for (std::int64_t i = 0; i < unit.heads; ++i) {
      StoreEnd(call_.d_initial_state, unit, i, Shifted(d_ends, i));
    }
  }

  void RunWave(const Wave& wave) const {
    MakeStarts(wave, false);
    const auto tasks = static_cast<std::int64_t>(wave.tasks.size());
    const bool with_first = call_.d_initial_state.data != nullptr;
    // Gradients of states from zero, in the place of the states of pieces.
    RunTasks(tasks, workers_, [&](std::int64_t i, int worker) {
      const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
      const Unit unit = UnitAt(index);
      if (PiecesOf(unit).count == 1 || (piece == 0 && !with_first)) return;
      for (std::int64_t h = 0; h < unit.heads; ++h) {
        const std::int64_t slot = SlotOf(wave, index, piece, h);
        MakeLocalGradient(HeadOf(unit, h), PiecesOf(unit).At(piece), WorkOf(worker),
                          locals_.At(slot), totals_.At(slot));
      }
    });
    RunTasks(wave.end - wave.begin, workers_, [&](std::int64_t i, int worker) {
      const std::int64_t index = wave.begin + i;
      const Unit unit = UnitAt(index);
      const std::int64_t last = PiecesOf(unit).count - 1;
      for (std::int64_t h = 0; h < unit.heads; ++h) {
        LoadStart(call_.d_state, unit, h, d_ends_.At(SlotOf(wave, index, last, h)));
        for (std::int64_t piece = last; last > 0 && piece >= (with_first ? 0 : 1); --piece) {
          const std::int64_t slot = SlotOf(wave, index, piece, h);
          const Panels to =
              piece > 0 ? d_ends_.At(SlotOf(wave, index, piece - 1, h)) : locals_.At(slot);
          kernels_.combine(problem_, totals_.At(slot), d_ends_.At(slot), locals_.At(slot), to,
                           WorkOf(worker));
          if (piece == 0) StoreEnd(call_.d_initial_state, unit, h, to);
        }
      }
    });
    RunTasks(tasks, workers_, [&](std::int64_t i, int worker) {
      const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
      const std::int64_t slot = SlotOf(wave, index, piece, 0);
      const Unit unit = UnitAt(index);
      RunPiece(unit, piece, {starts_.At(slot), d_ends_.At(slot), {}, totals_.At(slot)}, worker);
      for (std::int64_t h = 0; PiecesOf(unit).count == 1 && h < unit.heads; ++h) {
        StoreEnd(call_.d_initial_state, unit, h, d_ends_.At(slot + h));
      }
    });
  }

  void MakeLocalGradient(const Head& head, Range piece, const Workspace& work,
                         const Panels& d_local, const LogDecay& total) const {
    kernels_.start(problem_, head, work);
    kernels_.load_state(problem_, nullptr, 0, d_local);
    Zero(total);
    for (std::int64_t run = RunsOf(piece) - 1; run >= 0; --run) {
      Blocks blocks;
      FindBlocks(head, RunAt(piece, run), work, blocks);
      for (std::int64_t i = blocks.count - 1; i >= 0; --i) {
        kernels_.backward_state(problem_, head, blocks.At(i), work, {{}, d_local}, &total);
      }
    }
  }

  // The blocks of a run.
  struct Blocks {
    std::array<std::int64_t, kRunTokens + 1> bounds;
    std::int64_t count = 0;

    Range At(std::int64_t i) const {
      const auto at = static_cast<std::size_t>(i);
      return {bounds[at], bounds[at + 1]};
    }
  };
  void FindBlocks(const Head& head, Range run, const Workspace& work, Blocks& blocks) const {
    blocks.bounds[0] = run.begin;
    blocks.count = 0;
    while (blocks.bounds[static_cast<std::size_t>(blocks.count)] < run.end) {
      const std::int64_t begin = blocks.bounds[static_cast<std::size_t>(blocks.count)];
      blocks.bounds[static_cast<std::size_t>(++blocks.count)] =
          kernels_.block_end(problem_, head, begin, run.end, work);
    }
  }

  // The states of the heads of a unit follow one another.
  void RunPiece(const Unit& unit, std::int64_t piece, const PieceStates& states, int worker) const {
    const Workspace& work = WorkOf(worker);
    const Range tokens = PiecesOf(unit).At(piece);
    const std::int64_t runs = RunsOf(tokens);
    const Panels run_starts = run_starts_.At(worker);
    const auto step = [&](const Panels& first, std::int64_t i) {
      return first.data == nullptr ? first : Panels{first.data + i * SlotStride(), first.panel};
    };
    const auto run_start = [&](std::int64_t run, std::int64_t i) {
      return runs == 1 ? step(states.start, i) : Shifted(run_starts, run * unit.heads + i);
    };
    for (std::int64_t i = 0; runs > 1 && i < unit.heads; ++i) {
      const Head head = HeadOf(unit, i);
      kernels_.start(problem_, head, work);
      Copy(step(states.start, i), run_start(0, i));
      for (std::int64_t run = 1; run < runs; ++run) {
        if (HasKept()) {
          LoadKept(unit, i, RunAt(tokens, run).begin, run_start(run, i));
          continue;
        }
        Copy(run_start(run - 1, i), run_start(run, i));
        Advance(head, RunAt(tokens, run - 1), work, {run_start(run, i), {}}, nullptr, {});
      }
    }
    for (std::int64_t run = runs - 1; run >= 0; --run) {
      for (std::int64_t i = 0; i < unit.heads; ++i) {
        BackwardBlock block;
        block.d_states = {step(states.d_run, i), step(states.d_local, i)};
        const LogDecay total{states.total.key + i * LogStride(),
                             states.total.value + i * LogStride()};
        if (states.d_local.data != nullptr) block.total = &total;
        if (unit.heads > 1) {
          block.dq_sums = {dq_sums_.At(worker), Padded(problem_.D)};
          block.dk_sums = {dk_sums_.At(worker), Padded(problem_.D)};
          block.first_of_group = i == 0;
          block.last_of_group = i + 1 == unit.heads;
        }
        if (WantsConstants()) {
          const auto index =
              (unit.sequence * call_.heads + unit.first_head + i) * most_pieces_ + piece;
          block.d_constant = &piece_constants_[static_cast<std::size_t>(index)];
        }
        RunRun(HeadOf(unit, i), RunAt(tokens, run), run_start(run, i), block, worker);
      }
    }
  }
  // Floats between the states of heads of one piece.
  std::int64_t SlotStride() const { return whole_ ? StateSize() : starts_.states.stride; }
  std::int64_t LogStride() const { return whole_ ? LogSize() : totals_.logs.stride; }

  // The backward of a run: the states of up to kRunStates blocks, then these blocks from the last
  // to the first. Only where decays grow does a run have more blocks.
  void RunRun(const Head& head, Range run, const Panels& start, BackwardBlock block,
              int worker) const {
    const Workspace& work = WorkOf(worker);
    const Panels states = block_states_.At(worker);
    kernels_.start(problem_, head, work);
    Blocks blocks;
    FindBlocks(head, run, work, blocks);
    const BackwardBlock first = block;
    for (std::int64_t end = blocks.count; end > 0;) {
      const std::int64_t begin = std::max<std::int64_t>(end - kRunStates, 0);
      const auto state_of = [&](std::int64_t i) {
        return Shifted(states, std::max<std::int64_t>(i - begin, 0));
      };
      Copy(start, state_of(0));
      for (std::int64_t i = 0; i < (problem_.wants_decay ? end : end - 1); ++i) {
        if (i >= begin) Copy(state_of(i), state_of(i + 1));
        kernels_.forward(problem_, head, blocks.At(i), work, {state_of(i + 1), {}}, nullptr,
                         i + 1 < end ? Ahead{head, blocks.At(i + 1)} : Ahead{});
      }
      for (std::int64_t i = end - 1; i >= begin; --i) {
        const std::int64_t row = blocks.At(i).begin - run.begin;
        block.tokens = blocks.At(i);
        block.ahead = i > 0 ? Ahead{head, blocks.At(i - 1)} : Ahead{};
        block.state = state_of(i);
        block.next_state = state_of(i + 1);
        if (first.dq_sums.data != nullptr) {
          block.dq_sums = first.dq_sums.From(row);
          block.dk_sums = first.dk_sums.From(row);
        }
        kernels_.backward(problem_, head, block, work);
      }
      end = begin;
    }
  }

  bool WantsConstants() const {
    return problem_.decay == Decay::kConstant && problem_.d_log_decay.data != nullptr;
  }
  void SumConstants() const {
    if (!WantsConstants()) return;
    std::vector<double> sums(static_cast<std::size_t>(call_.heads), 0.0);
    for (std::size_t i = 0; i < piece_constants_.size(); ++i) {
      sums[i / static_cast<std::size_t>(most_pieces_) % sums.size()] += piece_constants_[i];
    }
    kernels_.store_constants(problem_, sums.data(), call_.heads);
  }

  StateArrays d_ends_, d_runs_, block_states_, run_starts_;
  Arrays dq_sums_, dk_sums_;
  mutable std::vector<double> piece_constants_;
};

}  // namespace

void RunBackward(const Call& call) { BackwardPass(call).Run(); }

}  // namespace attnops::causal
