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

// Chunks of a state's row whose sums over its rows stay in registers.
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

// C chunks of columns from `column` on, of which the last has n elements.
template <typename T, int C>
void StepColumns(const Problem& problem, Head head, const float* from, std::int64_t from_stride,
                 float* to, std::int64_t to_stride, std::int64_t column, std::size_t n,
                 float log_decay) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  const auto count = [&](int c) ATTNOPS_INLINE_LAMBDA { return c + 1 < C ? ChunkSize() : n; };
  alignas(64) float v[C * kMaxChunk];
  alignas(64) float keep[C * kMaxChunk], rest[C * kMaxChunk];
  for (int c = 0; c < C; ++c) {
    LoadNatural<T>(RowAt<T>(problem.v, head.batch, head.head, head.first), false, column + c * size,
                   count(c), v + c * size);
    alignas(64) float logs[kMaxChunk] = {};
    if (problem.OnValues())
      LoadNatural<T>(RowPointer(problem.log_decay_v, problem.float_decay_v, sizeof(T), head),
                     problem.float_decay_v, column + c * size, count(c), logs);
    MakeUpdateWeights(logs, size, keep + c * size, rest + c * size);
  }
  Pack<2 * C> sums = attnops::HWY_NAMESPACE::Fill<2 * C>(0.0f);
  StepRows rows;
  for (std::int64_t first = 0; first < problem.D; first += size) {
    const std::int64_t some = std::min(size, problem.D - first);
    LoadStepRows<T>(problem, head, first, static_cast<std::size_t>(some), log_decay, rows);
    for (std::int64_t i = 0; i < some; ++i) {
      const VF q = hn::Set(DF(), rows.q[i]);
      const VF k = hn::Set(DF(), rows.k[i]);
      const Chunk row_keep = attnops::HWY_NAMESPACE::Fill<2>(rows.keep[i]);
      const Chunk row_rest = attnops::HWY_NAMESPACE::Fill<2>(rows.rest[i]);
      const float* read = from == nullptr ? nullptr : from + (first + i) * from_stride + column;
      float* write = to == nullptr ? nullptr : to + (first + i) * to_stride + column;
      ForEach<C>([&](auto c) ATTNOPS_INLINE_LAMBDA {
        constexpr int at = decltype(c)::value;
        Chunk state = Mul(LoadChunk(v + at * size), Chunk{{k, k}});
        if (read != nullptr) {
          Chunk old = LoadChunkN(read + at * size, count(at));
          if (problem.OnValues()) {
            old = MulAdd(LoadChunk(keep + at * size), old, Mul(LoadChunk(rest + at * size), old));
          }
          state = MulAdd(row_keep, old, MulAdd(row_rest, old, state));
        }
        sums.v[2 * at] = hn::MulAdd(q, state.v[0], sums.v[2 * at]);
        sums.v[2 * at + 1] = hn::MulAdd(q, state.v[1], sums.v[2 * at + 1]);
        if (write != nullptr) StoreChunkN(state, write + at * size, count(at));
      });
    }
  }
  T* out = RowAt<T>(problem.out, head.batch, head.head, head.first) + column;
  for (int c = 0; c < C; ++c) {
    const Chunk sum{{sums.v[2 * c], sums.v[2 * c + 1]}};
    alignas(64) float natural[kMaxChunk];
    StoreChunk(Mul(sum, attnops::HWY_NAMESPACE::Fill<2>(problem.scale)), natural);
    StoreChunkN(LoadFloatsAs<T>(natural, ChunkSize()), out + c * size, count(c));
  }
}

template <typename T>
void Step(const Problem& problem, Head head, const float* from, std::int64_t from_stride, float* to,
          std::int64_t to_stride) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  alignas(64) float logs[kBlockTokens] = {};
  if (problem.decay != Decay::kFeature) LoadLogDecays<T>(problem, head, {0, 1}, logs);
  std::int64_t column = 0;
  for (; column + kStepChunks * size <= problem.E; column += kStepChunks * size) {
    StepColumns<T, kStepChunks>(problem, head, from, from_stride, to, to_stride, column,
                                ChunkSize(), logs[0]);
  }
  for (; column < problem.E; column += size) {
    StepColumns<T, 1>(problem, head, from, from_stride, to, to_stride, column,
                      static_cast<std::size_t>(std::min(size, problem.E - column)), logs[0]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_STEP_INL_H_
