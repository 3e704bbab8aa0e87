// Encoding strips of rows with the angles of their token, and back.

#if defined(ATTNOPS_SRC_POSITIONS_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_POSITIONS_ENCODE_INL_H_
#undef ATTNOPS_SRC_POSITIONS_ENCODE_INL_H_
#else
#define ATTNOPS_SRC_POSITIONS_ENCODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "src/simd/complex-inl.h"
#include "src/simd/io-inl.h"
#include "src/simd/strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// K chunks of angles.
template <int K>
using Angle = Complex<2 * K>;

// A token's angles as a row of a table.
struct TableAngles {
  const float* cos;
  std::size_t width;

  template <int K>
  HWY_INLINE Angle<K> At(std::size_t j) const {
    return {LoadChunks<K>(cos + j), LoadChunks<K>(cos + width + j)};
  }
};
// A token's angles as those of another token plus a step: the sum that FillTable would store.
struct SteppedAngles {
  TableAngles base, step;

  template <int K>
  HWY_INLINE Angle<K> At(std::size_t j) const {
    return Turn(base.At<K>(j), step.At<K>(j));
  }
};

// The encodings. Encode turns a plain strip into an encoded one; Decode is its transpose, and its
// inverse for kRotate. EncodeWithoutAngle and its transpose are for elements without an angle.
// kHasPrefix: whether an operator has kernels for tokens without a position.

struct RowsWithTable {
  template <class Row>
  static HWY_INLINE TableAngles AnglesOf(const RowShape& shape, const Row& row) {
    return {row.cos, shape.width};
  }
};

struct RotateRows : RowsWithTable {
  static constexpr int kPlainParts = 2;
  static constexpr int kStripChunks = std::max(1, ATTNOPS_STRIP_CHUNKS / 2);
  static constexpr bool kHasPrefix = false;

  template <int K>
  static HWY_INLINE Strip<2, K> Encode(const Strip<2, K>& y, const Angle<K>& angle) {
    const Angle<K> turned = Turn({FirstHalf(y), SecondHalf(y)}, angle);
    return Join(turned.re, turned.im);
  }
  template <int K>
  static HWY_INLINE Strip<2, K> Decode(const Strip<2, K>& d, const Angle<K>& angle) {
    const Angle<K> turned = TurnBack({FirstHalf(d), SecondHalf(d)}, angle);
    return Join(turned.re, turned.im);
  }
  template <int K>
  static HWY_INLINE Strip<2, K> EncodeWithoutAngle(const Strip<2, K>& y) {
    return y;
  }
  template <int K>
  static HWY_INLINE Strip<2, K> DecodeWithoutAngle(const Strip<2, K>& d) {
    return d;
  }
};

struct CosineRows : RowsWithTable {
  static constexpr int kPlainParts = 1;
  static constexpr int kStripChunks = ATTNOPS_STRIP_CHUNKS;
  static constexpr bool kHasPrefix = true;

  template <int K>
  static HWY_INLINE Strip<2, K> Encode(const Strip<1, K>& y, const Angle<K>& angle) {
    return Join(Mul(y, angle.re), Mul(y, angle.im));
  }
  template <int K>
  static HWY_INLINE Strip<1, K> Decode(const Strip<2, K>& d, const Angle<K>& angle) {
    return MulAdd(SecondHalf(d), angle.im, Mul(FirstHalf(d), angle.re));
  }
  template <int K>
  static HWY_INLINE Strip<2, K> EncodeWithoutAngle(const Strip<1, K>& y) {
    return Join(y, Fill<2 * K>(0.0f));
  }
  template <int K>
  static HWY_INLINE Strip<1, K> DecodeWithoutAngle(const Strip<2, K>& d) {
    return FirstHalf(d);
  }
};

// The encoding E of tokens without a position. They are few: small strips, for a small kernel.
template <class E>
struct WithoutAngles : E {
  static constexpr int kStripChunks = 1;

  template <int K>
  static HWY_INLINE Strip<2, K> Encode(const Strip<E::kPlainParts, K>& y, const Angle<K>&) {
    return E::template EncodeWithoutAngle<K>(y);
  }
  template <int K>
  static HWY_INLINE Strip<E::kPlainParts, K> Decode(const Strip<2, K>& d, const Angle<K>&) {
    return E::template DecodeWithoutAngle<K>(d);
  }
};

// The encoding E with tables that have steps.
template <class E>
struct Stepped : E {
  template <class Row>
  static HWY_INLINE SteppedAngles AnglesOf(const RowShape& shape, const Row& row) {
    return {{row.cos, shape.width}, {row.step, shape.width}};
  }
};

// Encodes and decodes the n elements from j on of each part of a row. In strips of a single chunk
// the elements from shape.encoded on have no angle.
template <class E, int K, typename T, class RowAngles>
HWY_INLINE Strip<2, K> EncodeStrip(const RowShape& shape, const Strip<E::kPlainParts, K>& y,
                                   const RowAngles& angles, std::size_t j, std::size_t n) {
  const Strip<2, K> encoded = E::template Encode<K>(y, angles.template At<K>(j));
  if constexpr (K == 1) {
    if (HWY_UNLIKELY(j + n > shape.encoded)) {
      const std::size_t with_angle = std::max(shape.encoded, j) - j;
      return Select(FirstOfParts<2, T>(with_angle), encoded, E::template EncodeWithoutAngle<K>(y));
    }
  }
  return encoded;
}
template <class E, int K, typename T, class RowAngles>
HWY_INLINE Strip<E::kPlainParts, K> DecodeStrip(const RowShape& shape, const Strip<2, K>& d,
                                                const RowAngles& angles, std::size_t j,
                                                std::size_t n) {
  const Strip<E::kPlainParts, K> decoded = E::template Decode<K>(d, angles.template At<K>(j));
  if constexpr (K == 1) {
    if (HWY_UNLIKELY(j + n > shape.encoded)) {
      const std::size_t with_angle = std::max(shape.encoded, j) - j;
      return Select(FirstOfParts<E::kPlainParts, T>(with_angle), decoded,
                    E::template DecodeWithoutAngle<K>(d));
    }
  }
  return decoded;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_POSITIONS_ENCODE_INL_H_
