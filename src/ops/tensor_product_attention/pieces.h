// How decoding cuts a sequence, and what its schedules share.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PIECES_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PIECES_H_

#include <algorithm>
#include <cstdint>

#include "src/core/numeric.h"
#include "src/ops/tensor_product_attention/kernels.h"

namespace attnops::tensor_product_attention {

// A piece of the sequence has at least kPieceTokens tokens, since aq and bq may be converted anew
// for each piece. It has up to twice as many where that still gives kEnoughPieces pieces, and more
// only where there would be more than kMostPieces, enough for any sensible number of threads.
constexpr std::int64_t kPieceTokens = 256;
constexpr std::int64_t kEnoughPieces = 8;
constexpr std::int64_t kMostPieces = 32;
// Bound of the pieces' results that wait to be merged.
constexpr std::int64_t kPartialBytes = std::int64_t{3} << 19;
// Calls of fewer multiply-adds are not worth waking a thread for.
constexpr double kSerialWork = 1e6;

inline std::int64_t PieceSize(std::int64_t tokens) {
  const std::int64_t wanted = RoundUp(DivideUp(tokens, kEnoughPieces), kBlockTokens);
  return std::max(std::clamp(wanted, kPieceTokens, 2 * kPieceTokens),
                  RoundUp(DivideUp(tokens, kMostPieces), kBlockTokens));
}

// What a split gives the busiest thread: `tokens` of them, with so many multiply-adds or their
// equivalent each.
struct SplitWork {
  std::int64_t tasks;
  double tokens, of_token;
};
// The split whose busiest thread has the least to do, kB if equal. Pieces cost kMerging times as
// much, and more than one task costs waking a thread.
inline TpaSplit ChooseSplit(const SplitWork& b, const SplitWork& bh, const SplitWork& bn) {
  constexpr double kMerging = 1.06;
  const auto cost = [](const SplitWork& work) {
    return work.tokens * work.of_token + (work.tasks > 1 ? kSerialWork : 0);
  };
  const double of_b = cost(b), of_bh = cost(bh);
  const double of_bn = cost({bn.tasks, bn.tokens, bn.of_token * kMerging});
  if (of_b <= of_bh && of_b <= of_bn) return TpaSplit::kB;
  return of_bn <= of_bh ? TpaSplit::kBN : TpaSplit::kBH;
}

// The work of converting a number of bk and of bv, and of an exp, in multiply-adds.
constexpr double kConvertKey = 6, kConvertValue = 2, kExp = 16;

}  // namespace attnops::tensor_product_attention

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PIECES_H_
