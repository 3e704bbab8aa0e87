// The schedule of gated linear attention.
#include <algorithm>

#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/linear_attention/kernels.h"
#include "src/ops/linear_attention/plan.h"
#include "src/rowops/kernels.h"

namespace attnops::linear_attention {
namespace {

// Softmax over the sequence: after this many tokens of a piece a new sum begins, which is merged
// with the one before. This bounds the rounding error of a sum.
constexpr std::int64_t kSumTokens = 1024;

// One pass.
class Run : public Plan {
 public:
  using Plan::Plan;

  void Forward() {
    ScratchPlan plan;
    PlanForward(plan);
    Scratch scratch(Bytes(plan));
    Take(plan, scratch);
    if (whole_) {
      RunTasks(heads_, workers_, [&](std::int64_t task, int worker) { ForwardHead(task, worker); });
    } else {
      ForEachWave([&](const Wave& wave) { ForwardWave(wave); });
    }
  }

  void Backward() {
    ScratchPlan plan;
    PlanBackward(plan);
    Scratch scratch(Bytes(plan));
    Take(plan, scratch);
    if (whole_) {
      RunTasks(heads_, workers_,
               [&](std::int64_t task, int worker) { BackwardHead(task, worker); });
    } else {
      ForEachWave([&](const Wave& wave) { BackwardWave(wave); });
    }
    StoreTheta();
  }

 private:
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
    LoadOrMakeKv(head, worker, blocks, kv);
    if (problem_.kv.data != nullptr) kernels_.store_kv(problem_, head, kv);
    CompleteKv(kv);
    kernels_.forward(problem_, head, {0, problem_.N}, blocks, kv);
  }

  void BackwardHead(std::int64_t task, int worker) const {
    const Head head = HeadOf(task);
    const Blocks blocks = HeadBlocks(worker, task);
    const Panels kv = KvAt(kvs_, worker);
    const Panels dkv = KvAt(dkvs_, worker);
    const Panels transposed = TransposedAt(worker);  // KVᵀ, then dKVᵀ
    SumColumnsOfHead(head, worker);
    if (half_ == Half::kKeys) {
      kernels_.load_kv(problem_, head, dkv);
      CompleteKv(dkv, &transposed);
      return BackwardKeysOfHead(head, worker, blocks, dkv, transposed);
    }
    LoadOrMakeKv(head, worker, blocks, kv);
    CompleteKv(kv, &transposed);
    const auto query = [&](Goal goal, Range range, const Blocks& own, const Panels& to) {
      kernels_.backward_query(problem_, goal, head, range, own, kv, transposed, to);
    };
    SumMeansOfHead(n_, problem_.q, problem_.g, worker, blocks,
                   [&](Range range, const Blocks& own) { query(Goal::kMeans, range, own, dkv); });
    SumOfPieces(n_, worker, dkv,
                [&](Range range, const Panels& to) { query(Goal::kGradients, range, blocks, to); });
    kernels_.finish_kv(problem_, dkv);
    if (half_ == Half::kQueries) return kernels_.store_kv(problem_, head, dkv);
    CompleteKv(dkv, &transposed);
    BackwardKeysOfHead(head, worker, blocks, dkv, transposed);
  }

  void BackwardKeysOfHead(Head head, int worker, const Blocks& blocks, const Panels& dkv,
                          const Panels& transposed) const {
    const auto key = [&](Goal goal, Range range, const Blocks& own) {
      kernels_.backward_key(problem_, goal, head, range, own, dkv, transposed);
    };
    SumMeansOfHead(m_, problem_.k, problem_.v, worker, blocks,
                   [&](Range range, const Blocks& own) { key(Goal::kMeans, range, own); });
    key(Goal::kGradients, {0, problem_.M}, blocks);
  }

  // Makes a finished KV, or dKV, the operand of products, and its transpose if that is given.
  void CompleteKv(const Panels& kv, const Panels* transposed = nullptr) const {
    if (transposed != nullptr) kernels_.transpose(problem_, kv, *transposed);
    if (problem_.dot == nullptr) return;
    const std::int64_t columns = Padded(problem_.E);
    kernels_.pair_rows(kv, inner_, columns);
    if (transposed != nullptr) kernels_.pair_rows(*transposed, columns, inner_);
  }

  void LoadOrMakeKv(Head head, int worker, const Blocks& blocks, const Panels& kv) const {
    if (KeptKv()) return kernels_.load_kv(problem_, head, kv);
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
    if (!KeptKv()) SumKvOfWave(wave);
    RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs_, task * kv_slots_);
      LoadOrFinishKv(wave, task, kv);
      if (problem_.kv.data != nullptr) {
        kernels_.store_kv(problem_, HeadOf(wave.first + task), kv);
      }
      CompleteKv(kv);
    });
    ForEachPiece(wave, n_, [&](std::int64_t task, std::int64_t head, const Blocks& blocks) {
      kernels_.forward(problem_, HeadOf(wave.first + head), n_.At(task % n_.count), blocks,
                       KvAt(kvs_, head * kv_slots_));
    });
  }

  void LoadOrFinishKv(const Wave& wave, std::int64_t task, const Panels& kv) const {
    if (KeptKv()) {
      kernels_.load_kv(problem_, HeadOf(wave.first + task), kv);
    } else {
      kernels_.finish_kv(problem_, kv);
    }
  }

  void BackwardWave(const Wave& wave) const {
    SumColumnsOfWave(wave);
    if (half_ == Half::kKeys) {
      RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
        const Panels dkv = KvAt(dkvs_, task * dkv_slots_);
        kernels_.load_kv(problem_, HeadOf(wave.first + task), dkv);
        const Panels transposed = TransposedAt(task);
        CompleteKv(dkv, &transposed);
      });
      return BackwardKeysOfWave(wave);
    }
    if (!KeptKv()) SumKvOfWave(wave);
    RunTasks(wave.count, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs_, task * kv_slots_);
      LoadOrFinishKv(wave, task, kv);
      const Panels transposed = TransposedAt(task);
      CompleteKv(kv, &transposed);
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
      if (half_ == Half::kQueries) {
        return kernels_.store_kv(problem_, HeadOf(wave.first + task), dkv);
      }
      const Panels transposed = TransposedAt(task);
      CompleteKv(dkv, &transposed);
    });
    if (half_ != Half::kQueries) BackwardKeysOfWave(wave);
  }

  void BackwardKeysOfWave(const Wave& wave) const {
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
  if (problem.D == 0 && problem.E == 0) return;
  if (problem.N == 0 && problem.M == 0 && call.half != Half::kQueries) return;
  Run(call).Backward();
}

}  // namespace attnops::linear_attention
