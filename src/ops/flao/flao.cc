// Checks and schedule of flao.
#include "attnops/flao.h"

#include <algorithm>
#include <utility>

#include "src/core/checks.h"
#include "src/core/numeric.h"
#include "src/core/parallel.h"
#include "src/core/scratch.h"
#include "src/ops/flao/kernels.h"

namespace attnops {
namespace {

using flao::Blocks;
using flao::Head;
using flao::kBlock;
using flao::Kernels;
using flao::Problem;
using flao::Range;

constexpr char kOp[] = "flao";

// With as many heads as this a task is a head. With fewer their sequences are cut into pieces,
// so that there are about so many tasks: more than any sensible number of threads.
constexpr std::int64_t kTasks = 64;
// A piece has at least so many tokens, since its KV has to be written, read and added.
constexpr std::int64_t kPieceTokens = 1024;
// Bound of the KVs of all pieces.
constexpr std::int64_t kPieceBytes = 16 << 20;
// Calls of fewer multiply-adds are not worth waking a thread for.
constexpr double kSerialWork = 5e5;

void CheckInputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                 const ConstTensorView& g) {
  CheckRank(kOp, "q", q, 4, "(B,H,N,D)");
  CheckRank(kOp, "k", k, 4, "(B,H,M,D)");
  CheckRank(kOp, "v", v, 4, "(B,H,M,E)");
  CheckRank(kOp, "g", g, 4, "(B,H,N,E)");
  const std::pair<const char*, const ConstTensorView&> others[] = {{"k", k}, {"v", v}, {"g", g}};
  for (const auto& [name, view] : others) {
    CheckAxis(kOp, name, view, 0, "batches", "q", q.shape(0));
    CheckAxis(kOp, name, view, 1, "heads", "q", q.shape(1));
  }
  CheckAxis(kOp, "k", k, 3, "features", "q", q.shape(3));
  CheckAxis(kOp, "v", v, 2, "tokens", "k", k.shape(2));
  CheckAxis(kOp, "g", g, 2, "tokens", "q", q.shape(2));
  CheckAxis(kOp, "g", g, 3, "features", "v", v.shape(3));
  for (const auto& [name, view] : others) CheckSameType(kOp, name, view, "q", q);
}

// A kept tensor: its shape and type.
void CheckKept(const char* name, const ConstTensorView& view, const Dims& shape, DType dtype) {
  CheckShape(kOp, name, view, shape);
  if (view.dtype() != dtype) {
    Fail(kOp, name, " must be ", Name(dtype), "; it is ", Name(view.dtype()));
  }
  CheckView(kOp, name, view);
}

Dims KvShape(const ConstTensorView& q, const ConstTensorView& v) {
  return {q.shape(0), q.shape(1), q.shape(3), v.shape(3)};
}
DType QkvType(const ConstTensorView& q) {
  return q.dtype() == DType::kFloat16 ? DType::kFloat32 : q.dtype();
}

void CheckLike(const char* name, const TensorView& view, const char* other_name,
               const ConstTensorView& other) {
  CheckSameShape(kOp, name, view, other_name, other);
  CheckSameType(kOp, name, view, other_name, other);
  CheckOutput(kOp, name, view);
}

flao::Input InputOf(const ConstTensorView& view) {
  return {view.data(), view.stride(0), view.stride(1), view.stride(2)};
}
flao::Output OutputOf(const TensorView& view) {
  return {view.data(), view.stride(0), view.stride(1), view.stride(2)};
}

Problem ProblemOf(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  const ConstTensorView& g) {
  Problem problem{q.shape(0), q.shape(1), q.shape(2), k.shape(2), q.shape(3),
                  v.shape(3), InputOf(q), InputOf(k), InputOf(v), InputOf(g),
                  {},         {},         {},         {},         {},
                  {},         {},         {},         {},         {}};
  return problem;
}

Kernels KernelsFor(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return flao::Float32Kernels();
    case DType::kFloat16:
      return flao::Float16Kernels();
    case DType::kBFloat16:
      return flao::BFloat16Kernels();
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

// A call: how it is cut into tasks, by its sizes alone, and its memory.
class Call {
 public:
  Call(const Problem& problem, DType dtype)
      : problem_(problem),
        kernels_(KernelsFor(dtype)),
        heads_(problem.B * problem.H),
        whole_(heads_ >= kTasks),
        d_rows_(RoundUp(problem.D, kernels_.chunk)),
        e_rows_(RoundUp(problem.E, kernels_.chunk)),
        n_(problem.N, MostPieces(problem.N)),
        m_(problem.M, MostPieces(problem.M)) {
    const double work = static_cast<double>(heads_) * static_cast<double>(problem.D) *
                        static_cast<double>(problem.E) * static_cast<double>(problem.N + problem.M);
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
  }

  void Forward() {
    const Kernels& kernels = kernels_;
    if (whole_) {
      Scratch scratch(static_cast<std::size_t>(workers_) * (BlocksBytes() + Bytes(KvSize())));
      TakeBlocks(scratch);
      float* kvs = scratch.Take<float>(workers_ * KvSize());
      RunTasks(heads_, workers_, [&](std::int64_t task, int worker) {
        const Head head = HeadOf(task);
        const Blocks blocks = BlocksOf(worker, task);
        const Panels kv = KvAt(kvs, worker);
        MakeKv(head, blocks, kv);
        if (problem_.kv.data != nullptr) kernels.store_kv(problem_, head, kv);
        kernels.forward(problem_, head, {0, problem_.N}, blocks, kv);
      });
      return;
    }
    Scratch scratch(static_cast<std::size_t>(workers_) * BlocksBytes() +
                    Bytes(heads_ * m_.count * KvSize()));
    TakeBlocks(scratch);
    float* kvs = scratch.Take<float>(heads_ * m_.count * KvSize());
    SumKv(kvs);
    RunTasks(heads_, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs, task * m_.count);
      kernels.finish_kv(problem_, kv);
      if (problem_.kv.data != nullptr) kernels.store_kv(problem_, HeadOf(task), kv);
    });
    RunTasks(heads_ * n_.count, workers_, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / n_.count;
      kernels.forward(problem_, HeadOf(head), n_.At(task % n_.count), BlocksOf(worker),
                      KvAt(kvs, head * m_.count));
    });
  }

  void Backward() {
    const Kernels& kernels = kernels_;
    const bool kept = problem_.kept_kv.data != nullptr;
    if (whole_) {
      // Of each worker: KV, dKV, and KVᵀ, which dKVᵀ takes the place of.
      Scratch scratch(static_cast<std::size_t>(workers_) *
                      (BlocksBytes() + 2 * Bytes(KvSize()) + Bytes(TransposedSize())));
      TakeBlocks(scratch);
      float* kvs = scratch.Take<float>(workers_ * KvSize());
      float* dkvs = scratch.Take<float>(workers_ * KvSize());
      float* transposed = scratch.Take<float>(workers_ * TransposedSize());
      RunTasks(heads_, workers_, [&](std::int64_t task, int worker) {
        const Head head = HeadOf(task);
        const Blocks blocks = BlocksOf(worker, task);
        const Panels kv = KvAt(kvs, worker);
        const Panels dkv = KvAt(dkvs, worker);
        const Panels t = TransposedAt(transposed, worker);
        if (kept) {
          kernels.load_kv(problem_, head, kv);
        } else {
          MakeKv(head, blocks, kv);
        }
        kernels.transpose(problem_, kv, t);
        kernels.backward_query(problem_, head, {0, problem_.N}, blocks, kv, t, dkv, false);
        kernels.finish_kv(problem_, dkv);
        kernels.transpose(problem_, dkv, t);
        kernels.backward_key(problem_, head, {0, problem_.M}, blocks, dkv, t);
      });
      return;
    }
    const std::int64_t kv_count = kept ? 1 : m_.count;
    Scratch scratch(static_cast<std::size_t>(workers_) * BlocksBytes() +
                    Bytes(heads_ * kv_count * KvSize()) + Bytes(heads_ * n_.count * KvSize()) +
                    Bytes(heads_ * TransposedSize()));
    TakeBlocks(scratch);
    float* kvs = scratch.Take<float>(heads_ * kv_count * KvSize());
    float* dkvs = scratch.Take<float>(heads_ * n_.count * KvSize());
    float* transposed = scratch.Take<float>(heads_ * TransposedSize());
    if (!kept) SumKv(kvs);
    RunTasks(heads_, workers_, [&](std::int64_t task, int) {
      const Panels kv = KvAt(kvs, task * kv_count);
      if (kept) {
        kernels.load_kv(problem_, HeadOf(task), kv);
      } else {
        kernels.finish_kv(problem_, kv);
      }
      kernels.transpose(problem_, kv, TransposedAt(transposed, task));
    });
    RunTasks(heads_ * n_.count, workers_, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / n_.count;
      kernels.backward_query(problem_, HeadOf(head), n_.At(task % n_.count), BlocksOf(worker),
                             KvAt(kvs, head * kv_count), TransposedAt(transposed, head),
                             KvAt(dkvs, task), false);
    });
    Merge(dkvs, n_.count);
    RunTasks(heads_, workers_, [&](std::int64_t task, int) {
      const Panels dkv = KvAt(dkvs, task * n_.count);
      kernels.finish_kv(problem_, dkv);
      kernels.transpose(problem_, dkv, TransposedAt(transposed, task));
    });
    RunTasks(heads_ * m_.count, workers_, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / m_.count;
      kernels.backward_key(problem_, HeadOf(head), m_.At(task % m_.count), BlocksOf(worker),
                           KvAt(dkvs, head * n_.count), TransposedAt(transposed, head));
    });
  }

 private:
  std::int64_t MostPieces(std::int64_t tokens) const {
    if (whole_) return 1;
    const std::int64_t fit =
        kPieceBytes /
        std::max<std::int64_t>(static_cast<std::int64_t>(Bytes(heads_ * KvSize())), 1);
    return std::min({DivideUp(kTasks, heads_), tokens / kPieceTokens, fit});
  }

  static std::size_t Bytes(std::int64_t floats) { return Scratch::Size<float>(floats); }
  std::int64_t KvSize() const { return Panels::Size(d_rows_, problem_.E, kernels_.chunk); }
  std::int64_t TransposedSize() const { return Panels::Size(e_rows_, problem_.D, kernels_.chunk); }
  std::int64_t BlockSize(std::int64_t columns) const {
    return Panels::Size(kBlock, columns, kernels_.chunk);
  }
  std::size_t BlocksBytes() const {
    return Bytes(BlockSize(problem_.D)) + Bytes(BlockSize(problem_.E));
  }

  void TakeBlocks(Scratch& scratch) {
    d_blocks_ = scratch.Take<float>(workers_ * BlockSize(problem_.D));
    e_blocks_ = scratch.Take<float>(workers_ * BlockSize(problem_.E));
  }
  Blocks BlocksOf(int worker) const {
    const std::int64_t panel = Panels::PanelSize(kBlock, kernels_.chunk);
    return {{d_blocks_ + worker * BlockSize(problem_.D), panel},
            {e_blocks_ + worker * BlockSize(problem_.E), panel},
            {-1, -1}};
  }
  // The same for a task that is a head: the other workers take the heads in between.
  Blocks BlocksOf(int worker, std::int64_t task) const {
    Blocks blocks = BlocksOf(worker);
    if (task + workers_ < heads_) blocks.next = HeadOf(task + workers_);
    return blocks;
  }
  Panels KvAt(float* data, std::int64_t i) const {
    return {data + i * KvSize(), Panels::PanelSize(d_rows_, kernels_.chunk)};
  }
  Panels TransposedAt(float* data, std::int64_t i) const {
    return {data + i * TransposedSize(), Panels::PanelSize(e_rows_, kernels_.chunk)};
  }
  Head HeadOf(std::int64_t i) const { return {i / problem_.H, i % problem_.H}; }

  void MakeKv(Head head, const Blocks& blocks, const Panels& kv) const {
    kernels_.add_kv(problem_, head, {0, problem_.M}, blocks, kv, false);
    kernels_.finish_kv(problem_, kv);
  }

  // The sum of each head, in place of its first piece's.
  void SumKv(float* kvs) const {
    RunTasks(heads_ * m_.count, workers_, [&](std::int64_t task, int worker) {
      kernels_.add_kv(problem_, HeadOf(task / m_.count), m_.At(task % m_.count), BlocksOf(worker),
                      KvAt(kvs, task), false);
    });
    Merge(kvs, m_.count);
  }

  // Adds the `count` pieces of each head in their order.
  void Merge(float* kvs, std::int64_t count) const {
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

  Problem problem_;
  Kernels kernels_;
  std::int64_t heads_;
  bool whole_;
  std::int64_t d_rows_, e_rows_;  // of KV and its transpose
  Pieces n_, m_;
  int workers_ = 1;
  float* d_blocks_ = nullptr;
  float* e_blocks_ = nullptr;
};

}  // namespace

void Flao(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
          const ConstTensorView& g, const TensorView& out, const FlaoOptions& options) {
  CheckInputs(q, k, v, g);
  CheckLike("out", out, "g", g);
  Problem problem = ProblemOf(q, k, v, g);
  problem.out = OutputOf(out);
  if (options.kv) {
    CheckKept("kv", *options.kv, KvShape(q, v), DType::kFloat32);
    CheckOutput(kOp, "kv", *options.kv);
    problem.kv = OutputOf(*options.kv);
  }
  if (options.qkv) {
    CheckKept("qkv", *options.qkv, g.shape(), QkvType(q));
    CheckOutput(kOp, "qkv", *options.qkv);
    problem.qkv = OutputOf(*options.qkv);
  }
  if (q.shape(0) * q.shape(1) == 0) return;
  Call(problem, q.dtype()).Forward();
}

void FlaoBackward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  const ConstTensorView& g, const ConstTensorView& d_out, const TensorView& dq,
                  const TensorView& dk, const TensorView& dv, const TensorView& dg,
                  const FlaoKept& kept) {
  CheckInputs(q, k, v, g);
  CheckSameShape(kOp, "d_out", d_out, "g", g);
  CheckSameType(kOp, "d_out", d_out, "g", g);
  CheckView(kOp, "d_out", d_out);
  CheckLike("dq", dq, "q", q);
  CheckLike("dk", dk, "k", k);
  CheckLike("dv", dv, "v", v);
  CheckLike("dg", dg, "g", g);
  Problem problem = ProblemOf(q, k, v, g);
  problem.d_out = InputOf(d_out);
  problem.dq = OutputOf(dq);
  problem.dk = OutputOf(dk);
  problem.dv = OutputOf(dv);
  problem.dg = OutputOf(dg);
  if (kept.kv) {
    CheckKept("kv", *kept.kv, KvShape(q, v), DType::kFloat32);
    problem.kept_kv = InputOf(*kept.kv);
  }
  if (kept.qkv) {
    CheckKept("qkv", *kept.qkv, g.shape(), QkvType(q));
    problem.kept_qkv = InputOf(*kept.qkv);
  }
  if (q.shape(0) * q.shape(1) == 0) return;
  Call(problem, q.dtype()).Backward();
}

}  // namespace attnops
