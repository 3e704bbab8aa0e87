// How a pass of linear attention is cut into tasks, by its sizes, and its memory.
#ifndef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PLAN_H_
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PLAN_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "src/core/numeric.h"
#include "src/core/pass.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/linear_attention/kernels.h"
#include "src/positions/kernels.h"
#include "src/rowops/kernels.h"

namespace attnops::linear_attention {

// A sequence is cut into pieces of at least kPieceTokens tokens, since the KVs of the pieces have
// to be added, and into at most kMostPieces pieces, more than any sensible number of threads. The
// length alone decides, so that a sequence has the same bits in every batch.
constexpr std::int64_t kPieceTokens = 1024;
constexpr std::int64_t kMostPieces = 64;
// With as many heads for each worker as this a task is a head, which goes through its pieces one
// after the other; with fewer a task is a piece. The sums are the same.
constexpr std::int64_t kHeadsOfWorker = 4;
// Bound of the KVs of a wave, if two of one head are within it.
constexpr std::int64_t kWaveBytes = 16 << 20;
// Calls of fewer multiply-adds are not worth waking a thread for.
constexpr double kSerialWork = 5e5;

// How a sequence is cut.
struct Pieces {
  std::int64_t tokens;  // of the sequence
  std::int64_t size;    // tokens of each piece but the last
  std::int64_t count;

  explicit Pieces(std::int64_t all) : tokens(all) {
    const std::int64_t wanted = std::clamp<std::int64_t>(all / kPieceTokens, 1, kMostPieces);
    size = std::max(RoundUp(DivideUp(all, wanted), kBlockTokens), kBlockTokens);
    count = std::max<std::int64_t>(DivideUp(all, size), 1);
  }

  Range At(std::int64_t piece) const {
    return {piece * size, std::min(tokens, (piece + 1) * size)};
  }
};

// Heads whose pieces are at work at the same time.
struct Wave {
  std::int64_t first, count;
};

// What the schedule knows of a pass.
class Plan {
 public:
  explicit Plan(const Call& call)
      : target_(ChosenTarget()),
        dtype_(call.dtype),
        problem_(call.problem),
        d_theta_(call.d_theta),
        half_(call.half),
        kernels_(KernelsFor(dtype_, target_)),
        column_kernels_(rowops::KernelsFor(dtype_, target_)),
        heads_(problem_.B * problem_.H),
        n_(problem_.N),
        m_(problem_.M) {
    inner_ = problem_.inner_parts * Padded(problem_.inner_part);
    const double work = static_cast<double>(heads_) * static_cast<double>(inner_) *
                        static_cast<double>(problem_.E) *
                        static_cast<double>(problem_.N + problem_.M);
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
    const DotTile dot = call.precision == Precision::kHighest ? nullptr : FindDotTile(target_);
    if (call.precision == Precision::kMedium) problem_.dot = dot;
    // K and V as they are give an exact KV at half the cost. Other products would need
    // intermediates in two parts, which is no faster than float32.
    const bool direct = problem_.k.stage.IsDirect() && problem_.v.stage.IsDirect();
    if (problem_.dot != nullptr || direct) problem_.kv_dot = dot;
    whole_ = heads_ >= kHeadsOfWorker * workers_ || (n_.count == 1 && m_.count == 1);
    for (Operand* operand : {&problem_.q, &problem_.k, &problem_.v, &problem_.g}) {
      operands_[operand->index] = operand;
      Stage& stage = operand->stage;
      if (stage.encodes) stage.angles = AnglesOf(stage.source, stage.part, kernels_.chunk);
      if (!stage.encodes || !d_theta_) continue;
      const Pieces& pieces = PiecesOf(*operand);
      operand->theta = {pieces.count * problem_.B, problem_.H, stage.angles.width};
      operand->theta_piece = pieces.size;
      operand->batches = problem_.B;
    }
  }

  // Operands are pointed to.
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

 protected:
  // Plans the memory of a pass.
  void PlanForward(ScratchPlan& plan) {
    kv_slots_ = KeptKv() ? 1 : SlotsFor(m_);
    PlanWaves(kv_slots_);
    PlanBlocks(Pass::kForward, plan);
    PlanMatrices(plan, kvs_, KvSize(), kv_slots_);
    if (whole_ && m_.count > 1) plan.AddForWorkers(piece_kv_, KvSize());
  }
  void PlanBackward(ScratchPlan& plan) {
    kv_slots_ = KeptKv() ? 1 : SlotsFor(m_);
    dkv_slots_ = SlotsFor(n_);
    PlanWaves(kv_slots_ + dkv_slots_ + 1);
    PlanBlocks(Pass::kBackward, plan);
    PlanMatrices(plan, dkvs_, KvSize(), dkv_slots_);
    PlanMatrices(plan, transposed_, TransposedSize(), 1);
    PlanMatrices(plan, kvs_, KvSize(), kv_slots_);
    if (whole_ && (n_.count > 1 || kv_slots_ > 1)) plan.AddForWorkers(piece_kv_, KvSize());
  }
  // Takes the planned memory from `scratch`, of Bytes(plan).
  std::size_t Bytes(const ScratchPlan& plan) const {
    return plan.Bytes(workers_) + AnglesBytes() + problem_.q.theta.Bytes() +
           problem_.k.theta.Bytes();
  }
  void Take(const ScratchPlan& plan, Scratch& scratch) {
    plan.Take(scratch, workers_);
    MakeAngles(scratch);
    if (!d_theta_) return;
    problem_.q.theta.Take(scratch);
    problem_.k.theta.Take(scratch);
  }
  // The gradient of theta from the sums of q and k.
  void StoreTheta() const {
    if (!d_theta_) return;
    const Stage& stage = problem_.q.stage;
    StoreThetaGradient({&problem_.q.theta, &problem_.k.theta}, stage.angles, stage.encoded,
                       positions::KernelsFor(dtype_, target_).storage_offset, *d_theta_);
  }

  bool KeptKv() const { return problem_.kept_kv.data != nullptr; }

  std::int64_t Padded(std::int64_t n) const { return RoundUp(n, kernels_.chunk); }
  std::int64_t KvSize() const { return Panels::Size(inner_, problem_.E, kernels_.chunk); }
  std::int64_t TransposedSize() const {
    return Panels::Size(Padded(problem_.E), inner_, kernels_.chunk);
  }
  std::int64_t BlockSize(std::int64_t columns) const {
    return Panels::Size(kBlockTokens, columns, kernels_.chunk);
  }
  const Pieces& PiecesOf(const Operand& operand) const {
    return operand.index == problem_.q.index || operand.index == problem_.g.index ? n_ : m_;
  }
  // Elements from one row of bfloat16 to the next: a chunk more than it has, so that rows do not
  // all begin in the same set of the cache.
  std::int64_t Rows16Stride() const {
    return std::max(inner_, Padded(problem_.E)) + kernels_.chunk;
  }
  // Floats of a row of an operand's columns.
  std::int64_t ColumnsSize(const Operand& operand) const {
    return operand.stage.parts * Padded(operand.stage.part);
  }

  // How many matrices of KV's size have room.
  std::int64_t KvRoom() const {
    const auto bytes = static_cast<std::int64_t>(Scratch::Size<float>(KvSize()));
    return kWaveBytes / std::max<std::int64_t>(bytes, 1);
  }
  // Matrices that a head has for the sum of its pieces and for those that are added next.
  std::int64_t SlotsFor(const Pieces& pieces) const {
    return std::min(pieces.count, std::max<std::int64_t>(KvRoom() / 2, 2));
  }
  // As many heads at a time as their `matrices` have room.
  void PlanWaves(std::int64_t matrices) {
    wave_heads_ = std::clamp<std::int64_t>(KvRoom() / matrices, 1, heads_);
  }
  template <class F>
  void ForEachWave(const F& f) const {
    for (std::int64_t first = 0; first < heads_; first += wave_heads_) {
      f(Wave{first, std::min(wave_heads_, heads_ - first)});
    }
  }

  // A matrix for each head at work or, where tasks are pieces, one for each of its `pieces`.
  void PlanMatrices(ScratchPlan& plan, Arrays& arrays, std::int64_t size,
                    std::int64_t pieces) const {
    if (whole_) {
      plan.AddForWorkers(arrays, size);
    } else {
      plan.Add(arrays, size, wave_heads_ * pieces);
    }
  }

  // The memory of the workers' blocks and of columns.
  void PlanBlocks(Pass pass, ScratchPlan& plan) {
    plan.AddForWorkers(d_blocks_, BlockSize(inner_));
    plan.AddForWorkers(e_blocks_, BlockSize(problem_.E));
    if (problem_.kv_dot != nullptr) {
      plan.AddForWorkers(d_pairs_, Panels::Size(kBlockTokens / 2, inner_, kernels_.chunk));
      plan.AddForWorkers(e_pairs_, Panels::Size(kBlockTokens / 2, problem_.E, kernels_.chunk));
      plan.AddForWorkers(rows16_, kBlockTokens * Rows16Stride() / 2);
    }
    std::int64_t row = 0;
    std::int64_t table = 0;
    bool softmax = false;
    for (const Operand* operand : operands_) {
      const Stage& stage = operand->stage;
      row = std::max(row, ColumnsSize(*operand));
      softmax = softmax || stage.SumsRows() || stage.SumsColumns();
      if (stage.encodes) {
        const Angles& angles = stage.angles;
        // On a line a row for each exact sincos that a block needs, else one for each token.
        const std::int64_t rows =
            angles.OnLine() ? kBlockTokens / angles.step_count + 2 : kBlockTokens;
        table = rows * angles.RowSize();
      }
    }
    if (d_theta_) {
      const Stage& stage = problem_.q.stage;
      const bool features = stage.SumsRows() || problem_.k.stage.SumsRows();
      plan.AddForWorkers(factors_, kBlockTokens * stage.angles.width);
      plan.AddForWorkers(activated_, features ? BlockSize(ColumnsSize(problem_.q)) : 0);
    }
    plan.AddForWorkers(tables_, table);
    plan.AddForWorkers(gradients_, pass == Pass::kBackward && softmax ? BlockSize(row) : 0);
    plan.AddForWorkers(rows_, softmax ? rowops::kSoftmaxRows * 2 * row : 0);
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      const std::int64_t size = ColumnsSize(*operand);
      const std::int64_t pieces = PiecesOf(*operand).count;
      PlanMatrices(plan, columns_[operand->index], 3 * size, pieces);
      if (pass == Pass::kBackward) PlanMatrices(plan, means_[operand->index], size, pieces);
    }
  }

  // q and k have the same theta: the turns and steps of the longer sequence serve both.
  std::size_t AnglesBytes() const {
    return problem_.q.stage.encodes ? AnglesScratch(problem_.q.stage.angles) : 0;
  }
  void MakeAngles(Scratch& scratch) {
    if (!problem_.q.stage.encodes) return;
    Angles* longer = &problem_.q.stage.angles;
    Angles* other = &problem_.k.stage.angles;
    if (problem_.M > problem_.N) std::swap(longer, other);
    const std::uint32_t steps =
        StepsOf(problem_.q.stage.angles, problem_.B, problem_.N - problem_.q.stage.prefix) |
        StepsOf(problem_.k.stage.angles, problem_.B, problem_.M - problem_.k.stage.prefix);
    StartAngles(target_, dtype_, problem_.q.stage.source, steps, scratch, *longer);
    other->turns = longer->turns;
    other->poison = longer->poison;
    other->steps = longer->steps;
  }

  Head HeadOf(std::int64_t i) const { return {i / problem_.H, i % problem_.H}; }
  Panels KvAt(const Arrays& kvs, std::int64_t i) const {
    return {kvs.At(i), Panels::PanelSize(inner_, kernels_.chunk)};
  }
  Panels TransposedAt(std::int64_t i) const {
    return {transposed_.At(i), Panels::PanelSize(Padded(problem_.E), kernels_.chunk)};
  }
  std::int64_t KvPanels() const { return DivideUp(problem_.E, kernels_.chunk); }
  void AddKvPanel(const Panels& from, const Panels& to, std::int64_t panel) const {
    kernels_.add_panel(problem_, from.data + panel * from.panel, to.data + panel * to.panel);
  }

  Blocks BlocksOf(int worker) const {
    const std::int64_t panel = Panels::PanelSize(kBlockTokens, kernels_.chunk);
    Blocks blocks;
    blocks.d = {d_blocks_.At(worker), panel};
    blocks.e = {e_blocks_.At(worker), panel};
    blocks.gradient = {gradients_.At(worker), panel};
    if (problem_.kv_dot != nullptr) {
      const std::int64_t pairs = Panels::PanelSize(kBlockTokens / 2, kernels_.chunk);
      blocks.d_pairs = {d_pairs_.At(worker), pairs};
      blocks.e_pairs = {e_pairs_.At(worker), pairs};
      blocks.rows16 = {reinterpret_cast<BFloat16*>(rows16_.At(worker)), Rows16Stride()};
    }
    if (d_theta_) {
      blocks.factors = factors_.At(worker);
      blocks.activated = {activated_.At(worker), panel};
    }
    blocks.table = tables_.At(worker);
    blocks.rows = rows_.At(worker);
    return blocks;
  }
  // A slot of columns, of a worker or of a piece of a head, has rows of shifts, of sums that become
  // scales, and of means.
  float* ColumnsAt(const Operand& operand, std::int64_t slot) const {
    return columns_[operand.index].At(slot);
  }
  float* MeansAt(const Operand& operand, std::int64_t slot) const {
    return means_[operand.index].At(slot);
  }
  template <class SlotOf>
  void SetColumns(Blocks& blocks, const SlotOf& slot_of) const {
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      blocks.columns[operand->index] = ColumnsAt(*operand, slot_of(*operand));
    }
  }

  TargetIndex target_;
  DType dtype_;
  Problem problem_;
  std::optional<TensorView> d_theta_;
  Half half_;
  Kernels kernels_;
  rowops::Kernels column_kernels_;
  std::array<Operand*, kOperands> operands_{};
  std::int64_t heads_;
  std::int64_t inner_;  // rows of KV
  Pieces n_, m_;
  bool whole_ = false;           // whether a task is a head
  std::int64_t wave_heads_ = 0;  // else how many heads a wave has
  std::int64_t kv_slots_ = 1, dkv_slots_ = 1;
  int workers_ = 1;
  Arrays kvs_, dkvs_, transposed_;  // of each worker, or of each head or piece of a wave
  Arrays piece_kv_;                 // of a worker, for the piece that is added next
  Arrays d_blocks_, e_blocks_, d_pairs_, e_pairs_, rows16_;
  Arrays gradients_, tables_, rows_, factors_, activated_;
  std::array<Arrays, kOperands> columns_{};
  std::array<Arrays, kOperands> means_{};
};

}  // namespace attnops::linear_attention

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PLAN_H_
