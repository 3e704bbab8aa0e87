// Activation and position encoding of a block's rows, and the backward of both.
//
// A stage works on tiles: a chunk of each part of a few rows, in L1 and registers. Only softmax
// over the features works on whole rows, before the tiles.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGES_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGES_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/ops/linear_attention/stage_rows-inl.h"
#include "src/positions/theta-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

// The steps of a stage, each run on kRows rows of a tile. Their ChunkRows are the tile's.

// to = encode(f(x)).
struct ActivateAndEncode {
  ChunkRows to;

  template <class E, int kRows, typename T>
  HWY_INLINE void Run(const TileRows<E, kRows, T>& rows) const {
    const auto x = rows.LoadX();
    auto y = x;
    rows.Activate([&](const auto& f) ATTNOPS_INLINE_LAMBDA {
      y = f.template Value<AccuracyFor<T>(), E::kPlainParts>(x);
    });
    rows.Encode(y, to);
  }
};

// rows = encode(rows), for rows that are activated.
struct EncodeActivated {
  ChunkRows rows;

  template <class E, int kRows, typename T>
  HWY_INLINE void Run(const TileRows<E, kRows, T>& tile) const {
    constexpr int kParts = E::kPlainParts;
    tile.Encode(JoinRows<2 * kParts, kRows>([&](int i) ATTNOPS_INLINE_LAMBDA {
                  return LoadParts<kParts>(rows, tile.first + i);
                }),
                rows);
  }
};

// Stores dx, from the gradient of encoded rows, and encode(f(x)) in `to`, if that is given: f(x)
// and f'(x) share most of their computation.
struct Differentiate {
  ChunkRows gradient, to;

  template <class E, int kRows, typename T>
  HWY_INLINE void Run(const TileRows<E, kRows, T>& rows) const {
    constexpr int kParts = E::kPlainParts;
    auto dy = rows.Decode(gradient);
    const auto x = rows.LoadX();
    auto y = x;
    rows.Activate([&](const auto& f) ATTNOPS_INLINE_LAMBDA {
      y = f.template Value<AccuracyFor<T>(), kParts>(x);
      dy = f.template Gradient<AccuracyFor<T>(), kParts>(x, dy);
    });
    ForEach<kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      StoreGradient<kParts>(rows.staged.shape, RowOf<2 * kParts>(dy, i()),
                            rows.staged.dx[rows.row0 + i()], rows.j, rows.n);
    });
    if (to.part[0] != nullptr) rows.Encode(y, to);
  }
};

// Turns the gradient of encoded rows into that of activated ones.
struct DecodeGradient {
  ChunkRows gradient;

  template <class E, int kRows, typename T>
  HWY_INLINE void Run(const TileRows<E, kRows, T>& rows) const {
    constexpr int kParts = E::kPlainParts;
    const auto dy = rows.Decode(gradient);
    ForEach<kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      StoreParts<kParts>(RowOf<2 * kParts>(dy, i()), gradient, rows.first + i());
    });
  }
};

// Adds the terms of theta's gradient to `sums`, from the gradient of encoded rows.
struct AddThetaTerms {
  ChunkRows gradient;
  const float* factors;  // (rows of the block, width)
  ChunkRows activated;   // f(x), for softmax over the features
  double* sums;

  template <class E, int kRows, typename T>
  HWY_INLINE void Run(const TileRows<E, kRows, T>& rows) const {
    if constexpr (TileRows<E, kRows, T>::kHasAngles) {
      constexpr int kParts = E::kPlainParts;
      const auto x = rows.LoadX();
      auto y = x;
      if (activated.part[0] != nullptr) {
        y = JoinRows<2 * kParts, kRows>([&](int i) ATTNOPS_INLINE_LAMBDA {
          return LoadParts<kParts>(activated, rows.first + i);
        });
      } else {
        rows.Activate([&](const auto& f) ATTNOPS_INLINE_LAMBDA {
          y = f.template Value<AccuracyFor<T>(), kParts>(x);
        });
      }
      Chunk sum = Fill<2>(0.0f);
      ForEach<kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
        const auto term =
            ThetaTerm<E, 1>(RowOf<2 * kParts>(y, i()), LoadParts<2>(gradient, rows.first + i()),
                            rows.known[i()].angles);
        const float* factor =
            factors + static_cast<std::size_t>(rows.row0 + i()) * rows.staged.shape.width;
        sum = MulAdd(term, LoadChunk(factor + rows.j), sum);
      });
      AddToDoubles(sum, sums + rows.j);
    }
  }
};

template <class E, class Step, typename T>
HWY_NOINLINE void RunTileOf(const StagedRows<T>& staged, const StageTile& tile, const Step& step) {
  constexpr int kTogether = std::max(1, kRowsTogether / E::kPlainParts);
  std::int64_t row = 0;
  if constexpr (!std::is_same_v<E, PlainRows>) {
    const std::int64_t prefix = std::min(staged.angles.prefix - tile.first, tile.rows);
    for (; row < prefix; ++row) step.Run(TileRows<WithoutAngles<E>, 1, T>(staged, tile, row));
  }
  for (; row + kTogether <= tile.rows; row += kTogether) {
    step.Run(TileRows<E, kTogether, T>(staged, tile, row));
  }
  if constexpr (kTogether > 1) {
    for (; row < tile.rows; ++row) step.Run(TileRows<E, 1, T>(staged, tile, row));
  }
}

template <class Step, typename T>
HWY_INLINE void RunTile(const StagedRows<T>& staged, const StageTile& tile, const Step& step) {
  if (!staged.stage.encodes) {
    RunTileOf<PlainRows>(staged, tile, step);
  } else if (staged.stage.encoding == Encoding::kCosine) {
    RunTileOf<CosineRows>(staged, tile, step);
  } else {
    RunTileOf<RotateRows>(staged, tile, step);
  }
}

// Puts `count` rows of an operand, from token `first` on, through its stage into the block `to`,
// times the rows of `factor` if that is given.
template <typename T>
void LoadOperand(const Operand& operand, Head head, std::int64_t first, std::int64_t count,
                 const Blocks& blocks, const Panels& to, const Rows<const T>& factor = {}) {
  const Stage& stage = operand.stage;
  if (stage.part == 0) return;
  if (stage.IsDirect()) {
    const Rows<const T> x = RowsOf<T>(operand.x, head, first);
    return LoadRows(x.data, x.stride, count, stage.part, to);
  }
  for (std::int64_t row = 0; row < count; row += kStageRows) {
    const std::int64_t rows = std::min(kStageRows, count - row);
    StagedRows<T> staged(operand, head, first + row, blocks);
    const Panels at{to.data + row * static_cast<std::int64_t>(ChunkSize()), to.panel};
    if (factor.data != nullptr) staged.factor = factor.From(row);
    FillAngles<T>(stage, head, first + row, rows, blocks.table, staged.angles);
    if (stage.SumsRows()) {
      ActivateFeatures<T>(staged.shape, staged.x, rows, blocks.rows, at);
      if (!stage.encodes && factor.data == nullptr) continue;
    }
    for (std::int64_t chunk = 0; chunk < staged.shape.Chunks(); ++chunk) {
      const StageTile tile{0, rows, chunk};
      const ChunkRows at_chunk = staged.shape.RowsOf(at, 0, chunk);
      if (stage.SumsRows()) {
        RunTile(staged, tile, EncodeActivated{at_chunk});
      } else {
        RunTile(staged, tile, ActivateAndEncode{at_chunk});
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGES_INL_H_
