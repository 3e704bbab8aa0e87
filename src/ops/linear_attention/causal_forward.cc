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
    } else {
      PlanWaves(1);
      PlanSlots(plan, starts_, slots_);
    }
    Scratch scratch(plan.Bytes(workers_));
    plan.Take(scratch, workers_);
    MakeWorkspaces();
    if (whole_) {
      RunTasks(units_, workers_, [&](std::int64_t i, int worker) {
        const Unit unit = UnitAt(i);
        const Panels state = starts_.At(worker);
        LoadStart(call_.initial_state, unit, 0, state);
        AdvanceAndKeep(unit, {0, TokensOf(unit)}, WorkOf(worker), state, NextUnit(i));
        StoreEnd(call_.state, unit, 0, state);
      });
      return;
    }
    ForEachWave([&](const Wave& wave) {
      MakeStarts(wave);
      RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_,
               [&](std::int64_t i, int worker) {
                 const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
                 const Unit unit = UnitAt(index);
                 const Stretches pieces = PiecesOf(unit);
                 const Panels state = starts_.At(SlotOf(wave, index, piece, 0));
                 AdvanceAndKeep(unit, pieces.At(piece), WorkOf(worker), state, {});
                 if (piece + 1 == pieces.count) StoreEnd(call_.state, unit, 0, state);
               });
    });
  }

 private:
  // Advances a state through tokens from the start of a segment on, and keeps it at such starts.
  void AdvanceAndKeep(const Unit& unit, Range tokens, const Workspace& work, const Panels& state,
                      const Ahead& then) const {
    const Head head = HeadOf(unit, 0);
    kernels_.start(problem_, head, work);
    const Stretches segments(tokens, kSegmentTokens);
    for (std::int64_t i = 0; i < segments.count; ++i) {
      const Range segment = segments.At(i);
      Keep(unit, 0, segment.begin, state);
      const Ahead ahead{head, {segment.end, std::min(tokens.end, segment.end + kBlockTokens)}};
      Advance(problem_, head, segment, work, state, segment.end < tokens.end ? ahead : then);
    }
  }

  // Sequences of at most one token.
  void Step() const {
    RunTasks(units_, workers_, [&](std::int64_t i, int) {
      const Unit unit = UnitAt(i);
      const float* from = call_.initial_state.At(unit.sequence, unit.first_head);
      float* to = call_.state.At(unit.sequence, unit.first_head);
      if (TokensOf(unit) == 1) {
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
};

}  // namespace

void RunForward(const Call& call) { ForwardPass(call).Run(); }

}  // namespace attnops::causal
