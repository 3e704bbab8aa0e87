// out = rotate(f(x)).

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/lrpe_rotate/rotate-inl.h"
#include "src/simd/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

// Each kernel writes the output of kRows ≤ kRowSet rows; `scratch` has 4·width floats for each.

// Element-wise activations.
template <typename T, class Act, Store kStore>
struct ForwardElements {
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = false;
  static constexpr int kRowSet = 1;

  template <int kRows>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const Row<T> row = rows[0];
    RotateRow<Pass::kForward, T>(
        shape, row.cos,
        [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          return Act::template Forward<AccuracyFor<T>()>(LoadPairs<K>(shape, row.x, j, n));
        },
        [&]<int K>(std::size_t j, std::size_t n, const Pairs<K>& y)
            ATTNOPS_INLINE_LAMBDA { StorePairs<K, kStore>(shape, y, row.out, j, n); });
  }
};

// Softmax over the features: exp of the rows in scratch, then scaled and turned.
template <typename T, Store kStore>
struct ForwardFeatures {
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = false;
  static constexpr int kRowSet = 4;  // so that the reductions of several rows overlap

  template <int kRows>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* scratch) {
    VF scales[kRows];
    SoftmaxOfFeatures<kRows>(shape, rows, scratch, scales);
    for (int r = 0; r < kRows; ++r) {
      const Row<T> row = rows[r];
      const float* e = scratch + r * 2 * shape.width;
      const VF scale = scales[r];
      RotateRow<Pass::kForward, T>(
          shape, row.cos,
          [&]<int K>(std::size_t j, std::size_t)
              ATTNOPS_INLINE_LAMBDA { return Mul(LoadTable<K>(shape, e, j), Fill<4 * K>(scale)); },
          [&]<int K>(std::size_t j, std::size_t n, const Pairs<K>& y)
              ATTNOPS_INLINE_LAMBDA { StorePairs<K, kStore>(shape, y, row.out, j, n); });
    }
  }
};

// Softmax over the sequence, from finished columns.
template <typename T, Store kStore>
struct ForwardSequence {
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = false;
  static constexpr int kRowSet = 1;

  template <int kRows>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const Row<T> row = rows[0];
    const float* scale = row.columns + 2 * shape.width;
    RotateRow<Pass::kForward, T>(
        shape, row.cos,
        [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          const Pairs<K> e = ExpDifference<AccuracyFor<T>()>(LoadPairs<K>(shape, row.x, j, n),
                                                             LoadTable<K>(shape, row.columns, j));
          return Mul(e, LoadTable<K>(shape, scale, j));
        },
        [&]<int K>(std::size_t j, std::size_t n, const Pairs<K>& y)
            ATTNOPS_INLINE_LAMBDA { StorePairs<K, kStore>(shape, y, row.out, j, n); });
  }
};

template <typename T>
void AddColumnsForward(const Problem& problem, const Region& region, const AngleTable& table,
                       const Columns& columns, bool first) {
  const RowShape shape(problem, table);
  AddColumns<Pass::kForward, T>(
      problem, region, table, columns, first,
      [&]<int M>(ColumnSums<4, AccuracyFor<T>()>& sums, std::int64_t b, std::int64_t t,
                 std::int64_t h, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const T* x = RowOf<const T>(problem.x, b, t, h);
        const Pairs<> first = LoadPairs<1>(shape, x, j, n);
        if constexpr (M == 1) {
          sums.AddTokens(first);
        } else {
          sums.AddTokens(Join(first, LoadPairs<1>(shape, x + problem.x.token, j, n)));
        }
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_FORWARD_INL_H_
