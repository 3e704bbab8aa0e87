// How a pass of causal linear attention is cut into tasks, by its sizes, and its memory.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PLAN_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "src/core/numeric.h"
#include "src/core/pass.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/target.h"
#include "src/core/tasks.h"
#include "src/gemm/dot_tile.h"
#include "src/ops/linear_attention/causal_schedule.h"

namespace attnops::causal {

// A sequence is cut into at most this many pieces, more than any sensible number of threads.
constexpr std::int64_t kMostPieces = 64;
// Bound of the states of a wave, if those of one head are within it.
constexpr std::int64_t kWaveBytes = 16 << 20;
// Bound of what all workers of a backward have of their runs, if runs can be that short: states of
// blocks, and the sums of heads that share q and k.
constexpr std::int64_t kRunBytes = 16 << 20;
// Calls of fewer multiply-adds are not worth waking a thread for.
constexpr double kSerialWork = 5e5;

// Tokens cut into stretches of `size`, a multiple of a segment.
struct Stretches {
  Range tokens;
  std::int64_t size, count;

  Stretches(Range all, std::int64_t of_each)
      : tokens(all),
        size(of_each),
        count(std::max<std::int64_t>(DivideUp(all.size(), of_each), 1)) {}

  Range At(std::int64_t i) const {
    return {std::min(tokens.end, tokens.begin + i * size),
            std::min(tokens.end, tokens.begin + (i + 1) * size)};
  }
};

// States of one size.
struct StateArrays {
  Arrays states;
  std::int64_t panel = 0;

  Panels At(std::int64_t i) const { return {states.At(i), panel}; }
};

// A task's unit: the heads that share the q and k of a sequence. A forward's has one head.
struct Unit {
  std::int64_t sequence, key_head, first_head, heads;
};

class Plan {
 public:
  Plan(const Call& call, Pass pass)
      : call_(call),
        problem_(call.problem),
        pass_(pass),
        target_(ChosenTarget()),
        kernels_(KernelsFor(call.dtype, target_)),
        group_(call.key_heads == 0 ? 1 : call.heads / call.key_heads) {
    // Products with an intermediate in two parts are no faster than float32.
    if (call.precision == Precision::kMedium && problem_.IsOfTokens()) {
      problem_.dot = FindDotTile(target_);
    }
    unit_heads_ = pass == Pass::kForward ? 1 : group_;
    const auto D = static_cast<double>(problem_.D), E = static_cast<double>(problem_.E);
    double tokens = 0;
    std::int64_t kept = 0;
    for (const Sequence& sequence : call.sequences) {
      first_kept_.push_back(kept);
      kept += SegmentsOf(sequence.tokens) - 1;
      tokens += static_cast<double>(sequence.tokens);
      longest_ = std::max(longest_, sequence.tokens);
    }
    const double work = tokens * static_cast<double>(call.heads) * (D * E + 32 * (D + E));
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
    units_ = static_cast<std::int64_t>(call.sequences.size()) * (call.heads / unit_heads_);
    whole_ = units_ >= workers_ || longest_ <= kSegmentTokens;

    const std::int64_t of_block =
        StateSize() + (unit_heads_ > 1 ? 2 * kBlockTokens : 0) * Padded(problem_.D);
    const auto bytes = static_cast<std::int64_t>(sizeof(float)) * workers_ *
                       std::max<std::int64_t>(of_block, 1) * (kSegmentTokens / kBlockTokens);
    run_tokens_ =
        std::clamp<std::int64_t>(kRunBytes / bytes * kSegmentTokens, kSegmentTokens,
                                 RoundUp(std::max<std::int64_t>(longest_, 1), kSegmentTokens));
    piece_tokens_ = std::max(RoundUp(DivideUp(longest_, kMostPieces), kSegmentTokens),
                             whole_ ? run_tokens_ : kSegmentTokens);
    run_tokens_ = std::min(run_tokens_, piece_tokens_);
    most_pieces_ = Stretches({0, longest_}, piece_tokens_).count;
    most_runs_ = DivideUp(piece_tokens_, run_tokens_);
  }

 protected:
  std::int64_t Padded(std::int64_t n) const { return RoundUp(n, kernels_.chunk); }
  std::int64_t StateSize() const {
    return Panels::Size(Padded(problem_.D), problem_.E, kernels_.chunk);
  }

  Unit UnitAt(std::int64_t i) const {
    const std::int64_t units = call_.heads / unit_heads_;
    const std::int64_t first = i % units * unit_heads_;
    return {i / units, first / group_, first, unit_heads_};
  }
  Head HeadOf(const Unit& unit, std::int64_t i) const {
    const Sequence& sequence = call_.sequences[static_cast<std::size_t>(unit.sequence)];
    return {sequence.batch, sequence.first, unit.first_head + i, unit.key_head};
  }
  std::int64_t TokensOf(const Unit& unit) const {
    return call_.sequences[static_cast<std::size_t>(unit.sequence)].tokens;
  }
  Stretches PiecesOf(const Unit& unit) const { return {{0, TokensOf(unit)}, piece_tokens_}; }

  static std::int64_t SegmentsOf(std::int64_t tokens) {
    return std::max<std::int64_t>(DivideUp(tokens, kSegmentTokens), 1);
  }
  // The kept state at a token of a unit's head, the start of a segment behind the first.
  std::int64_t KeptAt(const Unit& unit, std::int64_t token) const {
    return first_kept_[static_cast<std::size_t>(unit.sequence)] + token / kSegmentTokens - 1;
  }

  void PlanStates(ScratchPlan& plan, StateArrays& states, std::int64_t of_worker) const {
    states.panel = Panels::PanelSize(Padded(problem_.D), kernels_.chunk);
    plan.AddForWorkers(states.states, of_worker * StateSize());
  }
  void PlanSlots(ScratchPlan& plan, StateArrays& states, std::int64_t slots) const {
    states.panel = Panels::PanelSize(Padded(problem_.D), kernels_.chunk);
    plan.Add(states.states, StateSize(), slots);
  }
  Panels Shifted(const Panels& first, std::int64_t i) const {
    return {first.data + i * StateSize(), first.panel};
  }
  void Copy(const Panels& from, const Panels& to) const {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(StateSize()) * sizeof(float));
  }

  // A worker's matrices, as offsets into one array.
  struct Matrix {
    Panels Workspace::*member;
    std::int64_t rows, columns;
  };
  struct SideMatrix {
    SideDecay Workspace::*side;
    Panels SideDecay::*member;
    std::int64_t rows, columns;
  };
  std::vector<Matrix> Matrices() const {
    const std::int64_t D = problem_.D, E = problem_.E, C = kBlockTokens;
    const bool of_features = !problem_.IsOfTokens();
    std::vector<Matrix> list = {
        {&Workspace::q, C, D},
        {&Workspace::k, C, D},
        {&Workspace::q_start, C, D},
        {&Workspace::k_end, C, D},
        {&Workspace::v, C, E},
        {&Workspace::weighted, of_features ? kLevels * C : C, std::max(D, E)},
        {&Workspace::columns, Padded(std::max(D, E)), C},
        {&Workspace::scores, C, C},
        {&Workspace::mask, C, C}};
    if (problem_.OnValues()) {
      list.push_back({&Workspace::out, C, E});
      list.push_back({&Workspace::v_end, C, E});
    }
    if (pass_ == Pass::kBackward) {
      const Matrix more[] = {{&Workspace::dq, C, D},
                             {&Workspace::dk, C, D},
                             {&Workspace::g, C, E},
                             {&Workspace::g_start, C, problem_.OnValues() ? E : 0},
                             {&Workspace::dv, C, E},
                             {&Workspace::d_scores, C, C},
                             {&Workspace::state_columns, Padded(E), D}};
      list.insert(list.end(), std::begin(more), std::end(more));
    }
    if (problem_.dot != nullptr) {
      const std::int64_t most = std::max(D, E);
      list.push_back({&Workspace::state_pairs, Padded(most) / 2, most});
      list.push_back({&Workspace::score_pairs, C / 2, C});
    }
    return list;
  }
  std::vector<SideMatrix> SideMatrices() const {
    std::vector<SideMatrix> list;
    const auto add = [&](SideDecay Workspace::*side, std::int64_t columns) {
      for (Panels SideDecay::*member : {&SideDecay::logs, &SideDecay::decays}) {
        list.push_back({side, member, kBlockTokens, columns});
      }
      list.push_back({side, &SideDecay::nodes, 2 * kGroups, columns});
    };
    if (problem_.decay == Decay::kFeature) add(&Workspace::key, problem_.D);
    if (problem_.OnValues()) add(&Workspace::value, problem_.E);
    return list;
  }
  // Calls f(member, size) for each array of floats of a workspace.
  template <class F>
  static void ForEachVector(std::int64_t D, std::int64_t E, const F& f) {
    for (float* Workspace::*member :
         {&Workspace::key_keep, &Workspace::key_rest, &Workspace::d_key}) {
      f(member, D);
    }
    for (float* Workspace::*member :
         {&Workspace::value_keep, &Workspace::value_rest, &Workspace::d_value}) {
      f(member, E);
    }
    for (float* Workspace::*member : {&Workspace::from_start, &Workspace::to_end}) {
      f(member, kBlockTokens + 16);  // a tile may reach past the last token
    }
  }

  // Sets the workspace's arrays in memory from `data` on and returns its size, with data null too.
  std::int64_t LayOut(float* data, Workspace& work) const {
    std::int64_t size = 0;
    const auto take = [&](std::int64_t count) {
      float* result = data == nullptr ? nullptr : data + size;
      size += static_cast<std::int64_t>(Scratch::Size<float>(count) / sizeof(float));
      return result;
    };
    const auto panels = [&](std::int64_t rows, std::int64_t columns) {
      return Panels{take(Panels::Size(rows, columns, kernels_.chunk)),
                    Panels::PanelSize(rows, kernels_.chunk)};
    };
    for (const Matrix& matrix : Matrices()) {
      work.*matrix.member = panels(matrix.rows, matrix.columns);
    }
    for (const SideMatrix& matrix : SideMatrices()) {
      work.*matrix.side.*matrix.member = panels(matrix.rows, matrix.columns);
    }
    ForEachVector(
        Padded(problem_.D), Padded(problem_.E),
        [&](float* Workspace::*member, std::int64_t count) { work.*member = take(count); });
    work.log = {take(Padded(problem_.D)), take(Padded(problem_.E))};
    if (problem_.dot == nullptr) return size;
    // A chunk more than a row has, so that rows do not all begin in the same set of the cache.
    for (const auto& [member, columns] :
         {std::pair{&Workspace::score_rows, kBlockTokens},
          std::pair{&Workspace::rows16, Padded(std::max(problem_.D, problem_.E))}}) {
      const std::int64_t stride = columns + kernels_.chunk;
      work.*member = {reinterpret_cast<BFloat16*>(take(kBlockTokens * stride / 2)), stride};
    }
    return size;
  }
  void PlanWorkspaces(ScratchPlan& plan) {
    Workspace unused{};
    plan.AddForWorkers(workspace_memory_, LayOut(nullptr, unused));
  }
  // After the plan's memory is taken: the parallel region allocates nothing.
  void MakeWorkspaces() {
    workspaces_.resize(static_cast<std::size_t>(workers_));
    for (int i = 0; i < workers_; ++i) {
      LayOut(workspace_memory_.At(i), workspaces_[static_cast<std::size_t>(i)]);
    }
  }
  const Workspace& WorkOf(int worker) const {
    return workspaces_[static_cast<std::size_t>(worker)];
  }

  const Call& call_;
  Problem problem_;
  Pass pass_;
  TargetIndex target_;
  Kernels kernels_;
  std::int64_t group_;  // heads of v for each of q and k
  std::int64_t unit_heads_ = 1, units_ = 0;
  std::int64_t longest_ = 0;
  // Of a piece, which is a task where there are fewer units than workers, and of a run, whose
  // blocks' states the backward has at a time.
  std::int64_t piece_tokens_ = kSegmentTokens, run_tokens_ = kSegmentTokens;
  std::int64_t most_pieces_ = 1, most_runs_ = 1;
  std::vector<std::int64_t> first_kept_;  // of each sequence
  bool whole_ = true;                     // whether a task is a unit, else a piece of one
  int workers_ = 1;
  Arrays workspace_memory_;
  std::vector<Workspace> workspaces_;
};

}  // namespace attnops::causal

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_PLAN_H_
