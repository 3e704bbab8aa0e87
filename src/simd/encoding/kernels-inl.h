// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_SIMD_ENCODING_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ENCODING_KERNELS_INL_H_
#undef ATTNOPS_SRC_SIMD_ENCODING_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ENCODING_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "src/simd/angles-inl.h"
#include "src/simd/encoding/backward-inl.h"
#include "src/simd/encoding/encoding.h"
#include "src/simd/encoding/forward-inl.h"
#include "src/simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

template <typename T>
void FillTurnsOf(const ConstTensorView& theta, const Angles& angles) {
  const std::int64_t stride = theta.stride(0);
  const std::int64_t count = theta.shape(1);
  switch (theta.dtype()) {
    case DType::kFloat32:
      return FillTurns<T>(static_cast<const float*>(theta.data()), stride, count, angles);
    case DType::kFloat16:
      return FillTurns<T>(static_cast<const Float16*>(theta.data()), stride, count, angles);
    case DType::kBFloat16:
      return FillTurns<T>(static_cast<const BFloat16*>(theta.data()), stride, count, angles);
  }
}

// The fence makes streamed stores visible before the task counts as done.
template <class Kernel, typename T>
void Apply(const EncodingProblem& problem, const EncodingRegion& region, const AngleTable& table,
           float* scratch, const EncodingColumns& columns) {
  ForEachRowSet<Kernel, T>(problem, region, table, scratch, columns);
  if (problem.stream) hwy::FlushStream();
}

template <class E, Pass kPass, typename T>
struct KernelChoice {
  // A kernel for the tokens of the grid, and one for those of the prefix.
  template <template <class> class Kernel>
  static void Set(EncodingKernels& kernels) {
    kernels.apply[0] = Apply<Kernel<E>, T>;
    kernels.apply[1] = nullptr;
    if constexpr (E::kHasPrefix) kernels.apply[1] = Apply<Kernel<Unplaced<E>>, T>;
    kernels.apply[2] = nullptr;
  }

  template <class Act>
  struct Elements {
    template <class Rows>
    using Kernel = std::conditional_t<kPass == Pass::kForward, ForwardElements<Rows, Act>,
                                      BackwardElements<Rows, Act>>;
  };
  template <class Rows>
  using Features =
      std::conditional_t<kPass == Pass::kForward, ForwardFeatures<Rows>, BackwardFeatures<Rows>>;
  template <class Rows>
  using Sequence =
      std::conditional_t<kPass == Pass::kForward, ForwardSequence<Rows>, BackwardSequence<Rows>>;

  static EncodingKernels Choose(Activation::Kind act, SoftmaxAxis axis) {
    constexpr int kRows = EncodingColumns::Rows(kPass);
    EncodingKernels kernels;
    kernels.chunk = static_cast<std::int64_t>(ChunkSize());
    kernels.vector_bytes = static_cast<std::int64_t>(hn::Lanes(DF()) * sizeof(float));
    kernels.plain_parts = E::kPlainParts;
    kernels.fill_turns = FillTurnsOf<T>;
    kernels.fill_steps = FillSteps;
    kernels.fill_table = FillTable<T>;
    kernels.add_columns[0] = AddColumns<E, kPass, T>;
    kernels.add_columns[1] = nullptr;
    if constexpr (E::kHasPrefix) kernels.add_columns[1] = AddColumns<Unplaced<E>, kPass, T>;
    kernels.start_columns = StartColumns<kRows>;
    kernels.merge_columns = MergeColumns<kRows>;
    kernels.finish_columns = FinishColumns<kRows>;
    switch (act) {
      case Activation::Kind::kNone:
        Set<Elements<ActNone>::template Kernel>(kernels);
        kernels.apply[2] = Apply<typename Elements<ActNone>::template Kernel<Stepped<E>>, T>;
        break;
      case Activation::Kind::kRelu:
        Set<Elements<ActRelu>::template Kernel>(kernels);
        break;
      case Activation::Kind::kSigmoid:
        Set<Elements<ActSigmoid>::template Kernel>(kernels);
        break;
      case Activation::Kind::kSilu:
        Set<Elements<ActSilu>::template Kernel>(kernels);
        break;
      case Activation::Kind::kSoftmax:
        if (axis == SoftmaxAxis::kFeatures) {
          Set<Features>(kernels);
        } else {
          Set<Sequence>(kernels);
        }
        break;
    }
    return kernels;
  }
};

template <class E, typename T>
EncodingKernels KernelsOf(Pass pass, Activation::Kind act, SoftmaxAxis axis) {
  return pass == Pass::kForward ? KernelChoice<E, Pass::kForward, T>::Choose(act, axis)
                                : KernelChoice<E, Pass::kBackward, T>::Choose(act, axis);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

// For a file that is compiled for every target: the function `name`, which returns the kernels of
// an encoding's rows and a type. The first for each target, the second once.
#undef ATTNOPS_TARGET_KERNELS
#define ATTNOPS_TARGET_KERNELS(name, rows, type)                                      \
  HWY_BEFORE_NAMESPACE();                                                             \
  namespace attnops::HWY_NAMESPACE {                                                  \
  EncodingKernels name##OfTarget(Pass pass, Activation::Kind act, SoftmaxAxis axis) { \
    return KernelsOf<rows, type>(pass, act, axis);                                    \
  }                                                                                   \
  }                                                                                   \
  HWY_AFTER_NAMESPACE()
#undef ATTNOPS_EXPORT_KERNELS
#define ATTNOPS_EXPORT_KERNELS(name)                                    \
  namespace attnops {                                                   \
  HWY_EXPORT(name##OfTarget);                                           \
  EncodingKernels name(TargetIndex target, Pass pass, Activation::Kind act, SoftmaxAxis axis) { \
    return ATTNOPS_DISPATCH(name##OfTarget, target)(pass, act, axis);   \
  }                                                                     \
  }  // namespace attnops

#endif  // ATTNOPS_SRC_SIMD_ENCODING_KERNELS_INL_H_
