// What both passes of causal linear attention share. A piece's own state, from zero, and its decay
// are combined in the order of the pieces; within a piece outputs run with the state at its start.
// A task that has a whole sequence computes the same sums. A sequence of one piece has nothing to
// combine.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PASSES_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PASSES_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/ops/linear_attention/causal_plan.h"

namespace attnops::causal {

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

  // Behind the last block a worker goes on with `then`.
  void Advance(const Head& head, Range tokens, const Workspace& work, const States& states,
               const LogDecay* total, const Ahead& then) const {
    ForEachBlock(head, tokens, work, [&](Range block) {
      const Ahead ahead{head, {block.end, std::min(tokens.end, block.end + kBlockTokens)}};
      kernels_.forward(problem_, head, block, work, states, total,
                       block.end < tokens.end ? ahead : then);
    });
  }
  // The same for a piece of a unit of one head, whose states at the starts of runs are kept.
  void AdvanceAndKeep(const Unit& unit, Range piece, const Workspace& work, const States& states,
                      const LogDecay* total, const Ahead& then) const {
    const Head head = HeadOf(unit, 0);
    for (std::int64_t run = 0; run < RunsOf(piece); ++run) {
      const Range tokens = RunAt(piece, run);
      Keep(unit, 0, tokens.begin, states.run);
      const Ahead ahead{head, {tokens.end, std::min(piece.end, tokens.end + kBlockTokens)}};
      Advance(head, tokens, work, states, total, tokens.end < piece.end ? ahead : then);
    }
  }
  // The first block of a unit's head, or of a piece; nothing if there is no such.
  Ahead FirstOf(const Unit& unit, std::int64_t piece) const {
    const Pieces pieces = PiecesOf(unit);
    if (piece >= pieces.count) return {};
    const Range tokens = pieces.At(piece);
    return {HeadOf(unit, 0), {tokens.begin, std::min(tokens.end, tokens.begin + kBlockTokens)}};
  }
  // With as many tasks as units, a worker goes on about as many units later as there are workers.
  Ahead NextUnit(std::int64_t index) const {
    const std::int64_t next = index + workers_;
    return next < units_ ? FirstOf(UnitAt(next), 0) : Ahead{};
  }
  // The state of a piece from zero, and its decay.
  void MakeLocal(const Head& head, Range piece, const Workspace& work, const Panels& local,
                 const LogDecay& total) const {
    kernels_.start(problem_, head, work);
    kernels_.load_state(problem_, nullptr, 0, local);
    Zero(total);
    Advance(head, piece, work, {{}, local}, &total, {});
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
  // The state at the start of a run, for the backward, and back.
  void Keep(const Unit& unit, std::int64_t i, std::int64_t token, const Panels& from) const {
    if (call_.kept.data == nullptr || token == 0) return;
    kernels_.store_state(problem_, from, call_.kept.At(KeptAt(unit, token), unit.first_head + i),
                         call_.kept.row);
  }
  void LoadKept(const Unit& unit, std::int64_t i, std::int64_t token, const Panels& to) const {
    const auto& kept = call_.kept_before;
    kernels_.load_state(problem_, kept.At(KeptAt(unit, token), unit.first_head + i), kept.row, to);
  }
  bool HasKept() const { return call_.kept_before.data != nullptr; }

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
        for (std::int64_t i = 0; i < PiecesOf(unit).count; ++i)
          wave.tasks.emplace_back(wave.end, i);
        slots += more;
        ++wave.end;
      }
      f(std::as_const(wave));
      begin = wave.end;
    }
  }
  // Slots of `states` states each: as many as there is room for, and enough for any unit.
  void PlanWaves(std::int64_t states) {
    const auto bytes = static_cast<std::int64_t>(Scratch::Size<float>(StateSize())) *
                       std::max<std::int64_t>(1, states);
    const std::int64_t room = kWaveBytes / std::max<std::int64_t>(bytes, 1);
    slots_ = std::clamp(room, most_pieces_ * unit_heads_, units_ * most_pieces_ * unit_heads_);
  }
  std::int64_t SlotOf(const Wave& wave, std::int64_t unit, std::int64_t piece,
                      std::int64_t head) const {
    return wave.first_slot[static_cast<std::size_t>(unit - wave.begin)] + piece * unit_heads_ +
           head;
  }

  // The states at the start of each piece of a wave's units, in starts_.
  void MakeStarts(const Wave& wave, bool with_last) const {
    if (HasKept()) return LoadStarts(wave);
    RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_,
             [&](std::int64_t i, int worker) {
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

  void LoadStarts(const Wave& wave) const {
    RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_, [&](std::int64_t i, int) {
      const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
      const Unit unit = UnitAt(index);
      for (std::int64_t head = 0; head < unit.heads; ++head) {
        const Panels to = starts_.At(SlotOf(wave, index, piece, head));
        if (piece == 0) {
          LoadStart(call_.initial_state, unit, head, to);
        } else {
          LoadKept(unit, head, PiecesOf(unit).At(piece).begin, to);
        }
      }
    });
  }

  std::int64_t slots_ = 0;
  // Of a worker, or of each slot of a wave.
  StateArrays starts_, locals_;
  LogArrays totals_;
};

}  // namespace attnops::causal

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PASSES_H_
