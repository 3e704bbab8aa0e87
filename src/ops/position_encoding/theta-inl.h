// The gradient of theta.

#if defined(ATTNOPS_SRC_OPS_POSITION_ENCODING_THETA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_POSITION_ENCODING_THETA_INL_H_
#undef ATTNOPS_SRC_OPS_POSITION_ENCODING_THETA_INL_H_
#else
#define ATTNOPS_SRC_OPS_POSITION_ENCODING_THETA_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/position_encoding/rows-inl.h"
#include "src/positions/encode-inl.h"
#include "src/positions/theta-inl.h"
#include "src/rowops/activation-inl.h"
#include "src/rowops/columns-inl.h"
#include "src/rowops/features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::position_encoding {
namespace HWY_NAMESPACE {

// Stores f(x) of a row as floats, each part padded to the table's width.
template <class E, class Act>
struct ActivateElements {
  template <typename T>
  static HWY_INLINE void Run(const RowShape& shape, const T* x, const float* /*columns*/,
                             float* to) {
    constexpr int kParts = E::kPlainParts;
    ForEachStrip<1>(shape, 0, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
      StoreTable<kParts, K>(
          shape, Act::template Forward<AccuracyFor<T>()>(LoadStrip<kParts, K>(shape, x, j, n)), to,
          j);
    });
  }
};
template <class E>
struct ActivateFeatures {
  template <typename T>
  static HWY_INLINE void Run(const RowShape& shape, const T* x, const float* /*columns*/,
                             float* to) {
    constexpr int kParts = E::kPlainParts;
    VF scale[1];
    SoftmaxOfFeatures<E, 1, T>(
        shape, [&](int) ATTNOPS_INLINE_LAMBDA { return x; }, to, scale);
    ForEachStrip<1>(shape, 0, [&]<int K>(std::size_t j, std::size_t) ATTNOPS_INLINE_LAMBDA {
      StoreTable<kParts, K>(
          shape, Mul(LoadTable<kParts, K>(shape, to, j), Fill<2 * kParts * K>(scale[0])), to, j);
    });
  }
};
template <class E>
struct ActivateSequence {
  template <typename T>
  static HWY_INLINE void Run(const RowShape& shape, const T* x, const float* columns, float* to) {
    constexpr int kParts = E::kPlainParts;
    const float* scale = columns + kParts * shape.width;
    ForEachStrip<1>(shape, 0, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
      const auto e = ExpDifference<AccuracyFor<T>()>(LoadStrip<kParts, K>(shape, x, j, n),
                                                     LoadTable<kParts, K>(shape, columns, j));
      StoreTable<kParts, K>(shape, Mul(e, LoadTable<kParts, K>(shape, scale, j)), to, j);
    });
  }
};

// The terms of a few tokens are float32, their sum is added in float64: that of many tokens loses
// nothing to the size of their positions.
template <class E, class Activate, typename T>
void AddTheta(const Problem& problem, const Region& region, const AngleTable& table,
              const float* factors, const Columns& columns, float* scratch, double* sums) {
  constexpr int kParts = E::kPlainParts;
  const RowShape shape = ShapeOf(problem, table);
  const std::int64_t b = region.batch_begin, h = region.head_begin;
  const std::int64_t tokens = region.token_end - region.token_begin;
  const std::int64_t row_size = kParts * table.width;
  for (std::int64_t t = 0; t < tokens; ++t) {
    Activate::Run(shape, RowAt<T>(problem.x, b, h, region.token_begin + t),
                  columns.data == nullptr ? nullptr : columns.At(b, h), scratch + t * row_size);
  }
  ForEachStrip<1>(shape, 0, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
    Chunk sum = Fill<2>(0.0f);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto y = LoadTable<kParts, K>(shape, scratch + t * row_size, j);
      const auto d =
          LoadStrip<2, K>(shape, RowAt<T>(problem.d_out, b, h, region.token_begin + t), j, n);
      const TableAngles angles{table.Cos(t, 0), shape.width};
      sum = MulAdd(ThetaTerm<E, K>(y, d, angles.template At<K>(j)),
                   LoadChunk(factors + t * table.width + static_cast<std::int64_t>(j)), sum);
    }
    AddToDoubles(sum, sums + j);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::position_encoding
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_POSITION_ENCODING_THETA_INL_H_
