// Checks and schedule of tpa_decode.
#include "attnops/tpa_decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "src/core/checks.h"
#include "src/core/numeric.h"
#include "src/core/parallel.h"
#include "src/core/scratch.h"
#include "src/ops/tpa_decode/kernels.h"

namespace attnops {
namespace {

using tpa_decode::kBlock;
using tpa_decode::Kernels;
using tpa_decode::kFeatures;
using tpa_decode::Partial;
using tpa_decode::Problem;
using tpa_decode::Range;
using tpa_decode::Workspace;

constexpr char kOp[] = "tpa_decode";

// A piece of the sequence has at least so many tokens, since what all tokens share may be
// converted anew for each, twice as many where there are enough pieces even so, and more where
// there would be too many: 32 are enough for any sensible number of threads.
constexpr std::int64_t kPieceTokens = 256;
constexpr std::int64_t kEnoughPieces = 8;
constexpr std::int64_t kMostPieces = 32;
// Bound of the pieces' results that wait to be merged.
constexpr std::int64_t kPartialBytes = std::int64_t{3} << 19;
// Calls of fewer multiply-adds are not worth waking a thread for.
constexpr double kSerialWork = 1e6;
// Fewer heads than this in a task would leave a register tile partly empty.
constexpr std::int64_t kTaskHeads = 4;

void CheckInputs(const ConstTensorView& aq, const ConstTensorView& ak, const ConstTensorView& av,
                 const ConstTensorView& bq, const ConstTensorView& bk, const ConstTensorView& bv) {
  CheckRank(kOp, "aq", aq, 4, "(B,1,H,R)");
  CheckRank(kOp, "ak", ak, 3, "(B,M,H)");
  CheckRank(kOp, "av", av, 3, "(B,M,H)");
  CheckRank(kOp, "bq", bq, 4, "(B,1,R,D)");
  CheckRank(kOp, "bk", bk, 3, "(B,M,D)");
  CheckRank(kOp, "bv", bv, 3, "(B,M,E)");
  const std::pair<const char*, const ConstTensorView&> queries[] = {{"aq", aq}, {"bq", bq}};
  for (const auto& [name, view] : queries) {
    if (view.shape(1) != 1) {
      Fail(kOp, name, " must have 1 token (axis 1); it has ", view.shape(1));
    }
  }
  const std::pair<const char*, const ConstTensorView&> others[] = {
      {"ak", ak}, {"av", av}, {"bq", bq}, {"bk", bk}, {"bv", bv}};
  for (const auto& [name, view] : others) {
    CheckAxis(kOp, name, view, 0, "batches", "aq", aq.shape(0));
  }
  CheckAxis(kOp, "ak", ak, 2, "heads", "aq", aq.shape(2));
  CheckAxis(kOp, "av", av, 2, "heads", "aq", aq.shape(2));
  CheckAxis(kOp, "bq", bq, 2, "ranks", "aq", aq.shape(3));
  CheckAxis(kOp, "bk", bk, 2, "features", "bq", bq.shape(3));
  CheckAxis(kOp, "av", av, 1, "tokens", "ak", ak.shape(1));
  CheckAxis(kOp, "bk", bk, 1, "tokens", "ak", ak.shape(1));
  CheckAxis(kOp, "bv", bv, 1, "tokens", "ak", ak.shape(1));
  for (const auto& [name, view] : others) CheckSameType(kOp, name, view, "aq", aq);
}

void CheckOptions(const TpaDecodeOptions& options) {
  const int split = static_cast<int>(options.split);
  if (split < 0 || split > static_cast<int>(TpaSplit::kBN)) {
    Fail(kOp, "split is no known way to divide the work (", split, ")");
  }
}

void CheckOut(const TensorView& out, const ConstTensorView& aq, const ConstTensorView& bv) {
  CheckShape(kOp, "out", out, {aq.shape(0), 1, aq.shape(2), bv.shape(2)});
  CheckSameType(kOp, "out", out, "aq", aq);
  CheckOutput(kOp, "out", out);
}

Kernels KernelsFor(DType dtype, TargetIndex target) {
  switch (dtype) {
    case DType::kFloat32:
      return tpa_decode::Float32Kernels(target);
    case DType::kFloat16:
      return tpa_decode::Float16Kernels(target);
    case DType::kBFloat16:
      return tpa_decode::BFloat16Kernels(target);
  }
  return {};
}

// A call and its memory. How the sequence is cut depends on its length alone, pieces are merged in
// their order, and a head's result does not depend on which others are computed with it: so
// neither the split nor the number of threads is seen in the bits.
class Call {
 public:
  Call(const Problem& problem, DType dtype)
      : problem_(problem),
        kernels_(KernelsFor(dtype, ChosenTarget())),
        piece_(PieceSize(problem.M)),
        pieces_(DivideUp(problem.M, piece_)) {
    const double tokens = static_cast<double>(problem.B) * static_cast<double>(problem.M);
    const double work = tokens * static_cast<double>(problem.H) *
                        (static_cast<double>(problem.D) + static_cast<double>(problem.E));
    workers_ = work < kSerialWork ? 1 : MaxWorkers();
  }

  void Run(TpaSplit split) const {
    if (split == TpaSplit::kAuto) split = Choose();
    switch (split) {
      case TpaSplit::kBN:
        return ByPieces();
      case TpaSplit::kBH:
        return ByHeads(HeadGroups());
      default:
        return ByHeads(1);
    }
  }

 private:
  static std::int64_t PieceSize(std::int64_t tokens) {
    const std::int64_t wanted = RoundUp(DivideUp(tokens, kEnoughPieces), kBlock);
    return std::max(std::clamp(wanted, kPieceTokens, 2 * kPieceTokens),
                    RoundUp(DivideUp(tokens, kMostPieces), kBlock));
  }

  std::int64_t HeadGroups() const {
    return std::clamp<std::int64_t>(DivideUp(workers_, problem_.B), 1,
                                    DivideUp(problem_.H, kTaskHeads));
  }

  std::int64_t GroupSize(std::int64_t groups) const {
    return RoundUp(DivideUp(problem_.H, groups), kTaskHeads);
  }

  // The split whose busiest thread has the least to do, in multiply-adds, or what takes as long.
  // What groups of heads share is done again in each: a product through the rank, and the
  // conversion of bk and bv. Scores and weights are computed for whole chunks of heads. Pieces cost
  // a part more, for merging, and more than one task costs waking a thread.
  TpaSplit Choose() const {
    constexpr double kConvertKey = 6, kConvertValue = 2, kExp = 16, kMerging = 1.06;
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double D = number(problem_.D), E = number(problem_.E), R = number(problem_.R);
    const bool through_rank = problem_.through_rank;
    const double shared = (through_rank ? R * D : 0) + kConvertKey * D + kConvertValue * E;
    const auto token = [&](std::int64_t heads) {
      const double places = number(Places(heads));
      return shared + places * kExp + (through_rank ? 2 * places * R : number(heads) * D) +
             number(heads) * E;
    };
    const auto cost = [&](std::int64_t tasks, std::int64_t tokens, double of_token) {
      return number(DivideUp(tasks, workers_)) * number(tokens) * of_token +
             (tasks > 1 ? kSerialWork : 0);
    };
    const std::int64_t groups = HeadGroups();
    const double b = cost(problem_.B, problem_.M, token(problem_.H));
    const double bh = cost(problem_.B * groups, problem_.M, token(GroupSize(groups)));
    const double bn =
        cost(problem_.B * pieces_, std::min(piece_, problem_.M), token(problem_.H) * kMerging);
    if (b <= bh && b <= bn) return TpaSplit::kB;
    return bn <= bh ? TpaSplit::kBN : TpaSplit::kBH;
  }

  // Of heads in storage order.
  std::int64_t Places(std::int64_t heads) const { return RoundUp(heads, kernels_.chunk); }

  static std::size_t Bytes(std::int64_t floats) { return Scratch::Size<float>(floats); }

  Range PieceAt(std::int64_t i) const {
    return {i * piece_, std::min(problem_.M, (i + 1) * piece_)};
  }

  // Takes a (rows, columns) matrix, or only counts its bytes.
  struct Taker {
    Scratch* scratch;
    std::int64_t chunk;
    std::size_t bytes = 0;

    float* Floats(std::int64_t count) {
      bytes += Bytes(count);
      return scratch == nullptr ? nullptr : scratch->Take<float>(count);
    }
    Panels Matrix(std::int64_t rows, std::int64_t columns) {
      float* data = Floats(Panels::Size(rows, columns, chunk));
      return {data, Panels::PanelSize(rows, chunk)};
    }
  };

  Workspace TakeWorkspace(Taker& take, std::int64_t heads) const {
    const std::int64_t D = problem_.D, R = problem_.R;
    const bool through_rank = problem_.through_rank;
    const std::int64_t places = Places(heads);
    Workspace work;
    work.aq = through_rank ? take.Matrix(R, places) : take.Matrix(places, R);
    work.bq = take.Matrix(R, D);
    work.q = take.Matrix(places, through_rank ? 0 : D);
    work.t = take.Matrix(through_rank ? R : places, kBlock);
    work.s = take.Matrix(kBlock, places);
    work.right = take.Matrix(std::max(kBlock, kFeatures), kernels_.tile_columns);
    work.factor = take.Floats(places);
    return work;
  }
  Partial TakePartial(Taker& take, std::int64_t heads) const {
    Partial partial;
    const std::int64_t places = Places(heads);
    partial.max = take.Floats(places);
    partial.sum = take.Floats(places);
    partial.out = take.Matrix(places, problem_.E);
    return partial;
  }
  std::size_t WorkspaceBytes(std::int64_t heads) const {
    Taker count{nullptr, kernels_.chunk};
    TakeWorkspace(count, heads);
    return count.bytes;
  }
  std::size_t PartialBytes(std::int64_t heads) const {
    Taker count{nullptr, kernels_.chunk};
    TakePartial(count, heads);
    return count.bytes;
  }

  // A task is a batch and a group of heads: all pieces, one after the other.
  void ByHeads(std::int64_t groups) const {
    const std::int64_t size = GroupSize(groups);
    groups = DivideUp(problem_.H, size);
    const std::int64_t tasks = problem_.B * groups;
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
    Scratch scratch(static_cast<std::size_t>(workers) *
                    (WorkspaceBytes(size) + 2 * PartialBytes(size)));
    Taker take{&scratch, kernels_.chunk};
    struct Memory {
      Workspace work;
      Partial sum, piece;
    };
    std::vector<Memory> memory;
    for (int i = 0; i < workers; ++i) {
      Memory one;
      one.work = TakeWorkspace(take, size);
      one.sum = TakePartial(take, size);
      one.piece = TakePartial(take, size);
      memory.push_back(one);
    }
    RunTasks(tasks, workers, [&](std::int64_t task, int worker) {
      const Memory& own = memory[static_cast<std::size_t>(worker)];
      const std::int64_t batch = task / groups;
      const std::int64_t first = task % groups * size;
      const Range heads{first, std::min(problem_.H, first + size)};
      const Range rows{0, Places(heads.size())};
      kernels_.prepare(problem_, batch, heads, own.work);
      kernels_.attend(problem_, batch, heads, PieceAt(0), own.work, own.sum);
      for (std::int64_t i = 1; i < pieces_; ++i) {
        kernels_.attend(problem_, batch, heads, PieceAt(i), own.work, own.piece);
        kernels_.merge(problem_, heads.size(), rows, own.piece, own.sum);
      }
      kernels_.finish(problem_, batch, heads, rows, own.sum);
    });
  }

  // A task is a piece of a batch. As many as their results have room are computed, then merged.
  void ByPieces() const {
    const std::int64_t all = problem_.B * pieces_;
    const std::int64_t fit = std::max<std::int64_t>(
        kPartialBytes / static_cast<std::int64_t>(PartialBytes(problem_.H)), workers_);
    const std::int64_t wave = std::min(all, fit);
    const int workers = static_cast<int>(std::min<std::int64_t>(workers_, wave));
    Scratch scratch(static_cast<std::size_t>(workers) * WorkspaceBytes(problem_.H) +
                    static_cast<std::size_t>(wave + 1) * PartialBytes(problem_.H));
    Taker take{&scratch, kernels_.chunk};
    std::vector<Workspace> works;
    for (int i = 0; i < workers; ++i) works.push_back(TakeWorkspace(take, problem_.H));
    std::vector<Partial> partials;  // of the wave, and the sum of a batch that goes on in it
    for (std::int64_t i = 0; i <= wave; ++i) partials.push_back(TakePartial(take, problem_.H));
    const Range heads{0, problem_.H};
    for (std::int64_t begin = 0; begin < all; begin += wave) {
      const std::int64_t end = std::min(all, begin + wave);
      RunTasks(end - begin, workers, [&](std::int64_t task, int worker) {
        const Workspace& work = works[static_cast<std::size_t>(worker)];
        const std::int64_t batch = (begin + task) / pieces_;
        kernels_.prepare(problem_, batch, heads, work);
        kernels_.attend(problem_, batch, heads, PieceAt((begin + task) % pieces_), work,
                        partials[static_cast<std::size_t>(task)]);
      });
      MergeWave({begin, end}, partials);
    }
  }

  // Merges the results of pieces [begin, end), counted over all batches, head by head; the last of
  // the partials is the sum of a batch that began in an earlier wave, and becomes that of one that
  // goes on in the next.
  void MergeWave(Range wave, const std::vector<Partial>& partials) const {
    const std::int64_t groups = DivideUp(Places(problem_.H), kTaskHeads);
    const std::int64_t first_batch = wave.begin / pieces_;
    const std::int64_t batches = DivideUp(wave.end, pieces_) - first_batch;
    // Batches in their order: the first may read the last of the partials, the last one writes it.
    const auto merge = [&](std::int64_t batch, Range rows) {
      const std::int64_t begin = std::max(wave.begin, batch * pieces_);
      const std::int64_t end = std::min(wave.end, (batch + 1) * pieces_);
      const Partial* sum = &partials.back();
      std::int64_t i = begin;
      if (begin == batch * pieces_) sum = &partials[static_cast<std::size_t>(i++ - wave.begin)];
      for (; i < end; ++i) {
        kernels_.merge(problem_, problem_.H, rows,
                       partials[static_cast<std::size_t>(i - wave.begin)], *sum);
      }
      if (end == (batch + 1) * pieces_) {
        kernels_.finish(problem_, batch, {0, problem_.H}, rows, *sum);
      } else if (sum != &partials.back()) {
        kernels_.copy(problem_, rows, *sum, partials.back());
      }
    };
    RunTasks(groups, workers_, [&](std::int64_t group, int) {
      const Range rows{group * kTaskHeads, std::min(Places(problem_.H), (group + 1) * kTaskHeads)};
      for (std::int64_t i = 0; i < batches; ++i) merge(first_batch + i, rows);
    });
  }

  Problem problem_;
  Kernels kernels_;
  std::int64_t piece_, pieces_;  // tokens of a piece, but the last, and how many there are
  int workers_ = 1;
};

// The rows of an empty tensor, which need no data pointer, are all at one address that exists.
tpa_decode::Input RowsAlong(const ConstTensorView& view, int axis) {
  static constexpr float kNothing = 0;
  if (view.size() == 0) return {&kNothing, 0, 0};
  return {view.data(), view.stride(0), view.stride(axis)};
}
tpa_decode::Input QueryOf(const ConstTensorView& view) { return RowsAlong(view, 2); }
tpa_decode::Input CacheOf(const ConstTensorView& view) { return RowsAlong(view, 1); }

void SetZero(const TensorView& out) {
  const std::int64_t size = SizeOf(out.dtype());
  for (std::int64_t b = 0; b < out.shape(0); ++b) {
    for (std::int64_t h = 0; h < out.shape(2); ++h) {
      char* row = static_cast<char*>(out.data()) + (b * out.stride(0) + h * out.stride(2)) * size;
      std::memset(row, 0, static_cast<std::size_t>(out.shape(3) * size));
    }
  }
}

// 1/√n or 1/n; nothing to scale if n is 0.
double InverseRoot(std::int64_t n) { return n == 0 ? 1 : 1 / std::sqrt(static_cast<double>(n)); }
double Inverse(std::int64_t n) { return n == 0 ? 1 : 1 / static_cast<double>(n); }

}  // namespace

void TpaDecode(const ConstTensorView& aq, const ConstTensorView& ak, const ConstTensorView& av,
               const ConstTensorView& bq, const ConstTensorView& bk, const ConstTensorView& bv,
               const TensorView& out, const TpaDecodeOptions& options) {
  CheckInputs(aq, ak, av, bq, bk, bv);
  CheckOptions(options);
  CheckOut(out, aq, bv);
  CheckApart(kOp, "out", out, "aq", aq);
  CheckApart(kOp, "out", out, "ak", ak);
  CheckApart(kOp, "out", out, "av", av);
  CheckApart(kOp, "out", out, "bq", bq);
  CheckApart(kOp, "out", out, "bk", bk);
  CheckApart(kOp, "out", out, "bv", bv);
  if (out.size() == 0) return;
  if (ak.shape(1) == 0) return SetZero(out);
  const std::int64_t H = aq.shape(2), R = aq.shape(3), D = bq.shape(3);
  const double scale =
      options.scale.value_or(InverseRoot(D)) * options.scale_q.value_or(Inverse(R));
  const Problem problem{aq.shape(0),
                        ak.shape(1),
                        H,
                        R,
                        D,
                        bv.shape(2),
                        QueryOf(aq),
                        CacheOf(ak),
                        CacheOf(av),
                        QueryOf(bq),
                        CacheOf(bk),
                        CacheOf(bv),
                        {out.data(), out.stride(0), out.stride(2)},
                        static_cast<float>(scale * options.scale_k),
                        static_cast<float>(options.scale_v),
                        R * (D + H) < H * D};
  Call(problem, aq.dtype()).Run(options.split);
}

}  // namespace attnops
