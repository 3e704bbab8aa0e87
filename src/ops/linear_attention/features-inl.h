// The shape of a stage's rows; softmax over their features, and its backward.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FEATURES_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FEATURES_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FEATURES_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/block-inl.h"
#include "src/positions/encode-inl.h"
#include "src/rowops/columns-inl.h"
#include "src/rowops/features-inl.h"
#include "src/rowops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

// The shape of a stage's rows, and where their parts begin in a block and in the rows of columns.
struct StageShape : RowShape {
  explicit StageShape(const Stage& stage)
      : RowShape(stage.part, stage.encoded, Padded(stage.part)), parts(stage.parts) {}

  HWY_INLINE Panels PartOf(const Panels& block, int p) const {
    return {block.data + p * Chunks() * block.panel, block.panel};
  }
  HWY_INLINE ChunkRows RowsOf(const Panels& block, std::int64_t row, std::int64_t chunk) const {
    return RowsOfChunk(block, row, chunk, Chunks());
  }
  // Chunks of a part.
  HWY_INLINE std::int64_t Chunks() const { return static_cast<std::int64_t>(width / ChunkSize()); }
  std::size_t ColumnsSize() const { return static_cast<std::size_t>(parts) * width; }

  int parts;
};

// K chunks of a row of a block.
template <int K>
HWY_INLINE Pack<2 * K> LoadPanels(const Panels& from, std::int64_t row, std::size_t j) {
  const std::size_t size = ChunkSize();
  const float* at = from.data + static_cast<std::int64_t>(j / size) * from.panel +
                    row * static_cast<std::int64_t>(size);
  return MakePack<2 * K>([&](int i) ATTNOPS_INLINE_LAMBDA {
    return hn::Load(DF(),
                    at + i / 2 * from.panel + i % 2 * static_cast<std::int64_t>(hn::Lanes(DF())));
  });
}
template <int K>
HWY_INLINE void StorePanels(const Pack<2 * K>& pack, const Panels& to, std::int64_t row,
                            std::size_t j) {
  const std::size_t size = ChunkSize();
  float* at = to.data + static_cast<std::int64_t>(j / size) * to.panel +
              row * static_cast<std::int64_t>(size);
  for (int i = 0; i < K; ++i, at += to.panel) {
    StoreChunk({{pack.v[2 * i], pack.v[2 * i + 1]}}, at);
  }
}

// Stores K chunks, n elements in all, in a row of a gradient. A kept KV may have NaNs of any
// payload.
template <int K, typename T>
HWY_INLINE void StoreGradientStrip(const Pack<2 * K>& pack, T* to, std::size_t n) {
  if constexpr (K > 1) {
    StoreChunks<K, Payload::kAny>(pack, to);
  } else {
    StoreChunkN<Payload::kAny>(pack, to, n);
  }
}

// Calls body<K>(p, j, n) for all strips of all parts of a row.
template <class Body>
HWY_INLINE void ForEachStripOfParts(const StageShape& shape, const Body& body) {
  for (int p = 0; p < shape.parts; ++p) {
    ForEachStrip<CosineRows::kStripChunks>(
        shape, shape.part, [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
          body.template operator()<K>(p, j, n);
        });
  }
}

// Calls f<kRows>(row) for all rows, as many at a time as softmax over the features takes.
template <class F>
HWY_INLINE void ForEachSetOfRows(std::int64_t count, const F& f) {
  constexpr int kSet = static_cast<int>(rowops::kSoftmaxRows);
  std::int64_t row = 0;
  for (; row + kSet <= count; row += kSet) f.template operator()<kSet>(row);
  for (; row < count; ++row) f.template operator()<1>(row);
}

// Stores the exponentials of kRows rows from `row` on at `to`, and sets their scales.
template <class E, int kRows, typename T>
HWY_INLINE void SoftmaxOfRows(const StageShape& shape, const Rows<const T>& x, std::int64_t row,
                              float* to, VF (&scales)[kRows]) {
  SoftmaxOfFeatures<E, kRows, T>(
      shape, [&](int r) ATTNOPS_INLINE_LAMBDA { return x[row + r]; }, to, scales);
}

template <class E, typename T>
HWY_NOINLINE void ActivateRows(const StageShape& shape, const Rows<const T>& x, std::int64_t count,
                               float* scratch, const Panels& to) {
  ForEachSetOfRows(count, [&]<int kRows>(std::int64_t first) ATTNOPS_INLINE_LAMBDA {
    VF scales[kRows];
    SoftmaxOfRows<E, kRows>(shape, x, first, scratch, scales);
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + static_cast<std::size_t>(r) * shape.ColumnsSize();
      ForEachStripOfParts(
          shape, [&]<int K>(int p, std::size_t j, std::size_t) ATTNOPS_INLINE_LAMBDA {
            const auto v = LoadTable<1, K>(shape, e + p * shape.width, j);
            StorePanels<K>(Mul(v, Fill<2 * K>(scales[r])), shape.PartOf(to, p), first + r, j);
          });
    }
  });
}

template <typename T>
HWY_INLINE void ActivateFeatures(const StageShape& shape, const Rows<const T>& x,
                                 std::int64_t count, float* scratch, const Panels& to) {
  if (shape.parts == 2) {
    ActivateRows<RotateRows>(shape, x, count, scratch, to);
  } else {
    ActivateRows<CosineRows>(shape, x, count, scratch, to);
  }
}

// With p = e·scale: dx = p·(dy − Σ p·dy). The sum is over p and not e, which may be e^64 times as
// large: e·dy could overflow or underflow.
template <class E, typename T>
HWY_NOINLINE void DeriveRows(const StageShape& shape, const Rows<const T>& x, std::int64_t count,
                             float* scratch, const Panels& dy, const Rows<T>& dx) {
  const DF d;
  ForEachSetOfRows(count, [&]<int kRows>(std::int64_t first) ATTNOPS_INLINE_LAMBDA {
    VF scales[kRows];
    VF means[kRows];
    SoftmaxOfRows<E, kRows>(shape, x, first, scratch, scales);
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + static_cast<std::size_t>(r) * shape.ColumnsSize();
      VF dot = hn::Zero(d);
      ForEachStripOfParts(shape, [&]<int K>(int p, std::size_t j,
                                            std::size_t) ATTNOPS_INLINE_LAMBDA {
        // The padding of the exponentials is 0, so that of dy does not count.
        const auto y = Mul(LoadTable<1, K>(shape, e + p * shape.width, j), Fill<2 * K>(scales[r]));
        dot = hn::Add(dot, SumOfProducts(y, LoadPanels<K>(shape.PartOf(dy, p), first + r, j)));
      });
      means[r] = hn::SumOfLanes(d, dot);
    }
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + static_cast<std::size_t>(r) * shape.ColumnsSize();
      ForEachStripOfParts(shape, [&]<int K>(int p, std::size_t j,
                                            std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const auto y = Mul(LoadTable<1, K>(shape, e + p * shape.width, j), Fill<2 * K>(scales[r]));
        const auto gradient = LoadPanels<K>(shape.PartOf(dy, p), first + r, j);
        StoreGradientStrip<K>(Mul(y, Sub(gradient, Fill<2 * K>(means[r]))),
                              dx[first + r] + p * shape.part + j, n);
      });
    }
  });
}

template <typename T>
HWY_INLINE void DeriveFeatures(const StageShape& shape, const Rows<const T>& x, std::int64_t count,
                               float* scratch, const Panels& dy, const Rows<T>& dx) {
  if (shape.parts == 2) {
    DeriveRows<RotateRows>(shape, x, count, scratch, dy, dx);
  } else {
    DeriveRows<CosineRows>(shape, x, count, scratch, dy, dx);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_FEATURES_INL_H_
