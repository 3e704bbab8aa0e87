// The two ranks of a token in a cache, and rows of it, as operands of bfloat16 products.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANK_PAIRS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANK_PAIRS_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANK_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANK_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/gemm/pairs-inl.h"
#include "src/ops/tensor_product_attention/decode_block-inl.h"
#include "src/simd/capabilities-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// f(TypeTag<S>()) with the element type of a cache that has pairs.
template <class F>
HWY_INLINE void WithPairStorage(Storage storage, const F& f) {
  if (storage == Storage::kInt8) return f(TypeTag<std::int8_t>());
  f(TypeTag<BFloat16>());
}

// The factors of a vector of heads, two ranks each: the first ranks and the second ones. n of the
// numbers are loaded; heads that they do not contain get 0.
template <typename S>
HWY_INLINE Chunk LoadTwoRanks(const S* from, std::size_t n) {
  if constexpr (std::is_same_v<S, std::int8_t>) {
    return LoadBytePairs(from, n);
  } else {
    return SplitPacked<S>(LoadPackedN(from, n));
  }
}
// n numbers of a row as bfloat16, two in each lane; the others are 0. No int8 needs rounding.
template <typename S>
HWY_INLINE VU LoadPackedNumbers(const S* from, std::size_t n) {
  if constexpr (std::is_same_v<S, std::int8_t>) {
    const Chunk pairs = LoadBytePairs(from, n);
    const VU second = hn::And(hn::BitCast(DU(), pairs.v[1]), hn::Set(DU(), 0xffff0000u));
    return hn::Or(second, hn::ShiftRight<16>(hn::BitCast(DU(), pairs.v[0])));
  } else {
    return LoadPackedN(from, n);
  }
}

// Two numbers rounded to bfloat16, as a pair.
HWY_INLINE std::uint32_t RoundToPair(float first, float second) {
  return hn::GetLane(RoundToPairs(Fill<2>(first), Fill<2>(second)).v[0]);
}

// Vector v of a row of a matrix whose columns are heads.
HWY_INLINE float* VectorOf(const Panels& matrix, std::int64_t v, std::int64_t row) {
  return RowOf(matrix, v / 2, row) + v % 2 * kLanes;
}

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_RANK_PAIRS_INL_H_
