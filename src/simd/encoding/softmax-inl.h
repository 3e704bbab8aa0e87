// Softmax of the position encodings' rows over the features, and the sums of softmax over the
// sequence.

#if defined(ATTNOPS_SRC_SIMD_ENCODING_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ENCODING_SOFTMAX_INL_H_
#undef ATTNOPS_SRC_SIMD_ENCODING_SOFTMAX_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ENCODING_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include "src/simd/encoding/rows-inl.h"
#include "src/simd/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Softmax over the features is exp(x − shift)/Σ for any shift that keeps both in range. Rows
// of moderate values, which is almost all of them, need none: their exponentials do not wait
// for a maximum. Where exp takes every x, the sum of a row shows whether it is one; elsewhere its
// largest |x| does.
constexpr float kModerate = 64.0f;
// e^64. A moderate sum is also at least 1, so that what underflows is nothing beside it.
constexpr float kModerateSum = 6.2e27f;

// exp(x − shift) of a row at `to`, 0 in the padding; returns the sums of the lanes. Without
// kShift it is exp(x), and `magnitude` becomes the lanes' largest |x| if it is needed.
template <class E, bool kShift, typename T>
HWY_INLINE VF ExpOfFeatures(const RowShape& shape, const T* x, VF shift, float* to, VF& magnitude) {
  constexpr int kParts = E::kPlainParts;
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  VF total = hn::Zero(DF());
  magnitude = hn::Zero(DF());
  ForEachPiece<E>(shape, shape.part,
                  [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
                    const Piece<kParts, K> v = LoadPiece<kParts, K>(shape, x, j, n);
                    Piece<kParts, K> e;
                    if constexpr (kShift) {
                      e = ExpDifference<kAccuracy>(v, Fill<2 * kParts * K>(shift));
                    } else {
                      if constexpr (!kExpTakesAll<kAccuracy>) {
                        magnitude = hn::Max(magnitude, MaxOfVectors(Abs(v)));
                      }
                      e = ExpWithin87<kAccuracy>(v);
                    }
                    if constexpr (K == 1)
                      e = Select(FirstOfParts<kParts, T>(n), e, Fill<2 * kParts>(0.0f));
                    total = hn::Add(total, SumOfVectors(e));
                    StoreTable<kParts, K>(shape, e, to, j);
                  });
  return total;
}

template <int kParts, typename T>
HWY_INLINE VF MaxOfFeatures(const RowShape& shape, const T* x) {
  const std::size_t chunk = ChunkSize();
  Piece<kParts, 1> max = Fill<2 * kParts>(kLowest);
  for (std::size_t j = 0; j < shape.part; j += chunk) {
    const std::size_t n = std::min(chunk, shape.part - j);
    const Piece<kParts, 1> v = LoadPiece<kParts, 1>(shape, x, j, n);
    max = Max(max, Select(FirstOfParts<kParts, T>(n), v, max));
  }
  return hn::MaxOfLanes(DF(), MaxOfVectors(max));
}

// The exponentials of kRows rows at `to`; scale[r] becomes 1/Σ of row r in every lane.
template <class E, int kRows, typename T>
HWY_INLINE void SoftmaxOfFeatures(const RowShape& shape, const Row<T>* rows, float* to,
                                  VF (&scale)[kRows]) {
  constexpr int kParts = E::kPlainParts;
  const DF d;
  VF lanes[kRows];
  VF magnitude[kRows];
  const auto row_at = [&](int r) ATTNOPS_INLINE_LAMBDA { return to + r * kParts * shape.width; };
  for (int r = 0; r < kRows; ++r) {
    lanes[r] = ExpOfFeatures<E, false>(shape, rows[r].x, hn::Zero(d), row_at(r), magnitude[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    float sum = hn::GetLane(hn::SumOfLanes(d, lanes[r]));
    const bool moderate = kExpTakesAll<AccuracyFor<T>()>
                              ? sum >= 1.0f && sum <= kModerateSum
                              : hn::AllFalse(d, hn::Gt(magnitude[r], hn::Set(d, kModerate)));
    if (HWY_UNLIKELY(!moderate)) {
      const VF max = MaxOfFeatures<kParts>(shape, rows[r].x);
      sum = hn::GetLane(hn::SumOfLanes(
          d, ExpOfFeatures<E, true>(shape, rows[r].x, max, row_at(r), magnitude[r])));
    }
    // A division of one lane occupies the divider a quarter as long as one of sixteen.
    scale[r] = hn::Set(d, 1.0f / sum);
  }
}

// Softmax over the sequence: adds the tokens of a region, a block, to the columns' sums.
template <class E, Pass kPass, typename T>
void AddColumns(const EncodingProblem& problem, const EncodingRegion& region,
                const AngleTable& table, const EncodingColumns& columns, bool first) {
  constexpr int kParts = E::kPlainParts;
  constexpr int kTokens = std::max(1, ATTNOPS_PIECE_CHUNKS / 2);  // at a time
  const RowShape shape(problem, table);
  const auto x_of = [&]<int K>(std::int64_t b, std::int64_t t, std::int64_t h, std::size_t j,
                               std::size_t n) ATTNOPS_INLINE_LAMBDA {
    return LoadPiece<kParts, K>(shape, RowOf<const T>(problem.x, b, t, h), j, n);
  };
  const auto dy_of = [&]<int K>(std::int64_t b, std::int64_t t, std::int64_t h, std::size_t j,
                                std::size_t n) ATTNOPS_INLINE_LAMBDA {
    const auto d = LoadPiece<2, K>(shape, RowOf<const T>(problem.d_out, b, t, h), j, n);
    const float* cos = table.Cos(t - region.token_begin, h - region.head_begin);
    return DecodePiece<E, K, T>(shape, d, TableAngles{cos, shape.width}, j, n);
  };
  // Adds to the columns [j, j+n) of a (b,h).
  const auto add = [&]<int K>(std::int64_t b, std::int64_t h, std::size_t j,
                              std::size_t n) ATTNOPS_INLINE_LAMBDA {
    float* shifts = columns.At(b, h);
    float* sums_row = shifts + kParts * shape.width;
    float* dots_row = sums_row + kParts * shape.width;
    const auto sum_tokens = [&](const Piece<kParts, K>& shift) ATTNOPS_INLINE_LAMBDA {
      ColumnSums<2 * kParts * K, AccuracyFor<T>()> sums(shift);
      static_assert(kColumnTokens <= sums.kMaxTokens);
      std::int64_t t = region.token_begin;
      if constexpr (kTokens == 2) {
        for (; t + 1 < region.token_end; t += 2) {
          const auto x = Join(x_of.template operator()<K>(b, t, h, j, n),
                              x_of.template operator()<K>(b, t + 1, h, j, n));
          if constexpr (kPass == Pass::kForward) {
            sums.AddTokens(x);
          } else {
            sums.AddTokens(x, Join(dy_of.template operator()<K>(b, t, h, j, n),
                                   dy_of.template operator()<K>(b, t + 1, h, j, n)));
          }
        }
      }
      for (; t < region.token_end; ++t) {
        const auto x = x_of.template operator()<K>(b, t, h, j, n);
        if constexpr (kPass == Pass::kForward) {
          sums.AddTokens(x);
        } else {
          sums.AddTokens(x, dy_of.template operator()<K>(b, t, h, j, n));
        }
      }
      return sums;
    };
    const auto raise = [&](Piece<kParts, K> shift) ATTNOPS_INLINE_LAMBDA {
      for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
        shift = Max(shift, x_of.template operator()<K>(b, t, h, j, n));
      }
      StoreTable<kParts, K>(shape, shift, shifts, j);
      return shift;
    };
    auto shift = LoadTable<kParts, K>(shape, shifts, j);
    if (first) shift = raise(shift);
    auto sums = sum_tokens(shift);
    if (HWY_UNLIKELY(sums.ExceedsShift())) {
      const auto new_shift = raise(shift);
      const auto scale = ExpDifference<Accuracy::kFloat32>(shift, new_shift);
      StoreTable<kParts, K>(shape, Mul(LoadTable<kParts, K>(shape, sums_row, j), scale), sums_row,
                            j);
      if constexpr (kPass == Pass::kBackward) {
        StoreTable<kParts, K>(shape, Mul(LoadTable<kParts, K>(shape, dots_row, j), scale), dots_row,
                              j);
      }
      sums = sum_tokens(new_shift);
    }
    StoreTable<kParts, K>(shape, Add(LoadTable<kParts, K>(shape, sums_row, j), sums.sum), sums_row,
                          j);
    if constexpr (kPass == Pass::kBackward) {
      StoreTable<kParts, K>(shape, Add(LoadTable<kParts, K>(shape, dots_row, j), sums.dot),
                            dots_row, j);
    }
  };
  for (std::int64_t b = region.batch_begin; b < region.batch_end; ++b) {
    for (std::int64_t h = region.head_begin; h < region.head_end; ++h) {
      // The next head's rows are fetched meanwhile: they are far apart.
      if (h + 1 < region.head_end) {
        for (std::int64_t t = region.token_begin; t < region.token_end; ++t) {
          PrefetchRow(RowOf<const T>(problem.x, b, t, h + 1), kParts * problem.part);
          if constexpr (kPass == Pass::kBackward) {
            PrefetchRow(RowOf<const T>(problem.d_out, b, t, h + 1), 2 * problem.part);
          }
        }
      }
      // Four vectors of columns at the most, and where registers allow it two tokens.
      constexpr int K = std::min(2, ATTNOPS_PIECE_CHUNKS) / kParts;
      const std::size_t chunk = ChunkSize();
      std::size_t j = 0;
      if constexpr (K == 2) {
        for (; j + 2 * chunk <= shape.encoded; j += 2 * chunk) {
          add.template operator()<2>(b, h, j, 2 * chunk);
        }
      }
      for (; j < shape.part; j += chunk) {
        add.template operator()<1>(b, h, j, std::min(chunk, shape.part - j));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ENCODING_SOFTMAX_INL_H_
