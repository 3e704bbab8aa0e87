// One token: the state is read and written once, in the order it has in memory.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_STEP_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_STEP_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_STEP_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "src/ops/linear_attention/causal_decay-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

// Chunks of a state's row whose sums over a few rows stay in registers.
constexpr int kStepChunks = 4;

// n floats in natural order from a row of T or, if `is_float`, of float32.
template <typename T>
HWY_INLINE void LoadNatural(const void* row, bool is_float, std::int64_t column, std::size_t n,
                            float* to) {
  if (is_float) {
    StoreChunk(LoadChunkN(static_cast<const float*>(row) + column, n), to);
  } else {
    StoreFloatsFrom<T>(LoadChunkN(static_cast<const T*>(row) + column, n), to, ChunkSize());
  }
}
HWY_INLINE const void* RowPointer(const Input& tensor, bool is_float, std::size_t size, Head head) {
  const std::int64_t at =
      head.batch * tensor.batch + head.head * tensor.head + head.first * tensor.token;
  return static_cast<const char*>(tensor.data) +
         at * static_cast<std::int64_t>(is_float ? sizeof(float) : size);
}

// q, k and the weights of λ for a chunk of the state's rows.
struct StepRows {
  alignas(64) float q[kMaxChunk], k[kMaxChunk], keep[kMaxChunk], rest[kMaxChunk];
};
template <typename T>
HWY_INLINE void LoadStepRows(const Problem& problem, Head head, std::int64_t first, std::size_t n,
                             float log_decay, StepRows& rows) {
  LoadNatural<T>(RowAt<T>(problem.q, head.batch, head.key_head, head.first), false, first, n,
                 rows.q);
  LoadNatural<T>(RowAt<T>(problem.k, head.batch, head.key_head, head.first), false, first, n,
                 rows.k);
  alignas(64) float logs[kMaxChunk];
  if (problem.decay == Decay::kFeature) {
    LoadNatural<T>(RowPointer(problem.log_decay, problem.float_decay, sizeof(T), head),
                   problem.float_decay, first, n, logs);
  } else {
    StoreChunk(Fill<2>(log_decay), logs);
  }
  MakeUpdateWeights(logs, static_cast<std::int64_t>(ChunkSize()), rows.keep, rows.rest);
}

// What the columns of a step have: v, the weights of μ and the sums of the output, in natural
// order. As many columns as fit are in L1 at a time.
constexpr std::int64_t kStepColumns = 512;
struct StepColumns {
  alignas(64) float v[kStepColumns], keep[kStepColumns], rest[kStepColumns], sums[kStepColumns];
};
template <typename T>
HWY_INLINE void LoadStepColumns(const Problem& problem, Head head, std::int64_t first,
                                std::int64_t count, StepColumns& columns) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t at = 0; at < count; at += size) {
    const auto n = static_cast<std::size_t>(std::min(size, count - at));
    LoadNatural<T>(RowAt<T>(problem.v, head.batch, head.head, head.first), false, first + at, n,
                   columns.v + at);
    StoreChunk(Fill<2>(0.0f), columns.sums + at);
    if (!problem.OnValues()) continue;
    alignas(64) float logs[kMaxChunk];
    LoadNatural<T>(RowPointer(problem.log_decay_v, problem.float_decay_v, sizeof(T), head),
                   problem.float_decay_v, first + at, n, logs);
    MakeUpdateWeights(logs, size, columns.keep + at, columns.rest + at);
  }
}

// States in memory, rows `stride` floats apart: read, unless it is null and the state 0, and
// written, unless it is null.
struct StepState {
  const float* from;
  std::int64_t from_stride;
  float* to;
  std::int64_t to_stride;
};

// C chunks of columns from `column` of the state, `at` of `columns` on, of which the last has n
// elements, for some rows from `first` on.
template <int C>
HWY_INLINE void StepTile(const StepState& state, const StepRows& rows, std::int64_t first,
                         std::int64_t count, std::int64_t column, std::int64_t at, std::size_t n,
                         bool on_values, StepColumns& columns) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const auto elements = [&](int c) ATTNOPS_INLINE_LAMBDA { return c + 1 < C ? ChunkSize() : n; };
  const DF d;
  Pack<2 * C> sums = MakePack<2 * C>([&](int i) ATTNOPS_INLINE_LAMBDA {
    return hn::Load(d, columns.sums + at + static_cast<std::size_t>(i) * hn::Lanes(d));
  });
  for (std::int64_t i = 0; i < count; ++i) {
    const VF q = hn::Set(d, rows.q[i]);
    const VF k = hn::Set(d, rows.k[i]);
    const Chunk row_keep = Fill<2>(rows.keep[i]);
    const Chunk row_rest = Fill<2>(rows.rest[i]);
    const float* read =
        state.from == nullptr ? nullptr : state.from + (first + i) * state.from_stride + column;
    float* write =
        state.to == nullptr ? nullptr : state.to + (first + i) * state.to_stride + column;
    ForEach<C>([&](auto c) ATTNOPS_INLINE_LAMBDA {
      constexpr int kAt = decltype(c)::value;
      Chunk next = Mul(LoadChunk(columns.v + at + kAt * size), Chunk{{k, k}});
      if (read != nullptr) {
        Chunk old = LoadChunkN(read + kAt * size, elements(kAt));
        if (on_values) {
          old = MulAdd(LoadChunk(columns.keep + at + kAt * size), old,
                       Mul(LoadChunk(columns.rest + at + kAt * size), old));
        }
        next = MulAdd(row_keep, old, MulAdd(row_rest, old, next));
      }
      sums.v[2 * kAt] = hn::MulAdd(q, next.v[0], sums.v[2 * kAt]);
      sums.v[2 * kAt + 1] = hn::MulAdd(q, next.v[1], sums.v[2 * kAt + 1]);
      if (write != nullptr) StoreChunkN(next, write + kAt * size, elements(kAt));
    });
  }
  ForEach<2 * C>([&](auto i) ATTNOPS_INLINE_LAMBDA {
    hn::Store(sums.v[i()], d, columns.sums + at + static_cast<std::size_t>(i()) * hn::Lanes(d));
  });
}

// Rows of the state are taken a chunk of them at a time, all columns of these before the next, so
// that memory is read in its order; the rows after them are prefetched.
template <typename T>
void Step(const Problem& problem, Head head, const float* from, std::int64_t from_stride, float* to,
          std::int64_t to_stride) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const StepState state{from, from_stride, to, to_stride};
  alignas(64) float logs[kBlockTokens] = {};
  if (problem.decay != Decay::kFeature) LoadLogDecays<T>(problem, head, {0, 1}, logs);
  StepRows rows;
  StepColumns columns;
  for (std::int64_t begin = 0; begin < problem.E; begin += kStepColumns) {
    const std::int64_t width = std::min(kStepColumns, problem.E - begin);
    LoadStepColumns<T>(problem, head, begin, width, columns);
    for (std::int64_t first = 0; first < problem.D; first += size) {
      const std::int64_t count = std::min(size, problem.D - first);
      LoadStepRows<T>(problem, head, first, static_cast<std::size_t>(count), logs[0], rows);
      for (std::int64_t i = first + size; from != nullptr && i < first + size + count; ++i) {
        if (i >= problem.D) break;
        const float* row = from + i * from_stride + begin;
        for (std::int64_t at = 0; at < width; at += 16) hwy::Prefetch(row + at);
      }
      std::int64_t at = 0;
      for (; at + kStepChunks * size <= width; at += kStepChunks * size) {
        StepTile<kStepChunks>(state, rows, first, count, begin + at, at, ChunkSize(),
                              problem.OnValues(), columns);
      }
      for (; at < width; at += size) {
        StepTile<1>(state, rows, first, count, begin + at, at,
                    static_cast<std::size_t>(std::min(size, width - at)), problem.OnValues(),
                    columns);
      }
    }
    T* out = RowAt<T>(problem.out, head.batch, head.head, head.first) + begin;
    for (std::int64_t at = 0; at < width; at += size) {
      float* sums = columns.sums + at;
      StoreChunk(Mul(LoadChunk(sums), Fill<2>(problem.scale)), sums);
      StoreChunkN(LoadFloatsAs<T>(sums, ChunkSize()), out + at,
                  static_cast<std::size_t>(std::min(size, width - at)));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_STEP_INL_H_
