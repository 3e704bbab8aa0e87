// The schedule of gated linear attention.
#include <algorithm>
#include <array>

#include "src/core/numeric.h"
#include "src/core/pass.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/linear_attention/kernels.h"
#include "src/rowops/kernels.h"

namespace attnops::linear_attention {
namespace {

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
// Softmax over the sequence: after this many tokens of a piece a new sum begins, which is merged
// with the one before. This bounds the rounding error of a sum.
constexpr std::int64_t kSumTokens = 1024;

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

// One pass: how it is cut into tasks and its memory.
class Run {
 public:
  explicit Run(const Call& call)
      : target_(ChosenTarget()),
        dtype_(call.dtype),
        problem_(call.problem),
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
    whole_ = heads_ >= kHeadsOfWorker * workers_ || (n_.count == 1 && m_.count == 1);
    for (Operand* operand : {&problem_.q, &problem_.k, &problem_.v, &problem_.g}) {
      operands_[operand->index] = operand;
      Stage& stage = operand->stage;
      if (stage.encodes) stage.angles = AnglesOf(stage.source, stage.part, kernels_.chunk);
    }
  }

  void Forward() {
    kv_slots_ = SlotsFor(m_);
    PlanWaves(kv_slots_);
    ScratchPlan plan;
    PlanBlocks(Pass::kForward, plan);
    PlanMatrices(plan, kvs_, KvSize(), kv_slots_);
    if (whole_ && m_.count > 1) plan.AddForWorkers(piece_kv_, KvSize());
    Scratch scratch(plan.Bytes(workers_) + AnglesBytes());
    plan.Take(scratch, workers_);
    MakeAngles(scratch);
    if (whole_) {
      RunTasks(heads_, workers_, [&](std::int64_t task, int worker) { ForwardHead(task, worker); });
    } else {
      ForEachWave([&](const Wave& wave) { ForwardWave(wave); });
    }
  }

  void Backward() {
    kv_slots_ = KeptKv() ? 1 : SlotsFor(m_);
    dkv_slots_ = SlotsFor(n_);
    PlanWaves(kv_slots_ + dkv_slots_ + 1);
    ScratchPlan plan;
    PlanBlocks(Pass::kBackward, plan);
    PlanMatrices(plan, dkvs_, KvSize(), dkv_slots_);
    PlanMatrices(plan, transposed_, TransposedSize(), 1);
    PlanMatrices(plan, kvs_, KvSize(), kv_slots_);
    if (whole_ && (n_.count > 1 || kv_slots_ > 1)) plan.AddForWorkers(piece_kv_, KvSize());
    Scratch scratch(plan.Bytes(workers_) + AnglesBytes());
    plan.Take(scratch, workers_);
    MakeAngles(scratch);
    if (whole_) {
      RunTasks(heads_, workers_,
               [&](std::int64_t task, int worker) { BackwardHead(task, worker); });
    } else {
      ForEachWave([&](const Wave& wave) { BackwardWave(wave); });
    }
  }

 private:
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
    StartAngles(target_, dtype_, *problem_.q.stage.source.theta, scratch, *longer);
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

  // Tasks that are heads.

  Blocks HeadBlocks(int worker, std::int64_t task) const {
    Blocks blocks = BlocksOf(worker);
    blocks.goes_on = true;
    // The other workers take the heads in between.
    if (task + workers_ < heads_) blocks.next = HeadOf(task + workers_);
    SetColumns(blocks, [&](const Operand&) { return worker; });
    return blocks;
  }

  void ForwardHead(std::int64_t task, int worker) const {
    const Head head = HeadOf(task);
    const Blocks blocks = HeadBlocks(worker, task);
    SumColumnsOfHead(head, worker);
    const Panels kv = KvAt(kvs_, worker);
    MakeKv(head, worker, blocks, kv);
    if (problem_.kv.data != nullptr) kernels_.store_kv(problem_, head, kv);
    kernels_.forward(problem_, head, {0, problem_.N}, blocks, kv);
  }

  void BackwardHead(std::int64_t task, int worker) const {
    const Head head = HeadOf(task);
    const Blocks blocks = HeadBlocks(worker, task);
    const Panels kv = KvAt(kvs_, worker);
    const Panels dkv = KvAt(dkvs_, worker);
    const Panels transposed = TransposedAt(worker);  // KVᵀ, then dKVᵀ
    SumColumnsOfHead(head, worker);
    if (KeptKv()) {
      kernels_.load_kv(problem_, head, kv);
    } else {
      MakeKv(head, worker, blocks, kv);
    }
    kernels_.transpose(problem_, kv, transposed);
    const auto query = [&](Goal goal, Range range, const Blocks& own, const Panels& to) {
      kernels_.backward_query(problem_, goal, head, range, own, kv, transposed, to);
    };
    SumMeansOfHead(n_, problem_.q, problem_.g, worker, blocks,
                   [&](Range range, const Blocks& own) { query(Goal::kMeans, range, own, dkv); });
    SumOfPieces(n_, worker, dkv,
                [&](Range range, const Panels& to) { query(Goal::kGradients, range, blocks, to); });
    kernels_.finish_kv(problem_, dkv);
    kernels_.transpose(problem_, dkv, transposed);
    const auto key = [&](Goal goal, Range range, const Blocks& own) {
      kernels_.backward_key(problem_, goal, head, range, own, dkv, transposed);
    };
    SumMeansOfHead(m_, problem_.k, problem_.v, worker, blocks,
                   [&](Range range, const Blocks& own) { key(Goal::kMeans, range, own); });
    key(Goal::kGradients, {0, problem_.M}, blocks);
  }

  void MakeKv(Head head, int worker, const Blocks& blocks, const Panels& kv) const {
    SumOfPieces(m_, worker, kv, [&](Range range, const Panels& to) {
      kernels_.make_kv(problem_, head, range, blocks, to);
    });
    kernels_.finish_kv(problem_, kv);
  }

  // Sets `sum` to the sum of the matrices that run(range, matrix) makes of the pieces, added in
  // their order.
  template <class F>
  void SumOfPieces(const Pieces& pieces, int worker, const Panels& sum, const F& run) const {
    run(pieces.At(0), sum);
    if (pieces.count == 1) return;
    const Panels next = KvAt(piece_kv_, worker);
    for (std::int64_t piece = 1; piece < pieces.count; ++piece) {
      run(pieces.At(piece), next);
      for (std::int64_t panel = 0; panel < KvPanels(); ++panel) AddKvPanel(next, sum, panel);
    }
  }

  // Softmax over the sequence: sets `to` to the shifts and sums of a range. Every kSumTokens tokens
  // a new sum begins, in the worker's rows, and is merged into `to`.
  void SumColumns(const Operand& operand, Head head, Range range, int worker, float* to) const {
    const Stage& stage = operand.stage;
    const std::int64_t size = ColumnsSize(operand);
    const auto add = column_kernels_.add_to_columns[stage.parts - 1];
    const auto row_at = [&](std::int64_t token) {
      const std::int64_t elements =
          head.batch * operand.x.batch + head.head * operand.x.head + token * operand.x.token;
      return static_cast<const char*>(operand.x.data) + elements * SizeOf(dtype_);
    };
    std::int64_t begin = range.begin;
    do {
      float* sums = begin == range.begin ? to : rows_.At(worker);
      const std::int64_t end = std::min(range.end, begin + kSumTokens);
      column_kernels_.start_columns(sums, size);
      for (std::int64_t token = begin; token < end; token += rowops::kColumnTokens) {
        add({row_at(token), operand.x.token, std::min(end - token, rowops::kColumnTokens),
             stage.part, Padded(stage.part)},
            sums, token == begin);
      }
      if (sums != to) column_kernels_.merge_columns(to, sums, size);
      begin = end;
    } while (begin < range.end);
  }
  void SumColumnsOfHead(Head head, int worker) const {
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      const Pieces& pieces = PiecesOf(*operand);
      const std::int64_t size = ColumnsSize(*operand);
      float* columns = ColumnsAt(*operand, worker);
      float* next = rows_.At(worker) + 2 * size;
      SumColumns(*operand, head, pieces.At(0), worker, columns);
      for (std::int64_t piece = 1; piece < pieces.count; ++piece) {
        SumColumns(*operand, head, pieces.At(piece), worker, next);
        column_kernels_.merge_columns(columns, next, size);
      }
      column_kernels_.finish_columns(columns, size);
    }
  }

  // The means of two operands, if they need them: run(range, blocks) adds those of a piece.
  template <class F>
  void SumMeansOfHead(const Pieces& pieces, const Operand& a, const Operand& b, int worker,
                      const Blocks& blocks, const F& run) const {
    if (!a.stage.SumsColumns() && !b.stage.SumsColumns()) return;
    Blocks own = blocks;
    for (std::int64_t piece = 0; piece < pieces.count; ++piece) {
      SetMeans(own, a, b, [&](const Operand&) { return worker; });
      run(pieces.At(piece), own);
      for (const Operand* operand : {&a, &b}) {
        if (!operand->stage.SumsColumns()) continue;
        AddMeans(*operand, MeansAt(*operand, worker), ColumnsAt(*operand, worker), piece == 0);
      }
    }
  }
  // Gives `blocks` the memory where the means of two operands are added up, set to 0.
  template <class SlotOf>
  void SetMeans(Blocks& blocks, const Operand& a, const Operand& b, const SlotOf& slot_of) const {
    for (const Operand* operand : {&a, &b}) {
      if (!operand->stage.SumsColumns()) continue;
      float* means = MeansAt(*operand, slot_of(*operand));
      std::fill_n(means, ColumnsSize(*operand), 0.0f);
      blocks.means[operand->index] = means;
    }
  }
  // Adds the means of a piece to those of its head, or sets them for the first.
  void AddMeans(const Operand& operand, const float* from, float* columns, bool first) const {
    const std::int64_t size = ColumnsSize(operand);
    float* to = columns + 2 * size;
    if (first) {
      std::copy_n(from, size, to);
    } else {
      for (std::int64_t j = 0; j < size; ++j) to[j] += from[j];
    }
  }

  // Tasks that are pieces of a wave's heads.

  Blocks PieceBlocks(int worker, std::int64_t head) const {
    Blocks blocks = BlocksOf(worker);
    SetColumns(blocks, [&](const Operand& operand) { return head * PiecesOf(operand).count; });
    return blocks;
  }
  // Calls run(task, head, blocks) for all pieces of a wave; `head` is counted from its first.
  template <class F>
  void ForEachPiece(const Wave& wave, const Pieces& pieces, const F& run) const {
    RunTasks(wave.count * pieces.count, workers_, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / pieces.count;
      run(task, head, PieceBlocks(worker, head));
    });
  }

  void ForwardWave(const Wave& wave) const {
    SumColumnsOfWave(wave);
    SumKvOfWave(wave);
    RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs_, task * kv_slots_);
      kernels_.finish_kv(problem_, kv);
      if (problem_.kv.data != nullptr) {
        kernels_.store_kv(problem_, HeadOf(wave.first + task), kv);
      }
    });
    ForEachPiece(wave, n_, [&](std::int64_t task, std::int64_t head, const Blocks& blocks) {
      kernels_.forward(problem_, HeadOf(wave.first + head), n_.At(task % n_.count), blocks,
                       KvAt(kvs_, head * kv_slots_));
    });
  }

  void BackwardWave(const Wave& wave) const {
    SumColumnsOfWave(wave);
    if (!KeptKv()) SumKvOfWave(wave);
    RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs_, task * kv_slots_);
      if (KeptKv()) {
        kernels_.load_kv(problem_, HeadOf(wave.first + task), kv);
      } else {
        kernels_.finish_kv(problem_, kv);
      }
      kernels_.transpose(problem_, kv, TransposedAt(task));
    });
    const auto query = [&](Goal goal, std::int64_t piece, std::int64_t head, const Blocks& blocks,
                           const Panels& to) {
      kernels_.backward_query(problem_, goal, HeadOf(wave.first + head), n_.At(piece), blocks,
                              KvAt(kvs_, head * kv_slots_), TransposedAt(head), to);
    };
    SumMeansOfWave(wave, n_, problem_.q, problem_.g,
                   [&](std::int64_t piece, std::int64_t head, const Blocks& blocks) {
                     query(Goal::kMeans, piece, head, blocks, {});
                   });
    SumPiecesOfWave(wave, n_, dkv_slots_, dkvs_,
                    [&](std::int64_t piece, std::int64_t head, const Blocks& blocks,
                        const Panels& to) { query(Goal::kGradients, piece, head, blocks, to); });
    RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
      const Panels dkv = KvAt(dkvs_, task * dkv_slots_);
      kernels_.finish_kv(problem_, dkv);
      kernels_.transpose(problem_, dkv, TransposedAt(task));
    });
    const auto key = [&](Goal goal, std::int64_t piece, std::int64_t head, const Blocks& blocks) {
      kernels_.backward_key(problem_, goal, HeadOf(wave.first + head), m_.At(piece), blocks,
                            KvAt(dkvs_, head * dkv_slots_), TransposedAt(head));
    };
    SumMeansOfWave(wave, m_, problem_.k, problem_.v,
                   [&](std::int64_t piece, std::int64_t head, const Blocks& blocks) {
                     key(Goal::kMeans, piece, head, blocks);
                   });
    ForEachPiece(wave, m_, [&](std::int64_t task, std::int64_t head, const Blocks& blocks) {
      key(Goal::kGradients, task % m_.count, head, blocks);
    });
  }

  void SumKvOfWave(const Wave& wave) const {
    SumPiecesOfWave(
        wave, m_, kv_slots_, kvs_,
        [&](std::int64_t piece, std::int64_t head, const Blocks& blocks, const Panels& to) {
          kernels_.make_kv(problem_, HeadOf(wave.first + head), m_.At(piece), blocks, to);
        });
  }

  // The sum of what run(piece, head, blocks, matrix) makes of each piece of each head, added in
  // their order, in the first of the head's slots. As many pieces as there are slots are at work.
  template <class F>
  void SumPiecesOfWave(const Wave& wave, const Pieces& pieces, std::int64_t slots,
                       const Arrays& kvs, const F& run) const {
    for (std::int64_t first = 0; first < pieces.count;) {
      const std::int64_t slot = first == 0 ? 0 : 1;
      const std::int64_t count = std::min(slots - slot, pieces.count - first);
      RunTasks(wave.count * count, workers_, [&](std::int64_t task, int worker) {
        const std::int64_t head = task / count, i = task % count;
        run(first + i, head, PieceBlocks(worker, head), KvAt(kvs, head * slots + slot + i));
      });
      const std::int64_t end = slot + count;
      if (end > 1) {
        RunTasks(wave.count * KvPanels(), workers_, [&](std::int64_t task, int) {
          const std::int64_t sum = task / KvPanels() * slots;
          for (std::int64_t i = 1; i < end; ++i) {
            AddKvPanel(KvAt(kvs, sum + i), KvAt(kvs, sum), task % KvPanels());
          }
        });
      }
      first += count;
    }
  }

  void SumColumnsOfWave(const Wave& wave) const {
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      const Pieces& pieces = PiecesOf(*operand);
      RunTasks(wave.count * pieces.count, workers_, [&](std::int64_t task, int worker) {
        SumColumns(*operand, HeadOf(wave.first + task / pieces.count),
                   pieces.At(task % pieces.count), worker, ColumnsAt(*operand, task));
      });
      RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
        float* to = ColumnsAt(*operand, task * pieces.count);
        for (std::int64_t piece = 1; piece < pieces.count; ++piece) {
          column_kernels_.merge_columns(to, ColumnsAt(*operand, task * pieces.count + piece),
                                        ColumnsSize(*operand));
        }
        column_kernels_.finish_columns(to, ColumnsSize(*operand));
      });
    }
  }

  // The means of two operands, if they have any: run(piece, head, blocks) adds those of a piece.
  template <class F>
  void SumMeansOfWave(const Wave& wave, const Pieces& pieces, const Operand& a, const Operand& b,
                      const F& run) const {
    if (!a.stage.SumsColumns() && !b.stage.SumsColumns()) return;
    ForEachPiece(wave, pieces, [&](std::int64_t task, std::int64_t head, Blocks blocks) {
      SetMeans(blocks, a, b, [&](const Operand&) { return task; });
      run(task % pieces.count, head, blocks);
    });
    for (std::int64_t task = 0; task < wave.count * pieces.count; ++task) {
      const std::int64_t first = task / pieces.count * pieces.count;
      for (const Operand* operand : {&a, &b}) {
        if (!operand->stage.SumsColumns()) continue;
        AddMeans(*operand, MeansAt(*operand, task), ColumnsAt(*operand, first), task == first);
      }
    }
  }

  TargetIndex target_;
  DType dtype_;
  Problem problem_;
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
  Arrays d_blocks_, e_blocks_, gradients_, tables_, rows_;
  std::array<Arrays, kOperands> columns_{};
  std::array<Arrays, kOperands> means_{};
};

}  // namespace

// Empty tensors may have any number of heads and tokens: where there is nothing to write, or
// nothing to add up, none of them is visited.

void Forward(const Call& call) {
  Call own = call;
  Problem& problem = own.problem;
  const bool keeps_kv = problem.kv.data != nullptr && problem.D > 0;
  if (problem.B == 0 || problem.H == 0 || problem.E == 0) return;
  if (problem.N == 0 && !keeps_kv) return;
  if (problem.D == 0) problem.M = 0;
  Run(own).Forward();
}

void Backward(const Call& call) {
  const Problem& problem = call.problem;
  if (problem.B == 0 || problem.H == 0) return;
  if ((problem.N == 0 && problem.M == 0) || (problem.D == 0 && problem.E == 0)) return;
  Run(call).Backward();
}

}  // namespace attnops::linear_attention
