// The tasks of the forward of causal linear attention.
#include <algorithm>
#include <cstdint>

#include "src/ops/linear_attention/causal_passes.h"
#include "src/ops/linear_attention/causal_schedule.h"

namespace attnops::causal {
namespace {

class ForwardPass : public Passes {
 public:
  explicit ForwardPass(const Call& call) : Passes(call, Pass::kForward) {}

  void Run() {
    if (longest_ <= 1) return Step();
    ScratchPlan plan;
    PlanWorkspaces(plan);
    if (whole_) {
      PlanStates(plan, starts_, 1);
      PlanStates(plan, locals_, most_pieces_ > 1 ? 1 : 0);
      PlanStates(plan, runs_, most_pieces_ > 1 ? 1 : 0);
      PlanLogs(plan, totals_, 1);
    } else {
      PlanWaves(2);
      PlanSlots(plan, starts_, slots_);
      PlanSlots(plan, locals_, slots_);
      PlanSlots(plan, totals_, slots_);
    }
    Scratch scratch(plan.Bytes(workers_));
    plan.Take(scratch, workers_);
    MakeWorkspaces();
    if (whole_) {
      RunTasks(units_, workers_,
               [&](std::int64_t i, int worker) { RunUnit(i, WorkOf(worker), worker); });
      return;
    }
    ForEachWave([&](const Wave& wave) {
      MakeStarts(wave, call_.state.data != nullptr);
      RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_,
               [&](std::int64_t i, int worker) {
                 const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
                 const Unit unit = UnitAt(index);
                 const Head head = HeadOf(unit, 0);
                 const Workspace& work = WorkOf(worker);
                 const Pieces pieces = PiecesOf(unit);
                 const Panels run = starts_.At(SlotOf(wave, index, piece, 0));
                 kernels_.start(problem_, head, work);
                 AdvanceAndKeep(unit, pieces.At(piece), work, {run, {}}, nullptr, {});
                 if (pieces.count == 1) StoreEnd(call_.state, unit, 0, run);
               });
    });
  }

 private:
  void RunUnit(std::int64_t index, const Workspace& work, int worker) const {
    const Unit unit = UnitAt(index);
    const Head head = HeadOf(unit, 0);
    const Pieces pieces = PiecesOf(unit);
    const Panels start = starts_.At(worker);
    LoadStart(call_.initial_state, unit, 0, start);
    kernels_.start(problem_, head, work);
    if (pieces.count == 1) {
      AdvanceAndKeep(unit, pieces.At(0), work, {start, {}}, nullptr, NextUnit(index));
      return StoreEnd(call_.state, unit, 0, start);
    }
    const Panels local = locals_.At(worker), run = runs_.At(worker);
    const LogDecay total = totals_.At(worker);
    for (std::int64_t i = 0; i < pieces.count; ++i) {
      const bool goes_on = i + 1 < pieces.count || call_.state.data != nullptr;
      Copy(start, run);
      kernels_.load_state(problem_, nullptr, 0, local);
      Zero(total);
      AdvanceAndKeep(unit, pieces.At(i), work, {run, goes_on ? local : Panels{}}, &total,
                     i + 1 < pieces.count ? FirstOf(unit, i + 1) : NextUnit(index));
      if (goes_on) kernels_.combine(problem_, total, start, local, start, work);
    }
    StoreEnd(call_.state, unit, 0, start);
  }

  // Sequences of at most one token.
  void Step() const {
    RunTasks(units_, workers_, [&](std::int64_t i, int) {
      const Unit unit = UnitAt(i);
      const float* from = call_.initial_state.At(unit.sequence, unit.first_head);
      float* to = call_.state.At(unit.sequence, unit.first_head);
      if (PiecesOf(unit).tokens == 1) {
        return kernels_.step(problem_, HeadOf(unit, 0), from, call_.initial_state.row, to,
                             call_.state.row);
      }
      for (std::int64_t row = 0; to != nullptr && to != from && row < problem_.D; ++row) {
        float* at = to + row * call_.state.row;
        if (from == nullptr) {
          std::fill_n(at, problem_.E, 0.0f);
        } else {
          std::copy_n(from + row * call_.initial_state.row, problem_.E, at);
        }
      }
    });
  }

  StateArrays runs_;
};

}  // namespace

void RunForward(const Call& call) { ForwardPass(call).Run(); }

}  // namespace attnops::causal
