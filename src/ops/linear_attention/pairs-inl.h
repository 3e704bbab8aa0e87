// Blocks of operands for bfloat16 products.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PAIRS_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PAIRS_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include "src/gemm/multiply_pairs-inl.h"
#include "src/ops/linear_attention/stages-inl.h"
#include "src/simd/capabilities-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

#if !ATTNOPS_ONE_LANE

// A block of an operand's rows, through its stage, as pairs of tokens. `floats` is the block in
// float32 on the way; behind the stage a row has `chunks` chunks.
inline void LoadPairs(const Operand& operand, Head head, std::int64_t first, std::int64_t count,
                      std::int64_t chunks, const Blocks& blocks, const Panels& floats,
                      const Panels& to) {
  if (operand.stage.IsDirect()) {
    const Rows<const BFloat16> x = RowsOf<BFloat16>(operand.x, head, first);
    PairTokens(x.data, x.stride, count, operand.stage.part, to);
  } else {
    LoadOperand<BFloat16>(operand, head, first, count, blocks, floats);
    PairTokens(floats, count, chunks, to);
  }
}

// The rows of an operand without a stage, from the tensor itself if its last column is in a pair.
inline LeftPairs DirectLeft(const Operand& operand, Head head, std::int64_t first,
                            std::int64_t count, const Blocks& blocks) {
  return LeftOfRows(RowsOf<BFloat16>(operand.x, head, first), count, operand.stage.part,
                    blocks.rows16);
}
// The rows that a stage left in `floats`, of `columns` columns.
inline LeftPairs StagedLeft(const Panels& floats, std::int64_t count, std::int64_t columns,
                            const Blocks& blocks) {
  RoundRows(floats, count, ChunksOf(columns), blocks.rows16);
  return {PairLeft::OfRows({blocks.rows16.data, blocks.rows16.stride}), DivideUp(columns, 2)};
}

#endif  // !ATTNOPS_ONE_LANE

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_PAIRS_INL_H_
