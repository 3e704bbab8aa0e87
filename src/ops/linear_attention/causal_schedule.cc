// The tasks of causal linear attention. A piece's own state, from zero, and its decay are combined
// in the order of the pieces; within a piece outputs run with the state at its start. A task that
// has a whole sequence computes the same sums. A sequence of one piece has nothing to combine.
#include "src/ops/linear_attention/causal_schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/ops/linear_attention/causal_plan.h"

namespace attnops::causal {
namespace {

// Both passes: pieces of a sequence and their states.
class Passes : public Plan {
 public:
  using Plan::Plan;

 protected:
  // Calls f(block) for each block of the tokens, of which runs have whole blocks.
  template <class F>
  void ForEachBlock(const Head& head, Range tokens, const Workspace& work, const F& f) const {
    for (std::int64_t run = 0; run < RunsOf(tokens); ++run) {
      const Range range = RunAt(tokens, run);
      for (std::int64_t begin = range.begin; begin < range.end;) {
        const std::int64_t end = kernels_.block_end(problem_, head, begin, range.end, work);
        f(Range{begin, end});
        begin = end;
      }
    }
  }

  void Advance(const Head& head, Range tokens, const Workspace& work, const States& states,
               const LogDecay* total) const {
    ForEachBlock(head, tokens, work, [&](Range block) {
      kernels_.forward(problem_, head, block, work, states, total);
    });
  }
  // The state of a piece from zero, and its decay.
  void MakeLocal(const Head& head, Range piece, const Workspace& work, const Panels& local,
                 const LogDecay& total) const {
    kernels_.start(problem_, head, work);
    kernels_.load_state(problem_, nullptr, 0, local);
    Zero(total);
    Advance(head, piece, work, {{}, local}, &total);
  }

  void LoadStart(const StateTensor<const float*>& tensor, const Unit& unit, std::int64_t i,
                 const Panels& to) const {
    kernels_.load_state(problem_, tensor.At(unit.sequence, unit.first_head + i), tensor.row, to);
  }
  void StoreEnd(const StateTensor<float*>& tensor, const Unit& unit, std::int64_t i,
                const Panels& from) const {
    if (tensor.data == nullptr) return;
    kernels_.store_state(problem_, from, tensor.At(unit.sequence, unit.first_head + i), tensor.row);
  }

  // Units [begin, end) whose states have room, and the first slot of each; a slot is a head of a
  // piece.
  struct Wave {
    std::int64_t begin, end;
    std::vector<std::int64_t> first_slot;
    std::vector<std::pair<std::int64_t, std::int64_t>> tasks;  // unit and piece
  };
  template <class F>
  void ForEachWave(const F& f) const {
    for (std::int64_t begin = 0; begin < units_;) {
      Wave wave{begin, begin, {}, {}};
      std::int64_t slots = 0;
      while (wave.end < units_) {
        const Unit unit = UnitAt(wave.end);
        const std::int64_t more = PiecesOf(unit).count * unit.heads;
        if (wave.end > begin && slots + more > slots_) break;
        wave.first_slot.push_back(slots);
        for (std::int64_t i = 0; i < PiecesOf(unit).count; ++i) wave.tasks.emplace_back(wave.end, i);
        slots += more;
        ++wave.end;
      }
      f(std::as_const(wave));
      begin = wave.end;
    }
  }
  // Slots of `states` states each: as many as there is room for, and enough for any unit.
  void PlanWaves(std::int64_t states) {
    const auto bytes =
        static_cast<std::int64_t>(Scratch::Size<float>(StateSize())) * std::max<std::int64_t>(1, states);
    const std::int64_t room = kWaveBytes / std::max<std::int64_t>(bytes, 1);
    slots_ = std::clamp(room, most_pieces_ * unit_heads_, units_ * most_pieces_ * unit_heads_);
  }
  std::int64_t SlotOf(const Wave& wave, std::int64_t unit, std::int64_t piece,
                      std::int64_t head) const {
    return wave.first_slot[static_cast<std::size_t>(unit - wave.begin)] + piece * unit_heads_ + head;
  }

  // The states at the start of each piece of a wave's units, in starts_.
  void MakeStarts(const Wave& wave, bool with_last) const {
    RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_, [&](std::int64_t i, int worker) {
      const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
      const Unit unit = UnitAt(index);
      const Pieces pieces = PiecesOf(unit);
      if (pieces.count == 1 || (piece + 1 == pieces.count && !with_last)) return;
      for (std::int64_t head = 0; head < unit.heads; ++head) {
        const std::int64_t slot = SlotOf(wave, index, piece, head);
        MakeLocal(HeadOf(unit, head), pieces.At(piece), WorkOf(worker), locals_.At(slot),
                  totals_.At(slot));
      }
    });
    RunTasks(wave.end - wave.begin, workers_, [&](std::int64_t i, int worker) {
      const std::int64_t index = wave.begin + i;
      const Unit unit = UnitAt(index);
      const std::int64_t count = PiecesOf(unit).count;
      for (std::int64_t head = 0; head < unit.heads; ++head) {
        LoadStart(call_.initial_state, unit, head, starts_.At(SlotOf(wave, index, 0, head)));
        for (std::int64_t piece = 0; piece < count; ++piece) {
          const std::int64_t slot = SlotOf(wave, index, piece, head);
          if (piece + 1 < count) {
            kernels_.combine(problem_, totals_.At(slot), starts_.At(slot), locals_.At(slot),
                             starts_.At(SlotOf(wave, index, piece + 1, head)), WorkOf(worker));
          } else if (with_last && count > 1) {
            kernels_.combine(problem_, totals_.At(slot), starts_.At(slot), locals_.At(slot),
                             locals_.At(slot), WorkOf(worker));
            StoreEnd(call_.state, unit, head, locals_.At(slot));
          }
        }
      }
    });
  }

  std::int64_t slots_ = 0;
  // Of a worker, or of each slot of a wave.
  StateArrays starts_, locals_;
  LogArrays totals_;
};

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
               [&](std::int64_t i, int worker) { RunUnit(UnitAt(i), WorkOf(worker), worker); });
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
                 Advance(head, pieces.At(piece), work, {run, {}}, nullptr);
                 if (pieces.count == 1) StoreEnd(call_.state, unit, 0, run);
               });
    });
  }

 private:
  void RunUnit(const Unit& unit, const Workspace& work, int worker) const {
    const Head head = HeadOf(unit, 0);
    const Pieces pieces = PiecesOf(unit);
    const Panels start = starts_.At(worker);
    LoadStart(call_.initial_state, unit, 0, start);
    kernels_.start(problem_, head, work);
    if (pieces.count == 1) {
      Advance(head, pieces.At(0), work, {start, {}}, nullptr);
      return StoreEnd(call_.state, unit, 0, start);
    }
    const Panels local = locals_.At(worker), run = runs_.At(worker);
    const LogDecay total = totals_.At(worker);
    for (std::int64_t i = 0; i < pieces.count; ++i) {
      const bool goes_on = i + 1 < pieces.count || call_.state.data != nullptr;
      Copy(start, run);
      kernels_.load_state(problem_, nullptr, 0, local);
      Zero(total);
      Advance(head, pieces.At(i), work, {run, goes_on ? local : Panels{}}, &total);
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
      RunTasks(units_, workers_,
               [&](std::int64_t i, int worker) { RunUnit(UnitAt(i), worker); });
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
        Copy(run_start(run - 1, i), run_start(run, i));
        Advance(head, RunAt(tokens, run - 1), work, {run_start(run, i), {}}, nullptr);
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
          const auto index = (unit.sequence * call_.heads + unit.first_head + i) * most_pieces_ + piece;
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
        kernels_.forward(problem_, head, blocks.At(i), work, {state_of(i + 1), {}}, nullptr);
      }
      for (std::int64_t i = end - 1; i >= begin; --i) {
        const std::int64_t row = blocks.At(i).begin - run.begin;
        block.tokens = blocks.At(i);
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

void RunForward(const Call& call) { ForwardPass(call).Run(); }
void RunBackward(const Call& call) { BackwardPass(call).Run(); }

}  // namespace attnops::causal
