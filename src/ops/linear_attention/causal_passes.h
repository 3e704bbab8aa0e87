// What both passes of causal linear attention share. The state goes through a sequence from its
// first token to its last, whatever the tasks: where there are fewer sequences and heads than
// threads, tasks of parts of the state go through it first and leave it at the starts of pieces,
// which are tasks then. So the bits are those of one task.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PASSES_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PASSES_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/ops/linear_attention/causal_plan.h"

namespace attnops::causal {

class Passes : public Plan {
 public:
  using Plan::Plan;

 protected:
  // The end of the block that begins at a token.
  std::int64_t BlockEnd(const Head& head, std::int64_t begin, Range tokens,
                        const Workspace& work) const {
    const std::int64_t segment_end = RoundUp(begin + 1, kSegmentTokens);
    return kernels_.block_end(problem_, head, begin, std::min(tokens.end, segment_end), work);
  }
  // Advances a state of a problem, which may be a part of this call's; behind the last block a
  // worker goes on with `then`.
  void Advance(const Problem& problem, const Head& head, Range tokens, const Workspace& work,
               const Panels& state, const Ahead& then) const {
    for (std::int64_t begin = tokens.begin; begin < tokens.end;) {
      const Range block{begin, BlockEnd(head, begin, tokens, work)};
      const Ahead ahead{head, {block.end, std::min(tokens.end, block.end + kBlockTokens)}};
      kernels_.forward(problem, head, block, work, state, block.end < tokens.end ? ahead : then);
      begin = block.end;
    }
  }
  // The first block of a unit's tokens; nothing if there is no such.
  Ahead FirstOf(const Unit& unit) const {
    return {HeadOf(unit, 0), {0, std::min(TokensOf(unit), kBlockTokens)}};
  }
  // With as many tasks as units, a worker goes on about as many units later as there are workers.
  Ahead NextUnit(std::int64_t index) const {
    const std::int64_t next = index + workers_;
    return next < units_ ? FirstOf(UnitAt(next)) : Ahead{};
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
  // The state at the start of a segment, for the backward, and back.
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

  // A part of the elements of a state, whole chunks of rows and columns, which no others affect.
  struct StatePart {
    Problem problem;
    std::int64_t row, column;

    Panels Of(const Panels& state, std::int64_t chunk) const {
      return {state.data + column / chunk * state.panel + row * chunk, state.panel};
    }
  };
  StatePart PartOf(Range rows, Range columns) const {
    const std::int64_t size = call_.dtype == DType::kFloat32 ? 4 : 2;
    const auto shift = [](auto& tensor, std::int64_t elements, std::int64_t bytes) {
      if (tensor.data == nullptr) return;
      tensor.data = static_cast<const char*>(tensor.data) + elements * bytes;
    };
    StatePart part{problem_, rows.begin, columns.begin};
    Problem& problem = part.problem;
    problem.D = rows.size();
    problem.E = columns.size();
    problem.out = {};
    shift(problem.q, rows.begin, size);
    shift(problem.k, rows.begin, size);
    shift(problem.v, columns.begin, size);
    shift(problem.d_out, columns.begin, size);
    if (problem.decay == Decay::kFeature) {
      shift(problem.log_decay, rows.begin, problem.float_decay ? 4 : size);
    }
    shift(problem.log_decay_v, columns.begin, problem.float_decay_v ? 4 : size);
    return part;
  }
  // The state cut into at least `wanted` parts, if it has as many: first columns, as many as a tile
  // of a product has, then rows.
  std::vector<StatePart> PartsFor(std::int64_t wanted) const {
    const std::int64_t chunk = kernels_.chunk;
    const auto cut = [chunk](std::int64_t all, std::int64_t parts) {
      return std::max<std::int64_t>(RoundUp(DivideUp(all, parts), chunk), 1);
    };
    const std::int64_t D = std::max<std::int64_t>(problem_.D, 1);
    const std::int64_t E = std::max<std::int64_t>(problem_.E, 1);
    const std::int64_t columns =
        std::max(cut(E, std::clamp<std::int64_t>(wanted, 1, E)), std::min(E, 2 * chunk));
    const std::int64_t left = DivideUp(wanted, DivideUp(E, columns));
    const std::int64_t rows = cut(D, std::clamp<std::int64_t>(left, 1, D));
    std::vector<StatePart> parts;
    for (std::int64_t column = 0; column < E; column += columns) {
      for (std::int64_t row = 0; row < D; row += rows) {
        parts.push_back(PartOf({row, std::min(problem_.D, row + rows)},
                               {column, std::min(problem_.E, column + columns)}));
      }
    }
    return parts;
  }
  // Copies a part of a state.
  void CopyPart(const StatePart& part, const Panels& from, const Panels& to) const {
    const std::int64_t chunk = kernels_.chunk;
    const Panels source = part.Of(from, chunk), target = part.Of(to, chunk);
    const std::int64_t size = Padded(part.problem.D) * chunk;
    for (std::int64_t i = 0; i * chunk < part.problem.E; ++i) {
      std::copy_n(source.data + i * source.panel, size, target.data + i * target.panel);
    }
  }
  // Calls f(head, part, unit, head of the unit, worker) as tasks for the heads of a wave's units.
  template <class F>
  void ForEachPart(const Wave& wave, const F& f) const {
    const std::int64_t heads = (wave.end - wave.begin) * unit_heads_;
    const std::vector<StatePart> parts = PartsFor(DivideUp(2 * workers_, heads));
    const auto count = static_cast<std::int64_t>(parts.size());
    RunTasks(heads * count, workers_, [&](std::int64_t i, int worker) {
      const std::int64_t head = i / count;
      f(wave.begin + head / unit_heads_, head % unit_heads_,
        parts[static_cast<std::size_t>(i % count)], WorkOf(worker));
    });
  }

  // The states at the start of each piece of a wave's units, in starts_.
  void MakeStarts(const Wave& wave) const {
    RunTasks(static_cast<std::int64_t>(wave.tasks.size()), workers_, [&](std::int64_t i, int) {
      const auto [index, piece] = wave.tasks[static_cast<std::size_t>(i)];
      const Unit unit = UnitAt(index);
      for (std::int64_t head = 0; head < unit.heads; ++head) {
        const Panels to = starts_.At(SlotOf(wave, index, piece, head));
        if (piece == 0) {
          LoadStart(call_.initial_state, unit, head, to);
        } else if (HasKept()) {
          LoadKept(unit, head, PiecesOf(unit).At(piece).begin, to);
        }
      }
    });
    if (HasKept()) return;
    ForEachPart(wave, [&](std::int64_t index, std::int64_t i, const StatePart& part,
                          const Workspace& work) {
      const Unit unit = UnitAt(index);
      const Head head = HeadOf(unit, i);
      const Stretches pieces = PiecesOf(unit);
      if (pieces.count > 1) kernels_.start(part.problem, head, work);
      for (std::int64_t piece = 0; piece + 1 < pieces.count; ++piece) {
        const Panels next = starts_.At(SlotOf(wave, index, piece + 1, i));
        CopyPart(part, starts_.At(SlotOf(wave, index, piece, i)), next);
        Advance(part.problem, head, pieces.At(piece), work, part.Of(next, kernels_.chunk), {});
      }
    });
  }

  std::int64_t slots_ = 0;
  StateArrays starts_;  // of a worker, or of each slot of a wave
};

}  // namespace attnops::causal

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PASSES_H_
