// dx = f'(x)ᵀ · decode(d_out).

#if defined(ATTNOPS_SRC_OPS_POSITION_ENCODING_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_POSITION_ENCODING_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_POSITION_ENCODING_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_BACKWARD_INL_H_
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

// Each kernel writes the gradient of kRows ≤ kRowSet rows; `scratch` has two plain rows of floats
// for each.
template <class E>
struct BackwardKernel {
  static constexpr int kPlainParts = E::kPlainParts;
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = true;

  // use<K>(j, n, dy) with dy = decode(d_out).
  template <typename T, class Use>
  static HWY_INLINE void DecodeRow(const RowShape& shape, const Row<T>& row, const Use& use) {
    ForEachStrip<E::kStripChunks>(
        shape, shape.encoded, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          const auto d = LoadStrip<2, K>(shape, row.d_out, j, n);
          use.template operator()<K>(j, n,
                                     DecodeStrip<E, K, T>(shape, d, E::AnglesOf(shape, row), j, n));
        });
  }
};

template <class E, class Act>
struct BackwardElements : BackwardKernel<E> {
  static constexpr bool kReadsX = Act::kUsesX;
  static constexpr int kRowSet = 1;

  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    constexpr int kParts = E::kPlainParts;
    const Row<T>& row = rows[0];
    BackwardKernel<E>::DecodeRow(
        shape, row,
        [&]<int K>(std::size_t j, std::size_t n, const Strip<kParts, K>& dy) ATTNOPS_INLINE_LAMBDA {
          if constexpr (Act::kUsesX) {
            const auto dx = Act::template Backward<AccuracyFor<T>()>(
                LoadStrip<kParts, K>(shape, row.x, j, n), dy);
            StoreStrip<kParts, K>(shape, dx, row.out, j, n);
          } else {
            StoreStrip<kParts, K>(shape, dy, row.out, j, n);
          }
        });
  }
};

// With p = e·scale: dx = p·(dy − Σ p·dy), the exponentials and dy of the rows in scratch. The sum
// is over p and not e, which may be e^64 times as large: e·dy could overflow or underflow.
template <class E>
struct BackwardFeatures : BackwardKernel<E> {
  static constexpr int kRowSet = 4;  // so that the reductions of several rows overlap

  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* scratch) {
    constexpr int kParts = E::kPlainParts;
    const DF d;
    const std::size_t row_size = kParts * shape.width;
    VF scales[kRows];
    VF means[kRows];
    SoftmaxOfFeatures<E, kRows, T>(
        shape, [&](int r) ATTNOPS_INLINE_LAMBDA { return rows[r].x; }, scratch, scales);
    float* gradients = scratch + kRows * row_size;
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + r * row_size;
      float* dys = gradients + r * row_size;
      VF dot = hn::Zero(d);
      BackwardKernel<E>::DecodeRow(
          shape, rows[r],
          [&]<int K>(std::size_t j, std::size_t, const Strip<kParts, K>& dy) ATTNOPS_INLINE_LAMBDA {
            // The padding of the exponentials is 0, so that of dy does not count.
            const auto p = Mul(LoadTable<kParts, K>(shape, e, j), Fill<2 * kParts * K>(scales[r]));
            dot = hn::Add(dot, SumOfProducts(p, dy));
            StoreTable<kParts, K>(shape, dy, dys, j);
          });
      means[r] = hn::SumOfLanes(d, dot);
    }
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + r * row_size;
      const float* dys = gradients + r * row_size;
      ForEachStrip<E::kStripChunks>(
          shape, shape.part, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
            constexpr int kVectors = 2 * kParts * K;
            const auto p = Mul(LoadTable<kParts, K>(shape, e, j), Fill<kVectors>(scales[r]));
            const auto dy = LoadTable<kParts, K>(shape, dys, j);
            StoreStrip<kParts, K>(shape, Mul(p, Sub(dy, Fill<kVectors>(means[r]))), rows[r].out, j,
                                  n);
          });
    }
  }
};

template <class E>
struct BackwardSequence : BackwardKernel<E> {
  static constexpr int kRowSet = 1;

  template <int kRows, typename T>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    constexpr int kParts = E::kPlainParts;
    const Row<T>& row = rows[0];
    const float* scale = row.columns + kParts * shape.width;
    const float* mean = scale + kParts * shape.width;
    BackwardKernel<E>::DecodeRow(
        shape, row,
        [&]<int K>(std::size_t j, std::size_t n, const Strip<kParts, K>& dy) ATTNOPS_INLINE_LAMBDA {
          const auto e =
              ExpDifference<AccuracyFor<T>()>(LoadStrip<kParts, K>(shape, row.x, j, n),
                                              LoadTable<kParts, K>(shape, row.columns, j));
          const auto p = Mul(e, LoadTable<kParts, K>(shape, scale, j));
          const auto dx = Mul(p, Sub(dy, LoadTable<kParts, K>(shape, mean, j)));
          StoreStrip<kParts, K>(shape, dx, row.out, j, n);
        });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops::position_encoding
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_BACKWARD_INL_H_
