// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/lrpe_rotate/backward-inl.h"
#include "src/ops/lrpe_rotate/forward-inl.h"
#include "src/ops/lrpe_rotate/kernels.h"
#include "src/simd/angles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {
template <typename T>
void FillTurnsOf(const ConstTensorView& theta, std::int64_t pairs, const Angles& angles) {
  const std::int64_t stride = theta.stride(0);
  const std::int64_t count = theta.shape(1);
  switch (theta.dtype()) {
    case DType::kFloat32:
      return FillTurns<T>(static_cast<const float*>(theta.data()), stride, count, pairs, angles);
    case DType::kFloat16:
      return FillTurns<T>(static_cast<const Float16*>(theta.data()), stride, count, pairs, angles);
    case DType::kBFloat16:
      return FillTurns<T>(static_cast<const BFloat16*>(theta.data()), stride, count, pairs, angles);
  }
}

using Apply = decltype(Kernels::apply);

// The streamed form where the problem asks for it. The fence makes streamed stores
// visible before the task counts as done.
template <typename T, class Cached, class Streamed>
void ApplyEither(const Problem& problem, const Region& region, const AngleTable& table,
                 float* scratch, const Columns& columns) {
  if (!problem.stream) {
    return ForEachRowSet<T, Cached>(problem, region, table, scratch, columns);
  }
  ForEachRowSet<T, Streamed>(problem, region, table, scratch, columns);
  hwy::FlushStream();
}

template <Pass kPass, typename T, class Act>
constexpr Apply ElementsOf() {
  if constexpr (kPass == Pass::kForward) {
    return ApplyEither<T, ForwardElements<T, Act, Store::kCached>,
                       ForwardElements<T, Act, Store::kStreamed>>;
  } else {
    return ApplyEither<T, BackwardElements<T, Act, Store::kCached>,
                       BackwardElements<T, Act, Store::kStreamed>>;
  }
}

template <Pass kPass, typename T>
Apply SoftmaxOf(SoftmaxAxis axis) {
  const bool features = axis == SoftmaxAxis::kFeatures;
  if constexpr (kPass == Pass::kForward) {
    return features ? ApplyEither<T, ForwardFeatures<T, Store::kCached>,
                                  ForwardFeatures<T, Store::kStreamed>>
                    : ApplyEither<T, ForwardSequence<T, Store::kCached>,
                                  ForwardSequence<T, Store::kStreamed>>;
  } else {
    return features ? ApplyEither<T, BackwardFeatures<T, Store::kCached>,
                                  BackwardFeatures<T, Store::kStreamed>>
                    : ApplyEither<T, BackwardSequence<T, Store::kCached>,
                                  BackwardSequence<T, Store::kStreamed>>;
  }
}

template <Pass kPass, typename T>
Apply ApplyOf(Activation::Kind act, SoftmaxAxis axis) {
  switch (act) {
    case Activation::Kind::kNone:
      return ElementsOf<kPass, T, ActNone>();
    case Activation::Kind::kRelu:
      return ElementsOf<kPass, T, ActRelu>();
    case Activation::Kind::kSigmoid:
      return ElementsOf<kPass, T, ActSigmoid>();
    case Activation::Kind::kSilu:
      return ElementsOf<kPass, T, ActSilu>();
    case Activation::Kind::kSoftmax:
      return SoftmaxOf<kPass, T>(axis);
  }
  return nullptr;
}

// `width` is that of half a row: the statistics of a (b,h) have rows of twice that.
template <int kRows>
void StartColumnsOf(float* columns, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = 0; i < count; ++i) {
    StartColumns<kRows>(columns + i * kRows * 2 * width, 2 * width);
  }
}
template <int kRows>
void MergeColumnsOf(float* to, const float* from, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = i * kRows * 2 * width;
    MergeColumns<kRows>(to + at, from + at, 2 * width);
  }
}
template <int kRows>
void FinishColumnsOf(float* columns, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = 0; i < count; ++i) {
    FinishColumns<kRows>(columns + i * kRows * 2 * width, 2 * width);
  }
}

template <Pass kPass, typename T>
Kernels KernelsOf(Activation::Kind act, SoftmaxAxis axis) {
  constexpr int kRows = Columns::Rows(kPass);
  Kernels kernels;
  kernels.chunk = static_cast<std::int64_t>(ChunkSize());
  kernels.vector_bytes = static_cast<std::int64_t>(hn::Lanes(DF()) * sizeof(float));
  kernels.fill_turns = FillTurnsOf<T>;
  kernels.fill_steps = FillSteps;
  kernels.fill_table = FillTable;
  kernels.apply = ApplyOf<kPass, T>(act, axis);
  kernels.start_columns = StartColumnsOf<kRows>;
  if constexpr (kPass == Pass::kForward) {
    kernels.add_columns = AddColumnsForward<T>;
  } else {
    kernels.add_columns = AddColumnsBackward<T>;
  }
  kernels.merge_columns = MergeColumnsOf<kRows>;
  kernels.finish_columns = FinishColumnsOf<kRows>;
  return kernels;
}

template <typename T>
HWY_INLINE Kernels KernelsOfType(Pass pass, Activation::Kind act, SoftmaxAxis axis) {
  return pass == Pass::kForward ? KernelsOf<Pass::kForward, T>(act, axis)
                                : KernelsOf<Pass::kBackward, T>(act, axis);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_KERNELS_INL_H_
