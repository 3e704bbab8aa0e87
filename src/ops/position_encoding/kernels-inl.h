// The table of kernels for one element type.

#if defined(ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_INL_H_
#undef ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_INL_H_
#else
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "src/ops/position_encoding/backward-inl.h"
#include "src/ops/position_encoding/forward-inl.h"
#include "src/ops/position_encoding/kernels.h"
#include "src/ops/position_encoding/pairs-inl.h"
#include "src/ops/position_encoding/theta-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::position_encoding {
namespace HWY_NAMESPACE {

// Softmax over the sequence: adds the tokens of a region, a block, to the columns' sums.
template <class E, Pass kPass, typename T>
void AddColumns(const Problem& problem, const Region& region, const AngleTable& table,
                const Columns& columns, bool first) {
  constexpr int kParts = E::kPlainParts;
  const RowShape shape = ShapeOf(problem, table);
  for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
    for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
      // The same of the next head, or of the next batch's first one, is fetched meanwhile, line by
      // line: its rows are far apart, and all at once would be more lines than can be under way.
      const bool last = h + 1 == region.head_end;
      const std::int64_t next_b = last ? std::min(b + 1, region.batch_end - 1) : b;
      const std::int64_t next_h = last ? region.head_begin : h + 1;
      const auto x_of = [&]<int K>(std::int64_t t, std::size_t j,
                                   std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const std::int64_t token = region.token_begin + t;
        PrefetchStrip<kParts>(shape, RowAt<T>(problem.x, next_b, next_h, token), j, n);
        return LoadStrip<kParts, K>(shape, RowAt<T>(problem.x, b, h, token), j, n);
      };
      const auto dy_of = [&]<int K>(std::int64_t t, std::size_t j,
                                    std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const std::int64_t token = region.token_begin + t;
        PrefetchStrip<2>(shape, RowAt<T>(problem.d_out, next_b, next_h, token), j, n);
        const auto d = LoadStrip<2, K>(shape, RowAt<T>(problem.d_out, b, h, token), j, n);
        const TableAngles angles{table.Cos(t, h - region.head_begin), shape.width};
        return DecodeStrip<E, K, T>(shape, d, angles, j, n);
      };
      AddToColumns<kParts, Columns::Rows(kPass), T>(shape, region.token_end - region.token_begin,
                                                    x_of, dy_of, columns.At(b, h), first);
    }
  }
}

// The fence makes streamed stores visible before the task counts as done.
template <class Kernel, typename T>
void Apply(const Problem& problem, const Region& region, const AngleTable& table, float* scratch,
           const Columns& columns) {
  ForEachRowSet<Kernel, T>(problem, region, table, scratch, columns);
  if (problem.stream) hwy::FlushStream();
}

template <class E, Pass kPass, typename T>
struct KernelChoice {
  // A kernel for the tokens of the grid, and one for those of the prefix.
  template <template <class> class Kernel, class Activate>
  static void Set(Kernels& kernels) {
    kernels.apply = Apply<Kernel<E>, T>;
    // Of the forward's choice alone: that has the statistics it needs.
    if constexpr (kPass == Pass::kForward) kernels.add_theta = AddTheta<E, Activate, T>;
    if constexpr (E::kHasPrefix) kernels.apply_prefix = Apply<Kernel<WithoutAngles<E>>, T>;
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

  static Kernels Choose(Activation::Kind act, SoftmaxAxis axis) {
    constexpr int kRows = Columns::Rows(kPass);
    Kernels kernels = {};
    kernels.chunk = static_cast<std::int64_t>(ChunkSize());
    kernels.vector_bytes = static_cast<std::int64_t>(hn::Lanes(DF()) * sizeof(float));
    kernels.plain_parts = E::kPlainParts;
    kernels.add_columns = AddColumns<E, kPass, T>;
    if constexpr (E::kHasPrefix)
      kernels.add_prefix_columns = AddColumns<WithoutAngles<E>, kPass, T>;
    if constexpr (std::is_same_v<E, RotateRows>) {
      kernels.gather = Gather<T>;
      kernels.scatter = Scatter<T>;
    }
    kernels.start_columns = StartColumns<kRows>;
    kernels.merge_columns = MergeColumns<kRows>;
    kernels.finish_columns = FinishColumns<kRows>;
    switch (act) {
      case Activation::Kind::kNone:
        Set<Elements<ActNone>::template Kernel, ActivateElements<E, ActNone>>(kernels);
        kernels.apply_stepped = Apply<typename Elements<ActNone>::template Kernel<Stepped<E>>, T>;
        if constexpr (std::is_same_v<E, RotateRows>) {
          kernels.apply_tail = Apply<RotateWithTail<kPass>, T>;
          kernels.apply_neighbours = Apply<RotateNeighbours<kPass>, T>;
        }
        break;
      case Activation::Kind::kRelu:
        Set<Elements<ActRelu>::template Kernel, ActivateElements<E, ActRelu>>(kernels);
        break;
      case Activation::Kind::kSigmoid:
        Set<Elements<ActSigmoid>::template Kernel, ActivateElements<E, ActSigmoid>>(kernels);
        break;
      case Activation::Kind::kSilu:
        Set<Elements<ActSilu>::template Kernel, ActivateElements<E, ActSilu>>(kernels);
        break;
      case Activation::Kind::kSoftmax:
        if (axis == SoftmaxAxis::kFeatures) {
          Set<Features, ActivateFeatures<E>>(kernels);
        } else {
          Set<Sequence, ActivateSequence<E>>(kernels);
        }
        break;
    }
    return kernels;
  }
};

template <Encoding kEncoding, typename T>
Kernels ChooseKernels(Pass pass, Activation::Kind act, SoftmaxAxis axis) {
  using E = std::conditional_t<kEncoding == Encoding::kRotate, RotateRows, CosineRows>;
  return pass == Pass::kForward ? KernelChoice<E, Pass::kForward, T>::Choose(act, axis)
                                : KernelChoice<E, Pass::kBackward, T>::Choose(act, axis);
}

template <Encoding kEncoding, typename T>
Choice KernelsOfTarget() {
  return ChooseKernels<kEncoding, T>;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::position_encoding
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_KERNELS_INL_H_
