// out = encode(f(x)).

#if defined(ATTNOPS_SRC_OPS_POSITION_ENCODING_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_POSITION_ENCODING_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_POSITION_ENCODING_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/position_encoding/rows-inl.h"
#include "src/positions/encode-inl.h"
#include "src/rowops/activation-inl.h"
#include "src/rowops/columns-inl.h"
#include "src/rowops/features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::position_encoding {
namespace HWY_NAMESPACE {

// Each kernel writes the output of kRows ≤ kRowSet rows; `scratch` has two plain rows of floats
// for each.
template <class E>
struct ForwardKernel {
  static constexpr int kPlainParts = E::kPlainParts;
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = false;

  // Writes encode(y<K>(j, n)).
  template <typename T, class Y>
  static HWY_INLINE void EncodeRow(const RowShape& shape, const Row<T>& row, const Y& y) {
    ForEachStrip<E::kStripChunks>(
        shape, shape.encoded, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          StoreStrip<2, K>(shape,
                           EncodeStrip<E, K, T>(shape, y.template operator()<K>(j, n),
                                                E::AnglesOf(shape, row), j, n),
                           row.out, j, n);
        });
  }
};

// Element-wise activations.
template <class E, class Act>
struct ForwardElements : ForwardKernel<E> {
  static constexpr int kRowSet = 1;

  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const T* x = rows[0].x;
    ForwardKernel<E>::EncodeRow(shape, rows[0],
                                [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
                                  return Act::template Forward<AccuracyFor<T>()>(
                                      LoadStrip<E::kPlainParts, K>(shape, x, j, n));
                                });
  }
};

// Softmax over the features: exp of the rows in scratch, then scaled and encoded.
template <class E>
struct ForwardFeatures : ForwardKernel<E> {
  static constexpr int kRowSet = 4;  // so that the reductions of several rows overlap

  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* scratch) {
    constexpr int kParts = E::kPlainParts;
    VF scales[kRows];
    SoftmaxOfFeatures<E, kRows, T>(
        shape, [&](int r) ATTNOPS_INLINE_LAMBDA { return rows[r].x; }, scratch, scales);
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + r * kParts * shape.width;
      const VF scale = scales[r];
      ForwardKernel<E>::EncodeRow(
          shape, rows[r], [&]<int K>(std::size_t j, std::size_t) ATTNOPS_INLINE_LAMBDA {
            return Mul(LoadTable<kParts, K>(shape, e, j), Fill<2 * kParts * K>(scale));
          });
    }
  }
};

// Softmax over the sequence, from finished columns.
template <class E>
struct ForwardSequence : ForwardKernel<E> {
  static constexpr int kRowSet = 1;

  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    constexpr int kParts = E::kPlainParts;
    const Row<T>& row = rows[0];
    const float* scale = row.columns + kParts * shape.width;
    ForwardKernel<E>::EncodeRow(
        shape, row, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          const auto e =
              ExpDifference<AccuracyFor<T>()>(LoadStrip<kParts, K>(shape, row.x, j, n),
                                              LoadTable<kParts, K>(shape, row.columns, j));
          return Mul(e, LoadTable<kParts, K>(shape, scale, j));
        });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops::position_encoding
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_FORWARD_INL_H_
