// Checks and schedule of lrpe_rotate.
#include "attnops/lrpe_rotate.h"

#include <algorithm>

#include "src/core/checks.h"
#include "src/core/numeric.h"
#include "src/core/parallel.h"
#include "src/core/scratch.h"
#include "src/ops/lrpe_rotate/kernels.h"

namespace attnops {
namespace {

using lrpe_rotate::Columns;
using lrpe_rotate::Kernels;
using lrpe_rotate::Pass;
using lrpe_rotate::Problem;
using lrpe_rotate::Region;

constexpr char kOp[] = "lrpe_rotate";

// Positions in a block: enough that the exact sincos of its first one costs little
// beside the complex products of the others, few enough that the table of all heads
// stays in L2.
constexpr std::int64_t kBlock = 16;
// Bound of a worker's table, and of the steps that all share.
constexpr std::int64_t kTableBytes = 128 << 10;
constexpr std::int64_t kStepBytes = 2 << 20;
// Outputs from this size on bypass the caches: read for ownership and evictions would
// cost as much again as the writing. Below it the reader may still find them there.
constexpr std::int64_t kStreamBytes = 4 << 20;
// Calls below this size are not worth waking a thread for.
constexpr std::int64_t kSerialBytes = 64 << 10;
// More tasks than any sensible number of threads, so that none waits for the last.
constexpr std::int64_t kTasks = 64;
// Softmax over the sequence cuts it into at most this many pieces, and takes as many columns
// at once as the statistics of all pieces have room for. A piece has several blocks: its first
// one is read once more for the maximum, and pieces have to be merged.
constexpr std::int64_t kPieces = 32;
constexpr std::int64_t kPieceBlocks = 4;
constexpr std::int64_t kColumnBytes = 7 << 20;

void Check(const ConstTensorView& x, const ConstTensorView& theta,
           const LrpeRotateOptions& options) {
  if (x.rank() != 3 && x.rank() != 4) {
    Fail(kOp, "x must have 4 axes (B,N,H,D) or 3 (B,N,D); its shape is ", ToString(x.shape()));
  }
  CheckView(kOp, "x", x);
  const std::int64_t D = x.shape(x.rank() - 1);
  const std::int64_t H = x.rank() == 4 ? x.shape(2) : 1;
  if (D % 2 != 0) Fail(kOp, "x must have an even number of features; it has ", D);
  if (theta.rank() != 2) {
    Fail(kOp, "theta must have 2 axes (heads, angles); its shape is ", ToString(theta.shape()));
  }
  CheckView(kOp, "theta", theta);
  if (theta.dtype() != x.dtype() && theta.dtype() != DType::kFloat32) {
    Fail(kOp, "theta must be float32 or have the type of x, ", Name(x.dtype()), "; it is ",
         Name(theta.dtype()));
  }
  if (x.rank() == 3 && theta.shape(0) != 1) {
    Fail(kOp, "theta has ", theta.shape(0), " heads; x has 3 axes (expected 1)");
  }
  if (theta.shape(0) != H && theta.shape(0) != 1) {
    Fail(kOp, "theta has ", theta.shape(0), " heads; x has ", H, " (expected ", H, " or 1)");
  }
  if (D > 0 && (theta.shape(1) < 1 || theta.shape(1) > D / 2)) {
    Fail(kOp, "theta has ", theta.shape(1), " angles a head; x has ", D / 2,
         " pairs (expected 1 to ", D / 2, ")");
  }
  CheckOffset(kOp, options.offset);
}

template <typename View, typename Pointer = decltype(std::declval<View>().data())>
lrpe_rotate::Tensor<Pointer> TensorOf(const View& view) {
  const bool heads = view.rank() == 4;
  return {view.data(), view.stride(0), view.stride(1), heads ? view.stride(2) : 0};
}

// Whether every chunk of the output starts at a multiple of the vector size.
bool IsAligned(const TensorView& out, std::int64_t half, std::int64_t chunk,
               std::int64_t vector_bytes) {
  const std::int64_t size = SizeOf(out.dtype());
  if (reinterpret_cast<std::intptr_t>(out.data()) % vector_bytes != 0 || half % chunk != 0) {
    return false;
  }
  for (int i = 0; i + 1 < out.rank(); ++i) {
    if (out.shape(i) > 1 && out.stride(i) * size % vector_bytes != 0) return false;
  }
  return true;
}

// One call: the problem, its kernels and its angles.
struct Call {
  Problem problem;
  Kernels kernels;
  Angles angles;
  std::int64_t offset;
  std::int64_t head_group;  // heads a table is made for at once
  int workers;

  std::int64_t Blocks() const { return DivideUp(problem.N, angles.block); }
  std::int64_t HeadGroups() const { return DivideUp(problem.H, head_group); }
  std::int64_t WorkerScratch() const { return TableSize() + RowScratch(); }
  std::int64_t TableSize() const {
    return angles.block * std::min(angles.rows, head_group) * angles.RowSize();
  }
  std::int64_t RowScratch() const { return lrpe_rotate::kMaxRowSet * 2 * angles.RowSize(); }

  // Into how many parts `batches` are divided where `places` alone are too few tasks. A part
  // of fewer than 4 would cost as much for its angles as for its rows.
  static std::int64_t BatchParts(std::int64_t batches, std::int64_t places) {
    return std::min(DivideUp(batches, 4), DivideUp(kTasks, places));
  }

  // The tokens of a block, with their angles at `table`.
  AngleTable FillTable(const Region& region, float* table) const {
    const bool shared = angles.rows == 1;
    const std::int64_t begin = shared ? 0 : region.head_begin;
    const std::int64_t end = shared ? 1 : region.head_end;
    kernels.fill_table(angles, begin, end, offset + region.token_begin,
                       region.token_end - region.token_begin, table);
    return {table, end - begin, angles.width};
  }

  // The tokens of a block, for group `group` of the heads from `head_begin` on.
  Region RegionOf(std::int64_t block, std::int64_t group, std::int64_t head_begin,
                  std::int64_t head_end, std::int64_t batch_begin, std::int64_t batch_end) const {
    const std::int64_t begin = head_begin + group * head_group;
    return {batch_begin,
            batch_end,
            block * angles.block,
            std::min(problem.N, (block + 1) * angles.block),
            begin,
            std::min(head_end, begin + head_group)};
  }
};

// Everything but softmax over the sequence: each block of positions and group of heads
// is a task, its table is made once and all batches stream past it. Where that gives
// few tasks, the batches are divided too.
void RunBlocks(const Call& call, Scratch& scratch) {
  float* memory = scratch.Take<float>(call.workers * call.WorkerScratch());
  const std::int64_t places = call.Blocks() * call.HeadGroups();
  const std::int64_t parts = call.BatchParts(call.problem.B, places);
  RunTasks(places * parts, call.workers, [&](std::int64_t task, int worker) {
    const std::int64_t part = task % parts;
    const std::int64_t place = task / parts;
    const Region region =
        call.RegionOf(place / call.HeadGroups(), place % call.HeadGroups(), 0, call.problem.H,
                      call.problem.B * part / parts, call.problem.B * (part + 1) / parts);
    float* table = memory + worker * call.WorkerScratch();
    call.kernels.apply(call.problem, region, call.FillTable(region, table),
                       table + call.TableSize(), {});
  });
}

// How softmax over the sequence divides the columns (b,h) and the sequence.
struct SequencePlan {
  std::int64_t piece_blocks;  // blocks in a piece, the unit whose sums are merged in order
  std::int64_t pieces;
  std::int64_t column_size;  // floats of one (b,h)'s statistics
  std::int64_t batches;      // in a group
  std::int64_t heads;        // in a group; all of them unless batches is 1

  SequencePlan(const Call& call, Pass pass) {
    const Problem& problem = call.problem;
    piece_blocks = std::max(kPieceBlocks, DivideUp(call.Blocks(), kPieces));
    pieces = DivideUp(call.Blocks(), piece_blocks);
    column_size = Columns::Rows(pass) * call.angles.RowSize();
    const std::int64_t fit =
        kColumnBytes / (pieces * column_size * static_cast<std::int64_t>(sizeof(float)));
    heads = std::clamp<std::int64_t>(fit, 1, problem.H);
    const std::int64_t most = std::clamp<std::int64_t>(fit / problem.H, 1, problem.B);
    batches = DivideUp(problem.B, DivideUp(problem.B, most));  // groups of equal size
  }

  std::int64_t StatisticsSize() const { return pieces * batches * heads * column_size; }
};

// Softmax over the sequence, for one group of columns after the other: sums of each
// piece of the sequence, pieces merged in their order, output.
void RunSequence(const Call& call, const SequencePlan& plan, Pass pass, Scratch& scratch) {
  float* memory = scratch.Take<float>(call.workers * call.WorkerScratch());
  float* statistics = scratch.Take<float>(plan.StatisticsSize());
  const Problem& problem = call.problem;
  const Kernels& kernels = call.kernels;
  const std::int64_t piece_size = plan.batches * plan.heads * plan.column_size;
  const std::int64_t width = call.angles.width;
  for (std::int64_t batch = 0; batch < problem.B; batch += plan.batches) {
    const std::int64_t batch_end = std::min(problem.B, batch + plan.batches);
    for (std::int64_t head = 0; head < problem.H; head += plan.heads) {
      const std::int64_t head_end = std::min(problem.H, head + plan.heads);
      const std::int64_t groups = DivideUp(head_end - head, call.head_group);
      const auto columns_of = [&](std::int64_t piece) {
        return Columns{statistics + piece * piece_size, batch, head, head_end - head,
                       plan.column_size};
      };
      const std::int64_t places = plan.pieces * groups;
      const std::int64_t parts = call.BatchParts(batch_end - batch, places);
      RunTasks(places * parts, call.workers, [&](std::int64_t task, int worker) {
        const std::int64_t part = task % parts;
        const std::int64_t group = task / parts % groups;
        const std::int64_t piece = task / parts / groups;
        const std::int64_t first = piece * plan.piece_blocks;
        const std::int64_t last = std::min(call.Blocks(), first + plan.piece_blocks);
        const std::int64_t begin = batch + (batch_end - batch) * part / parts;
        const std::int64_t end = batch + (batch_end - batch) * (part + 1) / parts;
        const Columns columns = columns_of(piece);
        AngleTable table{memory + worker * call.WorkerScratch(), 1, width};
        for (std::int64_t block = first; block < last; ++block) {
          const Region region = call.RegionOf(block, group, head, head_end, begin, end);
          if (block == first) {
            for (std::int64_t b = begin; b < end; ++b) {
              kernels.start_columns(columns.At(b, region.head_begin),
                                    region.head_end - region.head_begin, width);
            }
          }
          if (pass == Pass::kBackward) {
            table = call.FillTable(region, memory + worker * call.WorkerScratch());
          }
          kernels.add_columns(problem, region, table, columns, block == first);
        }
      });
      RunTasks((batch_end - batch) * (head_end - head), call.workers, [&](std::int64_t i, int) {
        float* to = statistics + i * plan.column_size;
        for (std::int64_t piece = 1; piece < plan.pieces; ++piece) {
          kernels.merge_columns(to, to + piece * piece_size, 1, width);
        }
        kernels.finish_columns(to, 1, width);
      });
      RunTasks(call.Blocks() * groups, call.workers, [&](std::int64_t task, int worker) {
        const Region region =
            call.RegionOf(task / groups, task % groups, head, head_end, batch, batch_end);
        float* table = memory + worker * call.WorkerScratch();
        kernels.apply(problem, region, call.FillTable(region, table), table + call.TableSize(),
                      columns_of(0));
      });
    }
  }
}

Kernels GetKernels(Pass pass, DType dtype, Activation::Kind act, SoftmaxAxis axis) {
  switch (dtype) {
    case DType::kFloat32:
      return lrpe_rotate::Float32Kernels(pass, act, axis);
    case DType::kFloat16:
      return lrpe_rotate::Float16Kernels(pass, act, axis);
    case DType::kBFloat16:
      return lrpe_rotate::BFloat16Kernels(pass, act, axis);
  }
  return {};
}

void Run(Pass pass, const ConstTensorView& x, const ConstTensorView& theta,
         const ConstTensorView* d_out, const TensorView& out, const LrpeRotateOptions& options,
         SoftmaxAxis axis) {
  if (x.size() == 0) return;
  Call call;
  Problem& problem = call.problem;
  problem.x = TensorOf(x);
  problem.d_out = TensorOf(d_out != nullptr ? *d_out : x);
  problem.out = TensorOf(out);
  problem.B = x.shape(0);
  problem.N = x.shape(1);
  problem.H = x.rank() == 4 ? x.shape(2) : 1;
  problem.D = x.shape(x.rank() - 1);
  const std::int64_t half = problem.D / 2;
  problem.rotated = theta.shape(1) == 1 ? half : theta.shape(1);

  call.kernels = GetKernels(pass, x.dtype(), options.act.kind, axis);
  call.offset = options.offset;
  const std::int64_t bytes = x.size() * SizeOf(x.dtype());
  problem.stream =
      bytes >= kStreamBytes && IsAligned(out, half, call.kernels.chunk, call.kernels.vector_bytes);
  call.workers = bytes < kSerialBytes ? 1 : MaxWorkers();

  Angles& angles = call.angles;
  angles.rows = theta.shape(0);
  angles.width = RoundUp(half, call.kernels.chunk);
  constexpr std::int64_t kFloat = sizeof(float);
  angles.block =
      std::clamp<std::int64_t>(kStepBytes / (angles.rows * angles.RowSize() * kFloat), 1, kBlock);
  call.head_group = angles.rows == 1 ? problem.H
                                     : std::clamp<std::int64_t>(
                                           kTableBytes / (angles.block * angles.RowSize() * kFloat),
                                           1, problem.H);

  const std::int64_t angle_count = angles.rows * angles.width;
  const std::int64_t step_count = angles.block * angles.rows * angles.RowSize();
  std::size_t scratch_bytes = Scratch::Size<std::uint64_t>(angle_count) +
                              Scratch::Size<float>(angle_count) + Scratch::Size<float>(step_count) +
                              Scratch::Size<float>(call.workers * call.WorkerScratch());
  const SequencePlan plan(call, pass);
  if (axis == SoftmaxAxis::kSequence) scratch_bytes += Scratch::Size<float>(plan.StatisticsSize());

  Scratch scratch(scratch_bytes);
  angles.turns = scratch.Take<std::uint64_t>(angle_count);
  angles.poison = scratch.Take<float>(angle_count);
  angles.steps = scratch.Take<float>(step_count);
  call.kernels.fill_turns(theta, half, angles);
  call.kernels.fill_steps(angles, std::min(angles.block, problem.N));
  if (axis == SoftmaxAxis::kSequence) {
    RunSequence(call, plan, pass, scratch);
  } else {
    RunBlocks(call, scratch);
  }
}

// The checks that both passes share; returns the axis of the softmax.
SoftmaxAxis CheckBoth(const ConstTensorView& x, const ConstTensorView& theta,
                      const char* output_name, const TensorView& output,
                      const LrpeRotateOptions& options) {
  Check(x, theta, options);
  const SoftmaxAxis axis = CheckActivation(kOp, "dim", options.act, x.rank(), 1);
  CheckSameShape(kOp, output_name, output, "x", x);
  CheckSameType(kOp, output_name, output, "x", x);
  CheckOutput(kOp, output_name, output);
  return axis;
}

}  // namespace

void LrpeRotate(const ConstTensorView& x, const ConstTensorView& theta, const TensorView& out,
                const LrpeRotateOptions& options) {
  const SoftmaxAxis axis = CheckBoth(x, theta, "out", out, options);
  Run(Pass::kForward, x, theta, nullptr, out, options, axis);
}

void LrpeRotateBackward(const ConstTensorView& x, const ConstTensorView& theta,
                        const ConstTensorView& d_out, const TensorView& dx,
                        const LrpeRotateOptions& options) {
  const SoftmaxAxis axis = CheckBoth(x, theta, "dx", dx, options);
  CheckSameShape(kOp, "d_out", d_out, "x", x);
  CheckSameType(kOp, "d_out", d_out, "x", x);
  CheckView(kOp, "d_out", d_out);
  Run(Pass::kBackward, x, theta, &d_out, dx, options, axis);
}

}  // namespace attnops
