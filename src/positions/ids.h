// Positions that the caller gives for each token or each batch.
#ifndef ATTNOPS_SRC_POSITIONS_IDS_H_
#define ATTNOPS_SRC_POSITIONS_IDS_H_

#include <cstdint>

#include "attnops/rotary_options.h"
#include "attnops/view.h"

namespace attnops {

// The positions of all tokens. A stream has one position for each batch and token; sections of
// angles may have streams of their own.
struct PositionIds {
  const void* data = nullptr;  // none: a call's positions are its grid
  bool wide = false;           // 64-bit integers, not 32
  bool counts = false;         // the position is the batch's plus the token's index
  std::int64_t stream = 0, batch = 0, token = 0;  // strides

  std::int64_t At(std::int64_t of_stream, std::int64_t of_batch, std::int64_t of_token) const {
    const std::int64_t at = of_stream * stream + of_batch * batch + of_token * token;
    const std::int64_t value = wide ? static_cast<const std::int64_t*>(data)[at]
                                    : static_cast<const std::int32_t*>(data)[at];
    return counts ? value + of_token : value;
  }
};

// The positions of a block's tokens in each stream, and how their angles follow from exact ones:
// position = base + step, base a multiple of the step count. Consecutive positions share a base.
struct BlockPositions {
  static constexpr std::int64_t kTokens = 16;

  int streams = 0;
  std::int64_t tokens = 0;
  std::int64_t base[Dims::kMaxRank][kTokens];
  std::int64_t step[Dims::kMaxRank][kTokens];

  std::int64_t At(int stream, std::int64_t token) const {
    return base[stream][token] + step[stream][token];
  }
  bool operator==(const BlockPositions& other) const;
  // Whether they are consecutive and share one base, and so follow from one exact sincos.
  bool IsRun() const;
};

// The positions of the tokens [first, first + tokens) of a batch.
void FindPositions(const PositionIds& ids, int streams, std::int64_t step_count, std::int64_t batch,
                   std::int64_t first, std::int64_t tokens, BlockPositions& to);

// The steps that n consecutive positions from `first` on need, as bits.
std::uint32_t StepsOfLine(std::int64_t first, std::int64_t n, std::int64_t step_count);

// The positions argument `name`, of the shape (N), (B,N) or, with k > 0 sections, (k,B,N), or
// offsets of the shape (B), as ids.
PositionIds CheckPositions(const char* op, const IntegerView& positions, std::int64_t batches,
                           std::int64_t tokens, int sections);
PositionIds CheckOffsets(const char* op, const IntegerView& offsets, std::int64_t batches);

// Every id of a call is from `lowest` to `highest`; `what` says what has these bounds.
void CheckPositionRange(const char* op, const char* name, const PositionIds& ids, int streams,
                        std::int64_t batches, std::int64_t tokens, std::int64_t lowest,
                        std::int64_t highest, const char* what);

}  // namespace attnops

#endif  // ATTNOPS_SRC_POSITIONS_IDS_H_
