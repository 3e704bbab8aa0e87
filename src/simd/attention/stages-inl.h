// Activation and position encoding of a block's rows, and the way back of their gradients.
//
// A stage works on tiles: a chunk of each part of a few rows, in L1 and registers. Only softmax
// over the features needs whole rows before.

#if defined(ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
#undef ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/simd/activation-inl.h"
#include "src/simd/attention/features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
namespace HWY_NAMESPACE {

// Where the angles of a block's rows are: in a row of a table for each that has a position or, on a
// line, in one for each few positions, from where it is a step.
struct BlockAngles {
  // Those of a row, for the chunk at `j`.
  HWY_INLINE CosSin<1> At(std::int64_t row, std::size_t j) const {
    const TableAngles base{cos[row] + j, width};
    if (step[row] == nullptr) return base.At<1>(0);
    return SteppedAngles{base, {step[row] + j, width}}.At<1>(0);
  }

  std::int64_t unplaced = 0;  // rows in front without a position
  std::size_t width = 0;
  const float* cos[kBlock];
  const float* step[kBlock];
};

// Those of the tokens [first, first + count) of a sequence, made at `table`.
inline void FillAngles(const Problem& problem, const Stage& stage, Head head, std::int64_t first,
                       std::int64_t count, float* table, BlockAngles& to) {
  if (!stage.encodes) return;
  const Angles& angles = stage.angles;
  const bool line = angles.OnLine();
  const std::int64_t head_row = angles.rows == 1 ? 0 : head.head;
  to.unplaced = std::clamp<std::int64_t>(stage.prefix - first, 0, count);
  to.width = static_cast<std::size_t>(angles.width);
  for (std::int64_t row = to.unplaced; row < count;) {
    const std::int64_t position = first + row - stage.prefix;
    // Steps begin where positions are a multiple of them, for the same bits in every block.
    const std::int64_t begin = line ? position % angles.block : 0;
    const std::int64_t end = std::min(row + angles.block - begin, count);
    problem.fill_table(angles, head_row, head_row + 1, position - begin, line ? 1 : end - row,
                       table);
    for (std::int64_t i = begin; row < end; ++row, ++i) {
      to.cos[row] = table;
      to.step[row] = line ? angles.Step(head_row, i) : nullptr;
      if (!line) table += angles.RowSize();
    }
    if (line) table += angles.RowSize();
  }
}

// Rows without an encoding, as a kind of encoding.
struct PlainRows {
  static constexpr int kPlainParts = 1;
};
template <class E>
struct IsUnplaced {
  static constexpr bool kValue = false;
};
template <class E>
struct IsUnplaced<Unplaced<E>> {
  static constexpr bool kValue = true;
};

// A chunk of each of kParts parts of a tile's row.
template <int kParts>
HWY_INLINE Piece<kParts, 1> LoadParts(const ChunkRows& tile, std::int64_t row) {
  const std::int64_t at = row * static_cast<std::int64_t>(ChunkSize());
  if constexpr (kParts == 1) {
    return LoadChunk(tile.part[0] + at);
  } else {
    return Join(LoadChunk(tile.part[0] + at), LoadChunk(tile.part[1] + at));
  }
}
template <int kParts>
HWY_INLINE void StoreParts(const Piece<kParts, 1>& piece, const ChunkRows& tile, std::int64_t row) {
  const std::int64_t at = row * static_cast<std::int64_t>(ChunkSize());
  if constexpr (kParts == 1) {
    StoreChunk(piece, tile.part[0] + at);
  } else {
    StoreChunk(FirstHalf(piece), tile.part[0] + at);
    StoreChunk(SecondHalf(piece), tile.part[1] + at);
  }
}

// A chunk of each part of a row of a tensor's gradient. A kept KV may have NaNs of any payload.
template <int kParts, typename T>
HWY_INLINE void StoreGradient(const StageShape& shape, const Piece<kParts, 1>& piece, T* row,
                              std::size_t j, std::size_t n) {
  if constexpr (kParts == 1) {
    StoreChunkN<Payload::kAny>(piece, row + j, n);
  } else {
    StoreChunkN<Payload::kAny>(FirstHalf(piece), row + j, n);
    StoreChunkN<Payload::kAny>(SecondHalf(piece), row + shape.part + j, n);
  }
}

// Element-wise activations, of packs of rows' chunks.
template <class Act>
struct Elements {
  template <Accuracy kAccuracy, int kParts, int N>
  HWY_INLINE Pack<N> Value(const Pack<N>& x) const {
    return Act::template Forward<kAccuracy>(x);
  }
  template <Accuracy kAccuracy, int kParts, int N>
  HWY_INLINE Pack<N> Gradient(const Pack<N>& x, const Pack<N>& dy) const {
    if constexpr (Act::kUsesX) {
      return Act::template Backward<kAccuracy>(x, dy);
    } else {
      return dy;
    }
  }
};

// Softmax over the sequence, from the shifts, scales and means of columns: a chunk of each part.
struct Sequence {
  const float* columns;
  std::size_t size;   // floats from shifts to scales and from those to means
  std::size_t width;  // from one part to the next

  template <int kParts, int N>
  HWY_INLINE Pack<N> Columns(std::size_t row) const {
    return MakePack<N>([&](int i) ATTNOPS_INLINE_LAMBDA {
      const std::size_t part = static_cast<std::size_t>(i / 2 % kParts);
      const std::size_t vector = static_cast<std::size_t>(i % 2);
      return hn::LoadU(DF(), columns + row * size + part * width + vector * hn::Lanes(DF()));
    });
  }
  template <Accuracy kAccuracy, int kParts, int N>
  HWY_INLINE Pack<N> Value(const Pack<N>& x) const {
    return Mul(ExpDifference<kAccuracy>(x, Columns<kParts, N>(0)), Columns<kParts, N>(1));
  }
  template <Accuracy kAccuracy, int kParts, int N>
  HWY_INLINE Pack<N> Gradient(const Pack<N>& x, const Pack<N>& dy) const {
    return Mul(Value<kAccuracy, kParts>(x), Sub(dy, Columns<kParts, N>(2)));
  }
};

// f(activation) with the one of a stage.
template <class F>
HWY_INLINE void WithActivation(Activation::Kind act, const Sequence& sequence, const F& f) {
  switch (act) {
    case Activation::Kind::kNone:
      return f(Elements<ActNone>());
    case Activation::Kind::kRelu:
      return f(Elements<ActRelu>());
    case Activation::Kind::kSigmoid:
      return f(Elements<ActSigmoid>());
    case Activation::Kind::kSilu:
      return f(Elements<ActSilu>());
    case Activation::Kind::kSoftmax:
      return f(sequence);
  }
}

// Rows whose activations take their steps together (see Pack), while their angles wait in registers
// for the encoding; half as many of two parts.
constexpr int kRowsTogether = 2;

// Rows that a stage takes at a time where no product says how many: with their angles they stay
// in L1.
constexpr std::int64_t kStageRows = 16;

// An operand's rows of a block, and what becomes of them.
template <typename T>
struct StagedRows {
  StagedRows(const Operand& operand, Head head, std::int64_t first, const Blocks& blocks)
      : stage(operand.stage),
        shape(operand.stage),
        columns(blocks.columns[operand.index]),
        x(RowsOf<T>(operand.x, head, first)),
        dx(RowsOf<T>(operand.dx, head, first)) {}

  const Stage& stage;
  StageShape shape;
  const float* columns;  // of softmax over the sequence
  Rows<const T> x;
  Rows<T> dx;
  Rows<const T> factor = {};  // of rows that are not encoded and of their gradients, if given
  BlockAngles angles;
};

// A chunk of `rows` rows from `first` on. What they are behind the stage goes to `value`, if that
// is given; dx is written if their gradient there is given. Without the activation, `value`
// holds activated rows and is encoded in place, and the gradient becomes that of such rows.
struct StageTile {
  std::int64_t first, rows, chunk;
  bool activates;
  ChunkRows value, gradient;
};

// The angles of a row where they are in registers.
struct KnownAngles {
  CosSin<1> angles;

  template <int K>
  HWY_INLINE CosSin<K> At(std::size_t) const {
    return angles;
  }
};

// of(0), …, of(kRows−1), packs of V vectors, as one pack; and one of them.
template <int V, int kRows, class Of>
HWY_INLINE Pack<V * kRows> JoinRows(const Of& of) {
  Pack<V> rows[kRows];
  ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA { rows[row()] = of(row()); });
  return MakePack<V * kRows>([&](int i) ATTNOPS_INLINE_LAMBDA { return rows[i / V].v[i % V]; });
}
template <int V, int N>
HWY_INLINE Pack<V> RowOf(const Pack<N>& rows, int row) {
  return MakePack<V>([&](int i) ATTNOPS_INLINE_LAMBDA { return rows.v[row * V + i]; });
}

// kRows rows of a tile.
template <class E, int kRows, typename T>
HWY_INLINE void RunRows(const StagedRows<T>& staged, const StageTile& tile, std::int64_t first) {
  constexpr bool kEncodes = !std::is_same_v<E, PlainRows>;
  constexpr bool kPlaced = kEncodes && !IsUnplaced<E>::kValue;
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  constexpr int kParts = E::kPlainParts;
  constexpr int V = 2 * kParts;
  using Values = Pack<V * kRows>;
  const StageShape& shape = staged.shape;
  const std::size_t j = static_cast<std::size_t>(tile.chunk) * ChunkSize();
  const std::size_t n = std::min(ChunkSize(), shape.part - j);
  const std::int64_t row0 = tile.first + first;  // of the block

  KnownAngles known[kRows] = {};
  if constexpr (kPlaced) {
    ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      known[row()].angles = staged.angles.At(row0 + row(), j);
    });
  }
  const auto load_factor = [&]() ATTNOPS_INLINE_LAMBDA {
    return JoinRows<V, kRows>([&](int row) ATTNOPS_INLINE_LAMBDA {
      return LoadPiece<kParts, 1>(shape, staged.factor[row0 + row], j, n);
    });
  };

  Values dy;
  if (tile.gradient.part[0] != nullptr) {
    dy = JoinRows<V, kRows>([&](int row) ATTNOPS_INLINE_LAMBDA {
      if constexpr (kEncodes) {
        return DecodePiece<E, 1, T>(shape, LoadParts<2>(tile.gradient, first + row), known[row], j,
                                    n);
      } else {
        return LoadParts<1>(tile.gradient, first + row);
      }
    });
    if (!kEncodes && staged.factor.data != nullptr) dy = Mul(dy, load_factor());
  }

  Values y;
  if (tile.activates) {
    const Values x = JoinRows<V, kRows>([&](int row) ATTNOPS_INLINE_LAMBDA {
      return LoadPiece<kParts, 1>(shape, staged.x[row0 + row], j, n);
    });
    const Sequence sequence{staged.columns == nullptr ? nullptr : staged.columns + j,
                            shape.ColumnsSize(), shape.width};
    WithActivation(staged.stage.act, sequence, [&](const auto& f) ATTNOPS_INLINE_LAMBDA {
      y = f.template Value<kAccuracy, kParts>(x);
      if (tile.gradient.part[0] != nullptr) dy = f.template Gradient<kAccuracy, kParts>(x, dy);
    });
  } else if (tile.value.part[0] != nullptr) {
    y = JoinRows<V, kRows>(
        [&](int row) ATTNOPS_INLINE_LAMBDA { return LoadParts<kParts>(tile.value, first + row); });
  }

  if (tile.gradient.part[0] != nullptr) {
    ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      const Pack<V> gradient = RowOf<V>(dy, row());
      if (tile.activates) {
        StoreGradient<kParts>(shape, gradient, staged.dx[row0 + row()], j, n);
      } else {
        StoreParts<kParts>(gradient, tile.gradient, first + row());
      }
    });
  }
  if (tile.value.part[0] != nullptr) {
    if (!kEncodes && staged.factor.data != nullptr) y = Mul(y, load_factor());
    ForEach<kRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      const Pack<V> value = RowOf<V>(y, row());
      if constexpr (kEncodes) {
        StoreParts<2>(EncodePiece<E, 1, T>(shape, value, known[row()], j, n), tile.value,
                      first + row());
      } else {
        StoreParts<1>(value, tile.value, first + row());
      }
    });
  }
}

template <class E, typename T>
HWY_NOINLINE void RunTileOf(const StagedRows<T>& staged, const StageTile& tile) {
  constexpr int kTogether = std::max(1, kRowsTogether / E::kPlainParts);
  std::int64_t row = 0;
  if constexpr (!std::is_same_v<E, PlainRows>) {
    const std::int64_t unplaced = std::min(staged.angles.unplaced - tile.first, tile.rows);
    for (; row < unplaced; ++row) RunRows<Unplaced<E>, 1>(staged, tile, row);
  }
  for (; row + kTogether <= tile.rows; row += kTogether) {
    RunRows<E, kTogether>(staged, tile, row);
  }
  if constexpr (kTogether > 1) {
    for (; row < tile.rows; ++row) RunRows<E, 1>(staged, tile, row);
  }
}

template <typename T>
HWY_INLINE void RunTile(const StagedRows<T>& staged, const StageTile& tile) {
  if (!staged.stage.encodes) {
    RunTileOf<PlainRows>(staged, tile);
  } else if (staged.stage.encoding == Encoding::kCosine) {
    RunTileOf<CosineRows>(staged, tile);
  } else {
    RunTileOf<RotateRows>(staged, tile);
  }
}

// The rows from `first` on of a tensor through its stage into a block; `factor`, if it is given,
// are those of what is left of them.
template <typename T>
void LoadOperand(const Problem& problem, const Operand& operand, Head head, std::int64_t first,
                 std::int64_t count, const Blocks& blocks, const Panels& to,
                 const Rows<const T>& factor = {}) {
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
    FillAngles(problem, stage, head, first + row, rows, blocks.table, staged.angles);
    if (stage.SumsRows()) {
      ActivateFeatures<T>(staged.shape, staged.x, rows, blocks.rows, at);
    }
    const bool done = stage.SumsRows() && !stage.encodes && factor.data == nullptr;
    for (std::int64_t chunk = 0; chunk < staged.shape.Chunks() && !done; ++chunk) {
      RunTile<T>(staged,
                 {0, rows, chunk, !stage.SumsRows(), staged.shape.RowsOf(at, 0, chunk), {}});
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
