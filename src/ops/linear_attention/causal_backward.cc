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
    // A sum for each head of a segment, added in their order.
    if (WantsConstants()) {
      constants_.resize(call.sequences.size() * static_cast<std::size_t>(call.heads) *
                        static_cast<std::size_t>(SegmentsOf(longest_)));
    }
  }

  void Run() {
    ScratchPlan plan;
    PlanWorkspaces(plan);
    const std::int64_t most_tokens = std::min(run_tokens_, longest_);
    run_states_ = DivideUp(most_tokens, kBlockTokens);
    PlanStates(plan, block_states_, run_states_ + 1);
    PlanStates(plan, run_starts_, most_runs_ > 1 ? most_runs_ * unit_heads_ : 0);
    if (unit_heads_ > 1) {
      plan.AddForWorkers(dq_sums_, most_tokens * Padded(problem_.D));
      plan.AddForWorkers(dk_sums_, most_tokens * Padded(problem_.D));
    }
    if (whole_) {
      PlanStates(plan, starts_, most_pieces_ * unit_heads_);
      PlanStates(plan, d_ends_, unit_heads_);
    } else {
      PlanWaves(2);
      PlanSlots(plan, starts_, slots_);
      PlanSlots(plan, d_ends_, slots_);
    }
    Scratch scratch(plan.Bytes(workers_));
    plan.Take(scratch, workers_);
    MakeWorkspaces();
    // Where decays grow a block may be one token.
    block_ends_.resize(static_cast<std::size_t>(workers_ * most_tokens));
    if (whole_) {
      RunTasks(units_, workers_, [&](std::int64_t i, int worker) { RunUnit(UnitAt(i), worker); });
    } else {
      ForEachWave([&](const Wave& wave) { RunWave(wave); });
    }
    SumConstants();
  }

 private:
  void RunUnit(const Unit& unit, int worker) const {
    const Workspace& work = WorkOf(worker);
    const Stretches pieces = PiecesOf(unit);
    const Panels starts = starts_.At(worker), d_ends = d_ends_.At(worker);
    const auto start_at = [&](std::int64_t piece, std::int64_t i) {
      return Shifted(starts, piece * unit.heads + i);
    };
    for (std::int64_t i = 0; i < unit.heads; ++i) {
      LoadStart(call_.initial_state, unit, i, start_at(0, i));
      LoadStart(call_.d_state, unit, i, Shifted(d_ends, i));
      MakeStartsOf(unit, i, pieces, work, [&](std::int64_t piece) { return start_at(piece, i); });
    }
    for (std::int64_t piece = pieces.count - 1; piece >= 0; --piece) {
      RunPiece(unit, pieces.At(piece), start_at(piece, 0), d_ends, worker);
    }
    for (std::int64_t i = 0; i < unit.heads; ++i) {
      StoreEnd(call_.d_initial_state, unit, i, Shifted(d_ends, i));
    }
  }
  // The states at the starts of all stretches but the first, from the one before or as they were
  // kept.
  template <class At>
  void MakeStartsOf(const Unit& unit, std::int64_t i, const Stretches& stretches,
                    const Workspace& work, const At& at) const {
    const Head head = HeadOf(unit, i);
    if (!HasKept() && stretches.count > 1) kernels_.start(problem_, head, work);
    for (std::int64_t n = 1; n < stretches.count; ++n) {
      if (HasKept()) {
        LoadKept(unit, i, stretches.At(n).begin, at(n));
      } else {
        Copy(at(n - 1), at(n));
        Advance(problem_, head, stretches.At(n - 1), work, at(n), {});
      }
    }
  }

  void RunWave(const Wave& wave) const {
    MakeStarts(wave);
    // The gradients of the states behind each piece.
    RunTasks(wave.end - wave.begin, workers_, [&](std::int64_t i, int) {
      const Unit unit = UnitAt(wave.begin + i);
      const std::int64_t last = PiecesOf(unit).count - 1;
      for (std::int64_t h = 0; h < unit.heads; ++h) {
        LoadStart(call_.d_state, unit, h, d_ends_.At(SlotOf(wave, wave.begin + i, last, h)));
      }
    });
    ForEachPart(wave, [&](std::int64_t index, std::int64_t i, const StatePart& part,
                          const Workspace& work) {
      const Unit unit = UnitAt(index);
      const Head head = HeadOf(unit, i);
      const Stretches pieces = PiecesOf(unit);
      if (pieces.count > 1) kernels_.start(part.problem, head, work);
      for (std::int64_t piece = pieces.count - 1; piece > 0; --piece) {
        const Panels before = d_ends_.At(SlotOf(wave, index, piece - 1, i));
        CopyPart(part, d_ends_.At(SlotOf(wave, index, piece, i)), before);
        AdvanceGradient(part.problem, head, pieces.At(piece), work,
                        part.Of(before, kernels_.chunk));
      }
    });
    RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_,
             [&](std::int64_t i, int worker) {
               const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
               const std::int64_t slot = SlotOf(wave, index, piece, 0);
               const Unit unit = UnitAt(index);
               RunPiece(unit, PiecesOf(unit).At(piece), starts_.At(slot), d_ends_.At(slot), worker);
               for (std::int64_t h = 0; piece == 0 && h < unit.heads; ++h) {
                 StoreEnd(call_.d_initial_state, unit, h, d_ends_.At(slot + h));
               }
             });
  }
  void AdvanceGradient(const Problem& problem, const Head& head, Range piece, const Workspace& work,
                       const Panels& d_state) const {
    std::array<std::int64_t, kSegmentTokens> ends;
    const Stretches segments(piece, kSegmentTokens);
    for (std::int64_t n = segments.count - 1; n >= 0; --n) {
      const Blocks blocks = FindBlocks(head, segments.At(n), work, ends.data());
      for (std::int64_t i = blocks.count - 1; i >= 0; --i) {
        kernels_.backward_state(problem, head, blocks.At(i), work, d_state);
      }
    }
  }

  // The blocks of some tokens.
  struct Blocks {
    std::int64_t begin, count;
    const std::int64_t* ends;

    Range At(std::int64_t i) const { return {i == 0 ? begin : ends[i - 1], ends[i]}; }
  };
  Blocks FindBlocks(const Head& head, Range tokens, const Workspace& work,
                    std::int64_t* ends) const {
    std::int64_t count = 0;
    for (std::int64_t begin = tokens.begin; begin < tokens.end; begin = ends[count++]) {
      ends[count] = BlockEnd(head, begin, tokens, work);
    }
    return {tokens.begin, count, ends};
  }

  // From the gradient of the state behind a piece to that before it. The states of the heads of a
  // unit follow one another.
  void RunPiece(const Unit& unit, Range piece, const Panels& start, const Panels& d_state,
                int worker) const {
    const Workspace& work = WorkOf(worker);
    const Stretches runs(piece, run_tokens_);
    const auto run_start = [&](std::int64_t run, std::int64_t i) {
      return run == 0 ? StateOf(start, i) : Shifted(run_starts_.At(worker), run * unit.heads + i);
    };
    for (std::int64_t i = 0; i < unit.heads; ++i) {
      MakeStartsOf(unit, i, runs, work, [&](std::int64_t run) { return run_start(run, i); });
    }
    for (std::int64_t run = runs.count - 1; run >= 0; --run) {
      for (std::int64_t i = 0; i < unit.heads; ++i) {
        BackwardBlock block;
        block.d_state = StateOf(d_state, i);
        if (unit.heads > 1) {
          block.dq_sums = {dq_sums_.At(worker), Padded(problem_.D)};
          block.dk_sums = {dk_sums_.At(worker), Padded(problem_.D)};
          block.first_of_group = i == 0;
          block.last_of_group = i + 1 == unit.heads;
        }
        RunRun(unit, i, runs.At(run), run_start(run, i), block, worker);
      }
    }
  }
  // The state of a unit's head, a worker's or in the slots of a wave.
  Panels StateOf(const Panels& first, std::int64_t i) const {
    return {first.data + i * (whole_ ? StateSize() : starts_.states.stride), first.panel};
  }

  // The backward of a run: the states of up to run_states_ blocks, then these blocks from the last
  // to the first. Only where decays grow does a run have more blocks.
  void RunRun(const Unit& unit, std::int64_t i, Range run, const Panels& start, BackwardBlock block,
              int worker) const {
    const Workspace& work = WorkOf(worker);
    const Head head = HeadOf(unit, i);
    const Panels states = block_states_.At(worker);
    kernels_.start(problem_, head, work);
    const auto most_tokens = static_cast<std::int64_t>(block_ends_.size()) / workers_;
    const Blocks blocks = FindBlocks(head, run, work, block_ends_.data() + worker * most_tokens);
    const BackwardBlock first = block;
    for (std::int64_t end = blocks.count; end > 0;) {
      const std::int64_t begin = std::max<std::int64_t>(end - run_states_, 0);
      const auto state_of = [&](std::int64_t n) {
        return Shifted(states, std::max<std::int64_t>(n - begin, 0));
      };
      Copy(start, state_of(0));
      for (std::int64_t n = 0; n < (problem_.wants_decay ? end : end - 1); ++n) {
        if (n >= begin) Copy(state_of(n), state_of(n + 1));
        kernels_.forward(problem_, head, blocks.At(n), work, state_of(n + 1),
                         n + 1 < end ? Ahead{head, blocks.At(n + 1)} : Ahead{});
      }
      for (std::int64_t n = end - 1; n >= begin; --n) {
        block.tokens = blocks.At(n);
        block.ahead = n > 0 ? Ahead{head, blocks.At(n - 1)} : Ahead{};
        block.state = state_of(n);
        block.next_state = state_of(n + 1);
        if (first.dq_sums.data != nullptr) {
          block.dq_sums = first.dq_sums.From(block.tokens.begin - run.begin);
          block.dk_sums = first.dk_sums.From(block.tokens.begin - run.begin);
        }
        if (WantsConstants()) {
          const std::int64_t of_head = unit.sequence * call_.heads + unit.first_head + i;
          block.d_constant = &constants_[static_cast<std::size_t>(
              of_head * SegmentsOf(longest_) + block.tokens.begin / kSegmentTokens)];
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
    const auto segments = static_cast<std::size_t>(SegmentsOf(longest_));
    for (std::size_t i = 0; i < constants_.size(); ++i) {
      sums[i / segments % sums.size()] += constants_[i];
    }
    kernels_.store_constants(problem_, sums.data(), call_.heads);
  }

  StateArrays d_ends_, block_states_, run_starts_;
  Arrays dq_sums_, dk_sums_;
  std::int64_t run_states_ = 0;
  mutable std::vector<std::int64_t> block_ends_;  // of the run of each worker
  mutable std::vector<double> constants_;
};

}  // namespace

void RunBackward(const Call& call) { BackwardPass(call).Run(); }

}  // namespace attnops::causal
