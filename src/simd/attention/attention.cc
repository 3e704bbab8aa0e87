// The schedule of gated linear attention.
#include "src/simd/attention/attention.h"

#include <algorithm>
#include <array>

#include "src/core/numeric.h"
#include "src/core/parallel.h"
#include "src/core/scratch.h"

namespace attnops::attention {
namespace {

// With as many heads as this, or short sequences, a task is a head. Else the sequences are cut into
// pieces, so that there are about so many tasks: more than any sensible number of threads.
constexpr std::int64_t kTasks = 64;
// A piece has at least so many tokens, since its KV has to be written, read and added.
constexpr std::int64_t kPieceTokens = 1024;
// Bound of the KVs of all pieces.
constexpr std::int64_t kPieceBytes = 16 << 20;
// Calls of fewer multiply-adds are not worth waking a thread for.
constexpr double kSerialWork = 5e5;
// Softmax over the sequence: tokens whose sums are added to one another one by one.
constexpr std::int64_t kColumnPiece = 1024;

Kernels KernelsFor(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Float32Kernels();
    case DType::kFloat16:
      return Float16Kernels();
    case DType::kBFloat16:
      return BFloat16Kernels();
  }
  return {};
}

// How a sequence is cut.
struct Pieces {
  std::int64_t tokens;  // of the sequence
  std::int64_t size;    // tokens of a piece, but the last
  std::int64_t count;

  Pieces(std::int64_t all, std::int64_t most)
      : tokens(all),
        size(std::max(RoundUp(DivideUp(all, std::max<std::int64_t>(most, 1)), kBlock), kBlock)),
        count(std::max<std::int64_t>(DivideUp(all, size), 1)) {}

  Range At(std::int64_t piece) const {
    return {piece * size, std::min(tokens, (piece + 1) * size)};
  }
};

// Arrays of one size.
struct Arrays {
  float* data = nullptr;
  std::int64_t stride = 0;

  float* At(std::int64_t i) const { return data + i * stride; }
};

// Arrays of floats, wished for one by one and then taken from one scratch memory. Those of a worker
// follow one another: alternating with those of another worker, they made both of them slower.
class Wishes {
 public:
  // `count` arrays of `size` floats, or one for each worker.
  void Add(Arrays& arrays, std::int64_t size, std::int64_t count) {
    wishes_[count_++] = {&arrays, Padded(size), count};
    shared_ += Padded(size) * count;
  }
  void AddForWorkers(Arrays& arrays, std::int64_t size) {
    wishes_[count_++] = {&arrays, Padded(size), kForWorkers};
    worker_ += Padded(size);
  }
  std::size_t Bytes(int workers) const {
    return static_cast<std::size_t>(shared_ + workers * worker_) * sizeof(float);
  }
  void Take(Scratch& scratch, int workers) const {
    float* of_worker = scratch.Take<float>(workers * worker_);
    for (int i = 0; i < count_; ++i) {
      const Wish& wish = wishes_[i];
      if (wish.count == kForWorkers) {
        *wish.arrays = {of_worker, worker_};
        of_worker += wish.size;
      } else {
        *wish.arrays = {scratch.Take<float>(wish.size * wish.count), wish.size};
      }
    }
  }

 private:
  static constexpr std::int64_t kForWorkers = -1;
  struct Wish {
    Arrays* arrays;
    std::int64_t size, count;
  };

  static std::int64_t Padded(std::int64_t size) {
    return static_cast<std::int64_t>(Scratch::Size<float>(size) / sizeof(float));
  }

  std::array<Wish, 24> wishes_;
  int count_ = 0;
  std::int64_t shared_ = 0, worker_ = 0;  // floats
};

// One pass: how it is cut into tasks, by its sizes alone, and its memory.
class Run {
 public:
  explicit Run(const Call& call)
      : problem_(call.problem),
        kernels_(KernelsFor(call.dtype)),
        heads_(problem_.B * problem_.H),
        inner_(problem_.inner_parts * Padded(problem_.inner_part)),
        n_(problem_.N, MostPieces(problem_.N)),
        m_(problem_.M, MostPieces(problem_.M)),
        whole_(n_.count == 1 && m_.count == 1) {
    const double work = static_cast<double>(heads_) * static_cast<double>(inner_) *
                        static_cast<double>(problem_.E) *
                        static_cast<double>(problem_.N + problem_.M);
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
    for (Operand* operand : {&problem_.q, &problem_.k, &problem_.v, &problem_.g}) {
      operands_[operand->index] = operand;
      encodings_[operand->index] = EncodingKernelsFor(
          operand->stage.parts == 2 ? Encoding::kRotate : Encoding::kCosine, call.dtype,
          Pass::kForward, Activation::Kind::kSoftmax, SoftmaxAxis::kSequence);
      Stage& stage = operand->stage;
      if (stage.encodes) stage.angles = AnglesOf(stage.source, stage.part, kernels_.chunk);
    }
    problem_.fill_table = encodings_[problem_.q.index].fill_table;
  }

  void Forward() {
    const bool keeps = problem_.kv.data != nullptr;
    Arrays kvs;
    Wishes wishes;
    WishBlocks(Pass::kForward, wishes);
    WishForTasks(wishes, kvs, KvSize(), m_.count);
    Scratch scratch(wishes.Bytes(workers_) + AnglesBytes());
    wishes.Take(scratch, workers_);
    MakeAngles(scratch);
    if (whole_) {
      RunTasks(heads_, workers_, [&](std::int64_t task, int worker) {
        const Head head = HeadOf(task);
        const Blocks blocks = BlocksOf(worker, task);
        SumColumnsOfHead(head, worker);
        const Panels kv = KvAt(kvs, worker);
        MakeKv(head, blocks, kv);
        if (keeps) kernels_.store_kv(problem_, head, kv);
        kernels_.forward(problem_, head, {0, problem_.N}, blocks, kv);
      });
      return;
    }
    SumColumnsOfPieces();
    SumKv(kvs);
    RunTasks(heads_, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs, task * m_.count);
      kernels_.finish_kv(problem_, kv);
      if (keeps) kernels_.store_kv(problem_, HeadOf(task), kv);
    });
    RunTasks(heads_ * n_.count, workers_, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / n_.count;
      kernels_.forward(problem_, HeadOf(head), n_.At(task % n_.count), PieceBlocks(worker, head),
                       KvAt(kvs, head * m_.count));
    });
  }

  void Backward() {
    const bool kept = problem_.kept_kv.data != nullptr;
    // Of each head at work: KV, dKV, and KVᵀ, which dKVᵀ takes the place of.
    const std::int64_t kv_count = kept ? 1 : m_.count;
    Arrays kvs, dkvs, transposed;
    Wishes wishes;
    WishBlocks(Pass::kBackward, wishes);
    WishForTasks(wishes, dkvs, KvSize(), n_.count);
    WishForTasks(wishes, transposed, TransposedSize(), 1);
    WishForTasks(wishes, kvs, KvSize(), kv_count);
    Scratch scratch(wishes.Bytes(workers_) + AnglesBytes());
    wishes.Take(scratch, workers_);
    MakeAngles(scratch);
    if (whole_) {
      RunTasks(heads_, workers_, [&](std::int64_t task, int worker) {
        const Head head = HeadOf(task);
        const Blocks blocks = BlocksOf(worker, task);
        const Panels kv = KvAt(kvs, worker);
        const Panels dkv = KvAt(dkvs, worker);
        const Panels t = TransposedAt(transposed, worker);
        const Range n{0, problem_.N}, m{0, problem_.M};
        SumColumnsOfHead(head, worker);
        if (kept) {
          kernels_.load_kv(problem_, head, kv);
        } else {
          MakeKv(head, blocks, kv);
        }
        kernels_.transpose(problem_, kv, t);
        if (StartMeans(blocks, problem_.q, problem_.g)) {
          kernels_.backward_query(problem_, Goal::kMeans, head, n, blocks, kv, t, dkv);
        }
        kernels_.backward_query(problem_, Goal::kGradients, head, n, blocks, kv, t, dkv);
        kernels_.finish_kv(problem_, dkv);
        kernels_.transpose(problem_, dkv, t);
        if (StartMeans(blocks, problem_.k, problem_.v)) {
          kernels_.backward_key(problem_, Goal::kMeans, head, m, blocks, dkv, t);
        }
        kernels_.backward_key(problem_, Goal::kGradients, head, m, blocks, dkv, t);
      });
      return;
    }
    SumColumnsOfPieces();
    if (!kept) SumKv(kvs);
    RunTasks(heads_, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs, task * kv_count);
      if (kept) {
        kernels_.load_kv(problem_, HeadOf(task), kv);
      } else {
        kernels_.finish_kv(problem_, kv);
      }
      kernels_.transpose(problem_, kv, TransposedAt(transposed, task));
    });
    RunGoals(n_, problem_.q, problem_.g,
             [&](Goal goal, std::int64_t task, std::int64_t head, const Blocks& blocks) {
               kernels_.backward_query(problem_, goal, HeadOf(head), n_.At(task % n_.count), blocks,
                                       KvAt(kvs, head * kv_count), TransposedAt(transposed, head),
                                       KvAt(dkvs, task));
             });
    Merge(dkvs, n_.count);
    RunTasks(heads_, workers_, [&](std::int64_t task, int) {
      const Panels dkv = KvAt(dkvs, task * n_.count);
      kernels_.finish_kv(problem_, dkv);
      kernels_.transpose(problem_, dkv, TransposedAt(transposed, task));
    });
    RunGoals(m_, problem_.k, problem_.v,
             [&](Goal goal, std::int64_t task, std::int64_t head, const Blocks& blocks) {
               kernels_.backward_key(problem_, goal, HeadOf(head), m_.At(task % m_.count), blocks,
                                     KvAt(dkvs, head * n_.count), TransposedAt(transposed, head));
             });
  }

 private:
  std::int64_t MostPieces(std::int64_t tokens) const {
    const std::int64_t fit =
        kPieceBytes / std::max<std::int64_t>(
                          static_cast<std::int64_t>(Scratch::Size<float>(heads_ * KvSize())), 1);
    return heads_ >= kTasks ? 1 : std::min({DivideUp(kTasks, heads_), tokens / kPieceTokens, fit});
  }

  std::int64_t Padded(std::int64_t n) const { return RoundUp(n, kernels_.chunk); }
  std::int64_t KvSize() const { return Panels::Size(inner_, problem_.E, kernels_.chunk); }
  std::int64_t TransposedSize() const {
    return Panels::Size(Padded(problem_.E), inner_, kernels_.chunk);
  }
  std::int64_t BlockSize(std::int64_t columns) const {
    return Panels::Size(kBlock, columns, kernels_.chunk);
  }
  const Pieces& PiecesOf(const Operand& operand) const {
    return operand.index == problem_.q.index || operand.index == problem_.g.index ? n_ : m_;
  }
  // Floats of a row of columns.
  std::int64_t ColumnsSize(const Operand& operand) const {
    return operand.stage.parts * Padded(operand.stage.part);
  }

  // An array for each task: where that is a head, each worker has one, else each piece of a head.
  void WishForTasks(Wishes& wishes, Arrays& arrays, std::int64_t size, std::int64_t pieces) const {
    if (whole_) {
      wishes.AddForWorkers(arrays, size);
    } else {
      wishes.Add(arrays, size, heads_ * pieces);
    }
  }

  // The memory of the workers' blocks and of columns.
  void WishBlocks(Pass pass, Wishes& wishes) {
    wishes.AddForWorkers(d_blocks_, BlockSize(inner_));
    wishes.AddForWorkers(e_blocks_, BlockSize(problem_.E));
    std::int64_t row = 0;
    std::int64_t table = 0;
    bool softmax = false;
    for (const Operand* operand : operands_) {
      const Stage& stage = operand->stage;
      row = std::max(row, ColumnsSize(*operand));
      softmax = softmax || stage.SumsRows() || stage.SumsColumns();
      if (stage.encodes) {
        const Angles& angles = stage.angles;
        // On a line, one for each block of positions that a block of tokens meets.
        const std::int64_t rows = angles.OnLine() ? kBlock / angles.block + 2 : kBlock;
        table = rows * angles.RowSize();
      }
    }
    wishes.AddForWorkers(tables_, table);
    wishes.AddForWorkers(gradients_, pass == Pass::kBackward && softmax ? BlockSize(row) : 0);
    wishes.AddForWorkers(rows_, softmax ? kMaxRowSet * 2 * row : 0);
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      const std::int64_t size = ColumnsSize(*operand);
      const std::int64_t pieces = PiecesOf(*operand).count;
      WishForTasks(wishes, columns_[operand->index], 3 * size, pieces);
      if (pass == Pass::kBackward && !whole_) {
        wishes.Add(means_[operand->index], size, heads_ * pieces);
      }
    }
  }

  // q and k have the same angles but for their grid: the tables of the longer one serve both.
  std::size_t AnglesBytes() const {
    return problem_.q.stage.encodes ? AnglesScratch(problem_.q.stage.angles) : 0;
  }
  void MakeAngles(Scratch& scratch) {
    if (!problem_.q.stage.encodes) return;
    Angles* longer = &problem_.q.stage.angles;
    Angles* other = &problem_.k.stage.angles;
    if (problem_.M > problem_.N) std::swap(longer, other);
    StartAngles(encodings_[problem_.q.index], *problem_.q.stage.source.theta, scratch, *longer);
    other->turns = longer->turns;
    other->poison = longer->poison;
    other->steps = longer->steps;
  }

  Blocks BlocksOf(int worker) const {
    const std::int64_t panel = Panels::PanelSize(kBlock, kernels_.chunk);
    Blocks blocks;
    blocks.d = {d_blocks_.At(worker), panel};
    blocks.e = {e_blocks_.At(worker), panel};
    blocks.gradient = {gradients_.At(worker), panel};
    blocks.table = tables_.At(worker);
    blocks.rows = rows_.At(worker);
    return blocks;
  }
  // For a task that is a head: the other workers take the heads in between.
  Blocks BlocksOf(int worker, std::int64_t task) const {
    Blocks blocks = BlocksOf(worker);
    if (task + workers_ < heads_) blocks.next = HeadOf(task + workers_);
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      float* columns = ColumnsAt(*operand, worker);
      blocks.columns[operand->index] = columns;
      blocks.means[operand->index] = columns + 2 * ColumnsSize(*operand);
    }
    return blocks;
  }
  // For one that is a piece of a head.
  Blocks PieceBlocks(int worker, std::int64_t head) const {
    Blocks blocks = BlocksOf(worker);
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      blocks.columns[operand->index] = ColumnsAt(*operand, head * PiecesOf(*operand).count);
    }
    return blocks;
  }
  Panels KvAt(const Arrays& kvs, std::int64_t i) const {
    return {kvs.At(i), Panels::PanelSize(inner_, kernels_.chunk)};
  }
  Panels TransposedAt(const Arrays& transposed, std::int64_t i) const {
    return {transposed.At(i), Panels::PanelSize(Padded(problem_.E), kernels_.chunk)};
  }
  Head HeadOf(std::int64_t i) const { return {i / problem_.H, i % problem_.H}; }

  void MakeKv(Head head, const Blocks& blocks, const Panels& kv) const {
    kernels_.add_kv(problem_, head, {0, problem_.M}, blocks, kv, false);
    kernels_.finish_kv(problem_, kv);
  }

  // The sum of each head, in place of its first piece's.
  void SumKv(const Arrays& kvs) const {
    RunTasks(heads_ * m_.count, workers_, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / m_.count;
      kernels_.add_kv(problem_, HeadOf(head), m_.At(task % m_.count), PieceBlocks(worker, head),
                      KvAt(kvs, task), false);
    });
    Merge(kvs, m_.count);
  }

  // Adds the `count` pieces of each head in their order.
  void Merge(const Arrays& kvs, std::int64_t count) const {
    if (count == 1) return;
    const std::int64_t panels = DivideUp(problem_.E, kernels_.chunk);
    RunTasks(heads_ * panels, workers_, [&](std::int64_t task, int) {
      const std::int64_t first = task / panels * count;
      const auto at = [&](std::int64_t piece) {
        const Panels kv = KvAt(kvs, first + piece);
        return kv.data + task % panels * kv.panel;
      };
      for (std::int64_t piece = 1; piece < count; ++piece) {
        kernels_.add_panel(problem_, at(piece), at(0));
      }
    });
  }

  // Softmax over the sequence. A slot of columns, of a head or a piece of it, has rows of shifts,
  // of sums that become scales, and of means.
  float* ColumnsAt(const Operand& operand, std::int64_t slot) const {
    return columns_[operand.index].At(slot);
  }

  // Shifts and sums of a range; those of its later parts are in the worker's rows until they are
  // merged.
  void SumColumns(const Operand& operand, Head head, Range range, int worker, float* to) const {
    const EncodingKernels& kernels = encodings_[operand.index];
    const Stage& stage = operand.stage;
    const std::int64_t size = ColumnsSize(operand);
    EncodingProblem rows{};
    rows.x = {operand.x.data, operand.x.batch, operand.x.row, operand.x.head};
    rows.part = stage.part;
    rows.encoded = stage.part;
    const AngleTable table{nullptr, 1, Padded(stage.part)};
    std::int64_t begin = range.begin;
    do {
      float* sums = begin == range.begin ? to : rows_.At(worker);
      const std::int64_t end = std::min(range.end, begin + kColumnPiece);
      const EncodingColumns columns{sums, head.batch, head.head, 1, 2 * size};
      kernels.start_columns(sums, size);
      for (std::int64_t token = begin; token < end; token += kColumnTokens) {
        kernels.add_columns[0](rows,
                               {head.batch, head.batch + 1, token,
                                std::min(end, token + kColumnTokens), head.head, head.head + 1},
                               table, columns, token == begin);
      }
      if (sums != to) kernels.merge_columns(to, sums, size);
      begin = end;
    } while (begin < range.end);
  }
  void SumColumnsOfHead(Head head, int worker) const {
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      float* columns = ColumnsAt(*operand, worker);
      SumColumns(*operand, head, {0, PiecesOf(*operand).tokens}, worker, columns);
      encodings_[operand->index].finish_columns(columns, ColumnsSize(*operand));
    }
  }
  void SumColumnsOfPieces() const {
    for (const Operand* operand : operands_) {
      if (!operand->stage.SumsColumns()) continue;
      const Pieces& pieces = PiecesOf(*operand);
      RunTasks(heads_ * pieces.count, workers_, [&](std::int64_t task, int worker) {
        SumColumns(*operand, HeadOf(task / pieces.count), pieces.At(task % pieces.count), worker,
                   ColumnsAt(*operand, task));
      });
      const EncodingKernels& kernels = encodings_[operand->index];
      RunTasks(heads_, workers_, [&](std::int64_t task, int) {
        float* to = ColumnsAt(*operand, task * pieces.count);
        for (std::int64_t piece = 1; piece < pieces.count; ++piece) {
          kernels.merge_columns(to, ColumnsAt(*operand, task * pieces.count + piece),
                                ColumnsSize(*operand));
        }
        kernels.finish_columns(to, ColumnsSize(*operand));
      });
    }
  }

  // Sets the means of two operands to 0; whether one of them has any.
  bool StartMeans(const Blocks& blocks, const Operand& a, const Operand& b) const {
    for (const Operand* operand : {&a, &b}) {
      float* means = blocks.means[operand->index];
      if (means != nullptr) std::fill_n(means, ColumnsSize(*operand), 0.0f);
    }
    return a.stage.SumsColumns() || b.stage.SumsColumns();
  }

  // Both goals of a pass over the pieces of a sequence; run(goal, task, head, blocks).
  template <class Piece>
  void RunGoals(const Pieces& pieces, const Operand& a, const Operand& b, const Piece& run) const {
    if (a.stage.SumsColumns() || b.stage.SumsColumns()) {
      RunTasks(heads_ * pieces.count, workers_, [&](std::int64_t task, int worker) {
        Blocks blocks = PieceBlocks(worker, task / pieces.count);
        for (const Operand* operand : {&a, &b}) {
          if (!operand->stage.SumsColumns()) continue;
          blocks.means[operand->index] = MeansAt(*operand, task);
        }
        StartMeans(blocks, a, b);
        run(Goal::kMeans, task, task / pieces.count, blocks);
      });
      for (const Operand* operand : {&a, &b}) {
        if (operand->stage.SumsColumns()) MergeMeans(*operand, pieces.count);
      }
    }
    RunTasks(heads_ * pieces.count, workers_, [&](std::int64_t task, int worker) {
      run(Goal::kGradients, task, task / pieces.count, PieceBlocks(worker, task / pieces.count));
    });
  }
  float* MeansAt(const Operand& operand, std::int64_t slot) const {
    return means_[operand.index].At(slot);
  }
  // The sum of the pieces of each head, in its columns.
  void MergeMeans(const Operand& operand, std::int64_t count) const {
    const std::int64_t size = ColumnsSize(operand);
    for (std::int64_t head = 0; head < heads_; ++head) {
      float* to = ColumnsAt(operand, head * count) + 2 * size;
      std::copy_n(MeansAt(operand, head * count), size, to);
      for (std::int64_t piece = 1; piece < count; ++piece) {
        const float* from = MeansAt(operand, head * count + piece);
        for (std::int64_t j = 0; j < size; ++j) to[j] += from[j];
      }
    }
  }

  Problem problem_;
  Kernels kernels_;
  std::array<Operand*, kOperands> operands_{};
  std::array<EncodingKernels, kOperands> encodings_{};
  std::int64_t heads_;
  std::int64_t inner_;  // rows of KV
  Pieces n_, m_;
  bool whole_;
  int workers_ = 1;
  Arrays d_blocks_, e_blocks_, gradients_, tables_, rows_;
  std::array<Arrays, kOperands> columns_{};
  std::array<Arrays, kOperands> means_{};
};

}  // namespace

void Forward(const Call& call) {
  if (call.problem.B * call.problem.H > 0) Run(call).Forward();
}

void Backward(const Call& call) {
  if (call.problem.B * call.problem.H > 0) Run(call).Backward();
}

}  // namespace attnops::attention
