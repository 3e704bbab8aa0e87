// Writing to a cache and decoding from it: checks and schedule.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "attnops/tpa_cache.h"
#include "src/core/checks.h"
#include "src/core/numeric.h"
#include "src/core/precision.h"
#include "src/core/scratch.h"
#include "src/core/scratch_plan.h"
#include "src/core/tasks.h"
#include "src/ops/tensor_product_attention/pool.h"
#include "src/ops/tensor_product_attention/ranks.h"
#include "src/ops/tensor_product_attention/tpa_arguments.h"
#include "src/positions/angles.h"
#include "src/positions/kernels.h"

namespace attnops {
namespace {

using namespace tensor_product_attention;  // NOLINT(google-build-using-namespace)

constexpr char kAppend[] = "tpa_append";
constexpr char kDecode[] = "tpa_decode";
// Tokens that a task writes, and numbers of a call that is not worth waking a thread for.
constexpr std::int64_t kTaskTokens = 16;
constexpr std::int64_t kSerialNumbers = std::int64_t{1} << 16;

constexpr const char* kTypeNames[] = {"float32", "float16", "bfloat16", "int8"};

void CheckType(const char* op, const char* name, const TpaPool& pool, DType dtype) {
  if (pool.shape.type == TpaCacheType::kInt8) return;
  if (static_cast<Storage>(pool.shape.type) != StorageOf(dtype)) {
    Fail(op, name, " must have the type of the cache, ",
         kTypeNames[static_cast<int>(pool.shape.type)], "; it is ", Name(dtype));
  }
}

// The sizes of a cache against those of an argument.
void CheckCacheSize(const char* op, const char* name, std::int64_t size, const char* what,
                    std::int64_t expected) {
  if (size != expected) {
    Fail(op, name, " has ", size, " ", what, "; the cache has ", expected);
  }
}

// Positions that the tokens will have, and the pages for them.
void CheckRoom(const TpaPool& pool, const TpaSequences& sequences, const std::int64_t* counts,
               std::int64_t batches, std::int64_t tokens) {
  if (sequences.lengths == nullptr) Fail(kAppend, "lengths must be given");
  for (std::int64_t b = 0; b < batches; ++b) {
    const std::int64_t count = counts == nullptr ? tokens : counts[b];
    if (count < 0 || count > tokens) {
      Fail(kAppend, "counts must be from 0 to ", tokens, "; that of sequence ", b, " is ", count);
    }
    if (sequences.lengths[b] < 0) {
      Fail(kAppend, "lengths must not be negative; that of sequence ", b, " is ",
           sequences.lengths[b]);
    }
    const std::int64_t length = sequences.lengths[b] + count;
    TpaSequences grown = sequences;
    grown.lengths = &length;
    if (grown.page_table != nullptr) grown.page_table += b * sequences.table_stride;
    if (sequences.page_table == nullptr && length > pool.shape.page_size) {
      Fail(kAppend, "sequence ", b, " would have ", length, " tokens; the capacity is ",
           pool.shape.page_size);
    }
    CheckSequences(kAppend, grown, 1, pool.shape.pages, pool.shape.page_size);
  }
}

}  // namespace

namespace tensor_product_attention {

void CheckPool(const char* op, const TpaPool& pool) {
  const TpaCacheShape& shape = pool.shape;
  const int type = static_cast<int>(shape.type);
  if (type < 0 || type > static_cast<int>(TpaCacheType::kInt8)) {
    Fail(op, "the cache has no known type (", type, ")");
  }
  const std::pair<const char*, std::int64_t> sizes[] = {{"pages", shape.pages},
                                                        {"page_size", shape.page_size},
                                                        {"heads", shape.heads},
                                                        {"k_rank", shape.k_rank},
                                                        {"v_rank", shape.v_rank},
                                                        {"d", shape.d},
                                                        {"e", shape.e}};
  for (const auto& [name, size] : sizes) {
    if (size < 1 || size > std::int64_t{1} << 31) {
      Fail(op, name, " of the cache must be from 1 to 2147483648; it is ", size);
    }
  }
}

std::int64_t NumberSize(TpaCacheType type) {
  return type == TpaCacheType::kFloat32 ? 4 : type == TpaCacheType::kInt8 ? 1 : 2;
}

}  // namespace tensor_product_attention

void TpaAppend(const TpaPool& pool, const TpaKeys& tokens, const TpaSequences& sequences,
               const std::int64_t* counts, const std::optional<ConstTensorView>& theta) {
  CheckPool(kAppend, pool);
  const TpaCacheShape& shape = pool.shape;
  struct Factor {
    const char* name;
    const ConstTensorView& view;
    std::int64_t rows, columns;  // of a token
    bool by_token;               // whether a scale is for a whole token
    void* data;
    float* scales;
  };
  const std::array<Factor, 4> factors = {{
      {"ak", tokens.ak, shape.heads, shape.k_rank, true, pool.ak, pool.ak_scale},
      {"av", tokens.av, shape.heads, shape.v_rank, true, pool.av, pool.av_scale},
      {"bk", tokens.bk, shape.k_rank, shape.d, false, pool.bk, pool.bk_scale},
      {"bv", tokens.bv, shape.v_rank, shape.e, false, pool.bv, pool.bv_scale},
  }};
  const bool quantized = shape.type == TpaCacheType::kInt8;
  for (const Factor& factor : factors) {
    const bool a = factor.by_token;
    CheckRank(kAppend, factor.name, factor.view, 4, a ? "(B,N,H,R)" : "(B,N,R,D)");
    CheckAxis(kAppend, factor.name, factor.view, 0, "batches", "ak", tokens.ak.shape(0));
    CheckAxis(kAppend, factor.name, factor.view, 1, "tokens", "ak", tokens.ak.shape(1));
    CheckSameType(kAppend, factor.name, factor.view, "ak", tokens.ak);
    CheckCacheSize(kAppend, factor.name, factor.view.shape(2), a ? "heads" : "ranks", factor.rows);
    CheckCacheSize(kAppend, factor.name, factor.view.shape(3), a ? "ranks" : "features",
                   factor.columns);
    if (factor.data == nullptr || (quantized && factor.scales == nullptr)) {
      Fail(kAppend, "the cache has no memory for ", factor.name);
    }
  }
  CheckType(kAppend, "ak", pool, tokens.ak.dtype());
  const std::int64_t B = tokens.ak.shape(0), N = tokens.ak.shape(1);
  if (theta) {
    CheckTheta(kAppend, *theta, "bk", tokens.ak.dtype(), 1);
    if (shape.d % 2 != 0 || theta->shape(1) != shape.d / 2) {
      Fail(kAppend, "theta has ", theta->shape(1), " angles; bk has ", shape.d,
           " features, and each pair of them needs one");
    }
  }
  CheckRoom(pool, sequences, counts, B, N);
  if (B * N == 0) return;

  const TargetIndex target = ChosenTarget();
  const AppendKernel append = AppendKernelOf(target);
  const DType dtype = tokens.ak.dtype();
  const positions::Kernels angle_kernels = positions::KernelsFor(dtype, target);
  AngleSource source;
  Angles angles;
  std::uint32_t steps = 0;
  if (theta) {
    source.theta = &*theta;
    source.shape = {1};  // each token's angles are computed on their own
    source.per_axis = shape.d / 2;
    angles = AnglesOf(source, shape.d / 2, angle_kernels.chunk);
    for (std::int64_t b = 0; b < B; ++b) {
      steps |=
          StepsOfLine(sequences.lengths[b], counts == nullptr ? N : counts[b], angles.step_count);
    }
  }
  std::int64_t widest = 0;
  for (const Factor& factor : factors) widest = std::max(widest, factor.rows * factor.columns);
  const std::int64_t tasks_of_sequence = DivideUp(N, kTaskTokens);
  const std::int64_t tasks = B * tasks_of_sequence;
  const int workers = B * N * widest < kSerialNumbers
                          ? 1
                          : static_cast<int>(std::min<std::int64_t>(MaxWorkers(), tasks));
  Arrays buffers, tables;
  ScratchPlan plan;
  plan.AddForWorkers(buffers, widest + angle_kernels.chunk);
  plan.AddForWorkers(tables, theta ? angles.RowSize() : 0);
  Scratch scratch(plan.Bytes(workers) + (theta ? AnglesScratch(angles) : 0));
  plan.Take(scratch, workers);
  if (theta) StartAngles(target, dtype, source, steps, scratch, angles);
  const std::int64_t element = SizeOf(dtype), stored = NumberSize(shape.type);
  RunTasks(tasks, workers, [&](std::int64_t task, int worker) {
    const std::int64_t b = task / tasks_of_sequence;
    const std::int64_t first = task % tasks_of_sequence * kTaskTokens;
    const std::int64_t count = counts == nullptr ? N : counts[b];
    for (std::int64_t t = first; t < std::min(count, first + kTaskTokens); ++t) {
      const std::int64_t position = sequences.lengths[b] + t;
      const std::int64_t page =
          sequences.page_table == nullptr
              ? b
              : sequences.page_table[b * sequences.table_stride + position / shape.page_size];
      const std::int64_t slot =
          page * shape.page_size +
          (sequences.page_table == nullptr ? position : position % shape.page_size);
      const float* cos = nullptr;
      if (theta) {
        angle_kernels.fill_table(angles, 0, 1, position, 1, tables.At(worker));
        cos = tables.At(worker);
      }
      for (const Factor& factor : factors) {
        const char* from = static_cast<const char*>(factor.view.data()) +
                           (b * factor.view.stride(0) + t * factor.view.stride(1)) * element;
        char* to = static_cast<char*>(factor.data) + slot * factor.rows * factor.columns * stored;
        if (factor.by_token) {
          append(dtype, from, factor.view.stride(2), factor.rows, factor.columns, nullptr, 0,
                 {to, quantized ? factor.scales + slot : nullptr}, buffers.At(worker));
          continue;
        }
        const bool is_key = factor.view.data() == tokens.bk.data() && factor.data == pool.bk;
        for (std::int64_t r = 0; r < factor.rows; ++r) {
          append(dtype, from + r * factor.view.stride(2) * element, 0, 1, factor.columns,
                 is_key ? cos : nullptr, angles.width,
                 {to + r * factor.columns * stored,
                  quantized ? factor.scales + slot * factor.rows + r : nullptr},
                 buffers.At(worker));
        }
      }
    }
  });
}

void TpaDecode(const TpaQuery& query, const TpaPool& pool, const TensorView& out,
               const TpaSequences& sequences, const std::optional<TensorView>& lse,
               const TpaOptions& options, TpaSplit split) {
  CheckPool(kDecode, pool);
  const TpaCacheShape& shape = pool.shape;
  TpaSizes sizes = CheckQuery(kDecode, query);
  const char* name = query.full ? "q" : "aq";
  if (sizes.N != 1) Fail(kDecode, name, " must have 1 token (axis 1); it has ", sizes.N);
  CheckType(kDecode, name, pool, sizes.dtype);
  CheckCacheSize(kDecode, name, sizes.H, "heads", shape.heads);
  CheckCacheSize(kDecode, query.full ? "q" : "bq", sizes.D, "features", shape.d);
  if (sequences.page_table == nullptr && sizes.B > shape.pages) {
    Fail(kDecode, name, " has ", sizes.B, " batches; the cache has ", shape.pages, " sequences");
  }
  sizes.M = shape.page_size;
  sizes.Rk = shape.k_rank;
  sizes.Rv = shape.v_rank;
  sizes.E = shape.e;
  CheckSplit(kDecode, split);
  const Precision precision = PrecisionOf(kDecode, options.precision, sizes.dtype);
  if (sequences.lengths == nullptr) Fail(kDecode, "lengths must be given");
  CheckSequences(kDecode, sequences, sizes.B, shape.pages, shape.page_size);
  CheckResults(kDecode, sizes, query, out, lse);
  if (sizes.B * sizes.H == 0) return;
  const auto factor = [&](const void* data, const float* scales, std::int64_t rows,
                          std::int64_t columns, std::int64_t token_scales) {
    const std::int64_t token = rows * columns;
    CacheFactor result{data, shape.page_size * token, token, columns};
    if (shape.type == TpaCacheType::kInt8) {
      result.scales = scales;
      result.scale_page = shape.page_size * token_scales;
      result.scale_token = token_scales;
      result.scale_row = 1;
    }
    return result;
  };
  DecodeProblem problem = DecodeProblemOf(sizes, query, out, lse, options);
  problem.storage = static_cast<Storage>(shape.type);
  problem.ak = factor(pool.ak, pool.ak_scale, shape.heads, shape.k_rank, 1);
  problem.av = factor(pool.av, pool.av_scale, shape.heads, shape.v_rank, 1);
  problem.bk = factor(pool.bk, pool.bk_scale, shape.k_rank, shape.d, shape.k_rank);
  problem.bv = factor(pool.bv, pool.bv_scale, shape.v_rank, shape.e, shape.v_rank);
  problem.sequences = sequences;
  RunDecode(problem, precision, split);
}

}  // namespace attnops
