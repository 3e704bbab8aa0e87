// dx = f'(x)ᵀ · rotate⁻¹(d_out).

#if defined(ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
#undef ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/lrpe_rotate/rotate-inl.h"
#include "src/simd/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::lrpe_rotate {
namespace HWY_NAMESPACE {

template <typename T, class Act, Store kStore>
struct BackwardElements {
  static constexpr bool kReadsX = Act::kUsesX;
  static constexpr bool kReadsGradient = true;
  static constexpr int kRowSet = 1;

  template <int kRows>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const Row<T> row = rows[0];
    RotateRow<Pass::kBackward, T>(
        shape, row.cos,
        [&]<int K>(std::size_t j, std::size_t n)
            ATTNOPS_INLINE_LAMBDA { return LoadPairs<K>(shape, row.d_out, j, n); },
        [&]<int K>(std::size_t j, std::size_t n, const Pairs<K>& dy) ATTNOPS_INLINE_LAMBDA {
          if constexpr (Act::kUsesX) {
            const Pairs<K> dx =
                Act::template Backward<AccuracyFor<T>()>(LoadPairs<K>(shape, row.x, j, n), dy);
            StorePairs<K, kStore>(shape, dx, row.out, j, n);
          } else {
            StorePairs<K, kStore>(shape, dy, row.out, j, n);
          }
        });
  }
};

// With p = e·scale: dx = p·(dy − Σ p·dy), the exponentials and dy of the rows in scratch.
template <typename T, Store kStore>
struct BackwardFeatures {
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = true;
  static constexpr int kRowSet = 4;  // so that the reductions of several rows overlap

  template <int kRows>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* scratch) {
    const DF d;
    const std::size_t chunk = ChunkSize();
    const std::size_t row_size = 2 * shape.width;
    VF scales[kRows];
    VF means[kRows];
    SoftmaxOfFeatures<kRows>(shape, rows, scratch, scales);
    float* gradients = scratch + kRows * row_size;
    for (int r = 0; r < kRows; ++r) {
      const Row<T> row = rows[r];
      const float* e = scratch + r * row_size;
      float* dys = gradients + r * row_size;
      VF dot = hn::Zero(d);
      RotateRow<Pass::kBackward, T>(
          shape, row.cos,
          [&]<int K>(std::size_t j, std::size_t n)
              ATTNOPS_INLINE_LAMBDA { return LoadPairs<K>(shape, row.d_out, j, n); },
          [&]<int K>(std::size_t j, std::size_t, const Pairs<K>& dy) ATTNOPS_INLINE_LAMBDA {
            // The padding of the exponentials is 0, so that of dy does not count.
            dot = hn::Add(dot, SumOfVectors(Mul(LoadTable<K>(shape, e, j), dy)));
            StoreTable<K>(shape, dy, dys, j);
          });
      means[r] = hn::Mul(hn::SumOfLanes(d, dot), scales[r]);
    }
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + r * row_size;
      const float* dys = gradients + r * row_size;
      const Pairs<> scale = Fill<4>(scales[r]);
      const Pairs<> mean = Fill<4>(means[r]);
      for (std::size_t j = 0; j < shape.half; j += chunk) {
        const Pairs<> p = Mul(LoadTable<1>(shape, e, j), scale);
        StorePairs<1, kStore>(shape, Mul(p, Sub(LoadTable<1>(shape, dys, j), mean)), rows[r].out, j,
                              std::min(chunk, shape.half - j));
      }
    }
  }
};

template <typename T, Store kStore>
struct BackwardSequence {
  static constexpr bool kReadsX = true;
  static constexpr bool kReadsGradient = true;
  static constexpr int kRowSet = 1;

  template <int kRows>
  static HWY_INLINE void Run(const RowShape& shape, const Row<T>* rows, float* /*scratch*/) {
    const Row<T> row = rows[0];
    const float* scale = row.columns + 2 * shape.width;
    const float* mean = scale + 2 * shape.width;
    RotateRow<Pass::kBackward, T>(
        shape, row.cos,
        [&]<int K>(std::size_t j, std::size_t n)
            ATTNOPS_INLINE_LAMBDA { return LoadPairs<K>(shape, row.d_out, j, n); },
        [&]<int K>(std::size_t j, std::size_t n, const Pairs<K>& dy) ATTNOPS_INLINE_LAMBDA {
          const Pairs<K> e = ExpDifference<AccuracyFor<T>()>(LoadPairs<K>(shape, row.x, j, n),
                                                             LoadTable<K>(shape, row.columns, j));
          const Pairs<K> p = Mul(e, LoadTable<K>(shape, scale, j));
          StorePairs<K, kStore>(shape, Mul(p, Sub(dy, LoadTable<K>(shape, mean, j))), row.out, j,
                                n);
        });
  }
};

template <typename T>
void AddColumnsBackward(const Problem& problem, const Region& region, const AngleTable& table,
                        const Columns& columns, bool first) {
  const RowShape shape(problem, table);
  AddColumns<Pass::kBackward, T>(
      problem, region, table, columns, first,
      [&]<int M>(ColumnSums<4, AccuracyFor<T>()>& sums, std::int64_t b, std::int64_t t,
                 std::int64_t h, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const T* x = RowOf<const T>(problem.x, b, t, h);
        const std::size_t rotated = RotatedOf(shape, j, n);
        const auto dy_of = [&](std::int64_t token) ATTNOPS_INLINE_LAMBDA {
          const float* cos = table.Cos(token - region.token_begin, h - region.head_begin) + j;
          const Pairs<> d_out =
              LoadPairs<1>(shape, RowOf<const T>(problem.d_out, b, token, h), j, n);
          if (HWY_LIKELY(rotated == ChunkSize())) {
            return RotatePairs<Pass::kBackward, 1>(shape, d_out, cos);
          }
          return RotatePairsN<Pass::kBackward, T>(shape, d_out, cos, rotated);
        };
        const Pairs<> first = LoadPairs<1>(shape, x, j, n);
        if constexpr (M == 1) {
          sums.AddTokens(first, dy_of(t));
        } else {
          const Pairs<> second = LoadPairs<1>(shape, x + problem.x.token, j, n);
          sums.AddTokens(Join(first, second), Join(dy_of(t), dy_of(t + 1)));
        }
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::lrpe_rotate
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LRPE_ROTATE_BACKWARD_INL_H_
