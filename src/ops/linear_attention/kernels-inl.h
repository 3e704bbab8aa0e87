// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/backward-inl.h"
#include "src/ops/linear_attention/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

template <typename T>
void FinishKv(const Problem& problem, const Panels& kv) {
  ForEachInnerPart(problem, kv, [&](const Panels& rows, std::int64_t) HWY_ATTR {
    ZeroPadding<T>(problem.inner_part, problem.E, rows);
  });
}

template <typename T>
void StoreKv(const Problem& problem, Head head, const Panels& kv) {
  const Rows<float> to = RowsOf<float>(problem.kv, head, 0);
  ForEachInnerPart(problem, kv, [&](const Panels& rows, std::int64_t first) HWY_ATTR {
    StoreMatrix<T>(rows, problem.inner_part, problem.E, to[first], to.stride);
  });
}

template <typename T>
void LoadKv(const Problem& problem, Head head, const Panels& kv) {
  const Rows<const float> from = RowsOf<float>(problem.kept_kv, head, 0);
  ForEachInnerPart(problem, kv, [&](const Panels& rows, std::int64_t first) HWY_ATTR {
    LoadMatrix<T>(from[first], from.stride, problem.inner_part, problem.E, rows);
  });
}

inline void TransposeKv(const Problem& problem, const Panels& from, const Panels& to) {
  TransposePanels(from, InnerWidth(problem), Padded(problem.E), to);
}

inline void AddPanel(const Problem& problem, const float* from, float* to) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t at = 0; at < InnerWidth(problem) * chunk; at += chunk) {
    StoreChunk(Add(LoadChunk(to + at), LoadChunk(from + at)), to + at);
  }
}

#if !ATTNOPS_ONE_LANE
inline void PairRowsInPlace(const Panels& matrix, std::int64_t rows, std::int64_t columns) {
  PairRows(matrix, rows, ChunksOf(columns), matrix);
}
#endif

template <typename T>
Kernels KernelsOfTarget() {
  Kernels kernels;
  kernels.chunk = static_cast<std::int64_t>(ChunkSize());
  kernels.make_kv = MakeKv<T>;
  kernels.finish_kv = FinishKv<T>;
  kernels.store_kv = StoreKv<T>;
  kernels.load_kv = LoadKv<T>;
  kernels.transpose = TransposeKv;
  kernels.pair_rows = nullptr;
#if !ATTNOPS_ONE_LANE
  if constexpr (kHasPairs<T>) kernels.pair_rows = PairRowsInPlace;
#endif
  kernels.add_panel = AddPanel;
  kernels.forward = Forward<T>;
  kernels.backward_query = BackwardQuery<T>;
  kernels.backward_key = BackwardKey<T>;
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_KERNELS_INL_H_
