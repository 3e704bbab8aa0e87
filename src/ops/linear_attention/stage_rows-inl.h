// A stage's rows of a block: their angles, their activation, and tiles of them in registers.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGE_ROWS_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGE_ROWS_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGE_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "src/core/assert.h"
#include "src/ops/linear_attention/features-inl.h"
#include "src/positions/encode-inl.h"
#include "src/positions/tables-inl.h"
#include "src/rowops/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

// Where the angles of a block's rows are: each has a row of a table. On a line several rows share
// one, and each adds a step to it.
struct BlockAngles {
  // The angles of a row, for the chunk at `j`.
  HWY_INLINE Angle<1> At(std::int64_t row, std::size_t j) const {
    const TableAngles base{cos[row] + j, width};
    if (step[row] == nullptr) return base.At<1>(0);
    return SteppedAngles{base, {step[row] + j, width}}.At<1>(0);
  }

  std::int64_t prefix = 0;  // rows in front without a position
  std::size_t width = 0;
  const float* cos[kBlockTokens];
  const float* step[kBlockTokens];
};

// Finds the angles of the tokens [first, first + count) of a sequence; fills tables at `table`.
template <typename T>
void FillAngles(const Stage& stage, Head head, std::int64_t first, std::int64_t count, float* table,
                BlockAngles& to) {
  if (!stage.encodes) return;
  ATTNOPS_DASSERT(count <= kBlockTokens);
  const Angles& angles = stage.angles;
  const bool line = angles.OnLine();
  const std::int64_t head_row = angles.rows == 1 ? 0 : head.head;
  to.prefix = std::clamp<std::int64_t>(stage.prefix - first, 0, count);
  to.width = static_cast<std::size_t>(angles.width);
  for (std::int64_t row = to.prefix; row < count;) {
    const std::int64_t position = first + row - stage.prefix;
    // Steps are counted from multiples of step_count: a position has the same bits in every block.
    const std::int64_t begin = line ? FloorModulo(angles.offset + position, angles.step_count) : 0;
    const std::int64_t end = std::min(row + angles.step_count - begin, count);
    FillTable<T>(angles, head_row, head_row + 1, position - begin, line ? 1 : end - row, table);
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
struct IsWithoutAngles {
  static constexpr bool kValue = false;
};
template <class E>
struct IsWithoutAngles<WithoutAngles<E>> {
  static constexpr bool kValue = true;
};

// A chunk of each of kParts parts of a tile's row.
template <int kParts>
HWY_INLINE Strip<kParts, 1> LoadParts(const ChunkRows& tile, std::int64_t row) {
  const std::int64_t at = row * static_cast<std::int64_t>(ChunkSize());
  if constexpr (kParts == 1) {
    return LoadChunk(tile.part[0] + at);
  } else {
    return Join(LoadChunk(tile.part[0] + at), LoadChunk(tile.part[1] + at));
  }
}
template <int kParts>
HWY_INLINE void StoreParts(const Strip<kParts, 1>& strip, const ChunkRows& tile, std::int64_t row) {
  const std::int64_t at = row * static_cast<std::int64_t>(ChunkSize());
  if constexpr (kParts == 1) {
    StoreChunk(strip, tile.part[0] + at);
  } else {
    StoreChunk(FirstHalf(strip), tile.part[0] + at);
    StoreChunk(SecondHalf(strip), tile.part[1] + at);
  }
}

// Stores a chunk of each part in a row of a gradient. A kept KV may have NaNs of any payload.
template <int kParts, typename T>
HWY_INLINE void StoreGradient(const StageShape& shape, const Strip<kParts, 1>& strip, T* row,
                              std::size_t j, std::size_t n) {
  if constexpr (kParts == 1) {
    StoreChunkN<Payload::kAny>(strip, row + j, n);
  } else {
    StoreChunkN<Payload::kAny>(FirstHalf(strip), row + j, n);
    StoreChunkN<Payload::kAny>(SecondHalf(strip), row + shape.part + j, n);
  }
}

// Element-wise activations of packs.
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

// Calls f with an activation; softmax is the one over the sequence.
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

// An operand's rows of a block, and all that its stage needs for them.
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
  Rows<const T> factor = {};  // of rows and gradients, if given; only without an encoding
  BlockAngles angles;
};

// A chunk of each part of `rows` rows from `first` on.
struct StageTile {
  std::int64_t first, rows, chunk;
};

// The angles of a row in registers.
struct KnownAngles {
  Angle<1> angles;

  template <int K>
  HWY_INLINE Angle<K> At(std::size_t) const {
    return angles;
  }
};

// Joins of(0), …, of(kRows−1), each a pack of V vectors, into one pack; RowOf is one of them again.
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

// kRows rows of a tile, from its row `first` on, with an encoding E.
template <class E, int kRows, typename T>
struct TileRows {
  static constexpr bool kEncodes = !std::is_same_v<E, PlainRows>;
  static constexpr bool kHasAngles = kEncodes && !IsWithoutAngles<E>::kValue;
  static constexpr int kParts = E::kPlainParts;
  static constexpr int kVectors = 2 * kParts;
  using Values = Pack<kVectors * kRows>;

  HWY_INLINE TileRows(const StagedRows<T>& rows, const StageTile& tile, std::int64_t row)
      : staged(rows),
        first(row),
        row0(tile.first + row),
        j(static_cast<std::size_t>(tile.chunk) * ChunkSize()),
        n(std::min(ChunkSize(), rows.shape.part - j)) {
    if constexpr (kHasAngles) {
      ForEach<kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
        known[i()].angles = staged.angles.At(row0 + i(), j);
      });
    }
  }

  HWY_INLINE Values LoadX() const { return LoadRowsOf(staged.x); }

  // The gradient of activated rows from that of encoded ones, times the factor.
  HWY_INLINE Values Decode(const ChunkRows& gradient) const {
    Values dy = JoinRows<kVectors, kRows>([&](int i) ATTNOPS_INLINE_LAMBDA {
      if constexpr (kEncodes) {
        return DecodeStrip<E, 1, T>(staged.shape, LoadParts<2>(gradient, first + i), known[i], j,
                                    n);
      } else {
        return LoadParts<1>(gradient, first + i);
      }
    });
    if (!kEncodes && staged.factor.data != nullptr) dy = Mul(dy, LoadRowsOf(staged.factor));
    return dy;
  }

  // Multiplies activated rows by the factor, encodes and stores them.
  HWY_INLINE void Encode(Values y, const ChunkRows& to) const {
    if (!kEncodes && staged.factor.data != nullptr) y = Mul(y, LoadRowsOf(staged.factor));
    ForEach<kRows>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      const Pack<kVectors> value = RowOf<kVectors>(y, i());
      if constexpr (kEncodes) {
        StoreParts<2>(EncodeStrip<E, 1, T>(staged.shape, value, known[i()], j, n), to, first + i());
      } else {
        StoreParts<1>(value, to, first + i());
      }
    });
  }

  // Calls f with the stage's activation.
  template <class F>
  HWY_INLINE void Activate(const F& f) const {
    const Sequence sequence{staged.columns == nullptr ? nullptr : staged.columns + j,
                            staged.shape.ColumnsSize(), staged.shape.width};
    WithActivation(staged.stage.act, sequence, f);
  }

  HWY_INLINE Values LoadRowsOf(const Rows<const T>& rows) const {
    return JoinRows<kVectors, kRows>([&](int i) ATTNOPS_INLINE_LAMBDA {
      return LoadStrip<kParts, 1>(staged.shape, rows[row0 + i], j, n);
    });
  }

  const StagedRows<T>& staged;
  std::int64_t first;  // in the tile
  std::int64_t row0;   // in the block
  std::size_t j, n;
  KnownAngles known[kRows] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_STAGE_ROWS_INL_H_
