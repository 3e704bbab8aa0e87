// Activation and position encoding of a block's rows, and the way back of their gradients.

#if defined(ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
#undef ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "src/simd/activation-inl.h"
#include "src/simd/attention/block-inl.h"
#include "src/simd/encoding/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::attention {
namespace HWY_NAMESPACE {

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

// K chunks, of n elements together, to a row of a tensor. A kept KV may have NaNs of any payload.
template <int K, typename T>
HWY_INLINE void StoreGradient(const Pack<2 * K>& pack, T* to, std::size_t n) {
  if constexpr (K > 1) {
    StoreChunks<K, Payload::kAny>(pack, to);
  } else {
    StoreChunkN<Payload::kAny>(pack, to, n);
  }
}

// A stage's shape of rows, and where its parts begin in a block and in the rows of columns.
struct StageShape : RowShape {
  explicit StageShape(const Stage& stage)
      : RowShape(static_cast<std::size_t>(stage.part), static_cast<std::size_t>(stage.placed),
                 static_cast<std::size_t>(Padded(stage.part))),
        parts(stage.parts) {}

  HWY_INLINE Panels PartOf(const Panels& block, int p) const {
    return {block.data + p * static_cast<std::int64_t>(width / ChunkSize()) * block.panel,
            block.panel};
  }
  std::size_t ColumnsSize() const { return static_cast<std::size_t>(parts) * width; }

  int parts;
};

// body<K>(p, row, j, n) for all pieces of all parts of `count` rows.
template <class Body>
HWY_INLINE void ForEachPieceOfRows(const StageShape& shape, std::int64_t count, const Body& body) {
  for (int p = 0; p < shape.parts; ++p) {
    for (std::int64_t row = 0; row < count; ++row) {
      ForEachPiece<CosineRows>(shape, shape.part,
                               [&]<int K>(std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
                                 body.template operator()<K>(p, row, j, n);
                               });
    }
  }
}

// Activations of rows of a tensor, into a block.

template <class Act, typename T>
HWY_NOINLINE void ActivateElements(const StageShape& shape, const Rows<const T>& x,
                                   std::int64_t count, const Panels& to) {
  ForEachPieceOfRows(
      shape, count,
      [&]<int K>(int p, std::int64_t row, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const auto v = LoadPiece<1, K>(shape, x[row] + p * shape.part, j, n);
        StorePanels<K>(Act::template Forward<AccuracyFor<T>()>(v), shape.PartOf(to, p), row, j);
      });
}

// A piece's softmax over the sequence.
template <int K, typename T>
HWY_INLINE Pack<2 * K> SequencePiece(const StageShape& shape, const T* x, const float* columns,
                                     std::size_t j, std::size_t n) {
  const auto e = ExpDifference<AccuracyFor<T>()>(LoadPiece<1, K>(shape, x, j, n),
                                                 LoadTable<1, K>(shape, columns, j));
  return Mul(e, LoadTable<1, K>(shape, columns + shape.ColumnsSize(), j));
}

template <typename T>
HWY_NOINLINE void ActivateSequence(const StageShape& shape, const Rows<const T>& x,
                                   std::int64_t count, const float* columns, const Panels& to) {
  ForEachPieceOfRows(
      shape, count,
      [&]<int K>(int p, std::int64_t row, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
        StorePanels<K>(SequencePiece<K>(shape, x[row] + p * shape.part,
                                        columns + p * static_cast<std::int64_t>(shape.width), j, n),
                       shape.PartOf(to, p), row, j);
      });
}

// f<kRows>(row) for all rows, a few at a time as softmax over the features takes them.
template <class F>
HWY_INLINE void ForEachSetOfRows(std::int64_t count, const F& f) {
  constexpr int kSet = static_cast<int>(kMaxRowSet);
  std::int64_t row = 0;
  for (; row + kSet <= count; row += kSet) f.template operator()<kSet>(row);
  for (; row < count; ++row) f.template operator()<1>(row);
}

// The exponentials of rows from `row` on at `to`, and their scales.
template <class E, int kRows, typename T>
HWY_INLINE void SoftmaxOfRows(const StageShape& shape, const Rows<const T>& x, std::int64_t row,
                              float* to, VF (&scales)[kRows]) {
  Row<T> rows[kRows] = {};
  for (int r = 0; r < kRows; ++r) rows[r].x = x[row + r];
  SoftmaxOfFeatures<E, kRows>(shape, rows, to, scales);
}

template <class E, typename T>
HWY_NOINLINE void ActivateFeatures(const StageShape& shape, const Rows<const T>& x,
                                   std::int64_t count, float* scratch, const Panels& to) {
  ForEachSetOfRows(count, [&]<int kRows>(std::int64_t first) ATTNOPS_INLINE_LAMBDA {
    VF scales[kRows];
    SoftmaxOfRows<E, kRows>(shape, x, first, scratch, scales);
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + static_cast<std::size_t>(r) * shape.ColumnsSize();
      ForEachPieceOfRows(
          shape, 1,
          [&]<int K>(int p, std::int64_t, std::size_t j, std::size_t) ATTNOPS_INLINE_LAMBDA {
            const auto v = LoadTable<1, K>(shape, e + p * shape.width, j);
            StorePanels<K>(Mul(v, Fill<2 * K>(scales[r])), shape.PartOf(to, p), first + r, j);
          });
    }
  });
}

template <typename T>
HWY_INLINE void Activate(const Operand& operand, const Rows<const T>& x, std::int64_t count,
                         const Blocks& blocks, const Panels& to) {
  const StageShape shape(operand.stage);
  switch (operand.stage.act) {
    case Activation::Kind::kNone:
      return ActivateElements<ActNone>(shape, x, count, to);
    case Activation::Kind::kRelu:
      return ActivateElements<ActRelu>(shape, x, count, to);
    case Activation::Kind::kSigmoid:
      return ActivateElements<ActSigmoid>(shape, x, count, to);
    case Activation::Kind::kSilu:
      return ActivateElements<ActSilu>(shape, x, count, to);
    case Activation::Kind::kSoftmax:
      break;
  }
  if (operand.stage.SumsColumns()) {
    ActivateSequence(shape, x, count, blocks.columns[operand.index], to);
  } else if (shape.parts == 2) {
    ActivateFeatures<RotateRows>(shape, x, count, blocks.rows, to);
  } else {
    ActivateFeatures<CosineRows>(shape, x, count, blocks.rows, to);
  }
}

// Gradients of rows of a tensor, from those of their activations in a block.

template <class Act, typename T>
HWY_NOINLINE void DeriveElements(const StageShape& shape, const Rows<const T>& x,
                                 std::int64_t count, const Panels& dy, const Rows<T>& dx) {
  ForEachPieceOfRows(shape, count,
                     [&]<int K>(int p, std::int64_t row, std::size_t j, std::size_t n)
                         ATTNOPS_INLINE_LAMBDA {
                           auto gradient = LoadPanels<K>(shape.PartOf(dy, p), row, j);
                           if constexpr (Act::kUsesX) {
                             gradient = Act::template Backward<AccuracyFor<T>()>(
                                 LoadPiece<1, K>(shape, x[row] + p * shape.part, j, n), gradient);
                           }
                           StoreGradient<K>(gradient, dx[row] + p * shape.part + j, n);
                         });
}

template <typename T>
HWY_NOINLINE void DeriveSequence(const StageShape& shape, const Rows<const T>& x,
                                 std::int64_t count, const float* columns, const Panels& dy,
                                 const Rows<T>& dx) {
  ForEachPieceOfRows(
      shape, count,
      [&]<int K>(int p, std::int64_t row, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
        const float* part = columns + static_cast<std::size_t>(p) * shape.width;
        const auto gradient = LoadPanels<K>(shape.PartOf(dy, p), row, j);
        const auto y = SequencePiece<K>(shape, x[row] + p * shape.part, part, j, n);
        const auto mean = LoadTable<1, K>(shape, part + 2 * shape.ColumnsSize(), j);
        StoreGradient<K>(Mul(y, Sub(gradient, mean)), dx[row] + p * shape.part + j, n);
      });
}

// Adds what the rows add to the means.
template <typename T>
HWY_NOINLINE void AddMeans(const StageShape& shape, const Rows<const T>& x, std::int64_t count,
                           const float* columns, const Panels& dy, float* means) {
  for (int p = 0; p < shape.parts; ++p) {
    const std::size_t at = static_cast<std::size_t>(p) * shape.width;
    for (std::size_t j = 0; j < shape.part; j += ChunkSize()) {
      const std::size_t n = std::min(ChunkSize(), shape.part - j);
      Chunk sum = Fill<2>(0.0f);
      for (std::int64_t row = 0; row < count; ++row) {
        sum = MulAdd(SequencePiece<1>(shape, x[row] + p * shape.part, columns + at, j, n),
                     LoadPanels<1>(shape.PartOf(dy, p), row, j), sum);
      }
      StoreChunk(Add(LoadChunk(means + at + j), sum), means + at + j);
    }
  }
}

// With p = e·scale: dx = p·(dy − Σ p·dy).
template <class E, typename T>
HWY_NOINLINE void DeriveFeatures(const StageShape& shape, const Rows<const T>& x,
                                 std::int64_t count, float* scratch, const Panels& dy,
                                 const Rows<T>& dx) {
  const DF d;
  ForEachSetOfRows(count, [&]<int kRows>(std::int64_t first) ATTNOPS_INLINE_LAMBDA {
    VF scales[kRows];
    VF means[kRows];
    SoftmaxOfRows<E, kRows>(shape, x, first, scratch, scales);
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + static_cast<std::size_t>(r) * shape.ColumnsSize();
      VF dot = hn::Zero(d);
      ForEachPieceOfRows(
          shape, 1,
          [&]<int K>(int p, std::int64_t, std::size_t j, std::size_t) ATTNOPS_INLINE_LAMBDA {
            // The padding of the exponentials is 0, so that of dy does not count.
            const auto v = LoadTable<1, K>(shape, e + p * shape.width, j);
            dot = hn::Add(dot,
                          SumOfVectors(Mul(v, LoadPanels<K>(shape.PartOf(dy, p), first + r, j))));
          });
      means[r] = hn::Mul(hn::SumOfLanes(d, dot), scales[r]);
    }
    for (int r = 0; r < kRows; ++r) {
      const float* e = scratch + static_cast<std::size_t>(r) * shape.ColumnsSize();
      ForEachPieceOfRows(
          shape, 1,
          [&]<int K>(int p, std::int64_t, std::size_t j, std::size_t n) ATTNOPS_INLINE_LAMBDA {
            const auto y =
                Mul(LoadTable<1, K>(shape, e + p * shape.width, j), Fill<2 * K>(scales[r]));
            const auto gradient = LoadPanels<K>(shape.PartOf(dy, p), first + r, j);
            StoreGradient<K>(Mul(y, Sub(gradient, Fill<2 * K>(means[r]))),
                             dx[first + r] + p * shape.part + j, n);
          });
    }
  });
}

template <typename T>
HWY_INLINE void Derive(const Operand& operand, Goal goal, const Rows<const T>& x,
                       std::int64_t count, const Blocks& blocks, const Panels& dy,
                       const Rows<T>& dx) {
  const StageShape shape(operand.stage);
  switch (operand.stage.act) {
    case Activation::Kind::kNone:
      return DeriveElements<ActNone>(shape, x, count, dy, dx);
    case Activation::Kind::kRelu:
      return DeriveElements<ActRelu>(shape, x, count, dy, dx);
    case Activation::Kind::kSigmoid:
      return DeriveElements<ActSigmoid>(shape, x, count, dy, dx);
    case Activation::Kind::kSilu:
      return DeriveElements<ActSilu>(shape, x, count, dy, dx);
    case Activation::Kind::kSoftmax:
      break;
  }
  if (operand.stage.SumsColumns()) {
    const float* columns = blocks.columns[operand.index];
    if (goal == Goal::kMeans) {
      AddMeans(shape, x, count, columns, dy, blocks.means[operand.index]);
    } else {
      DeriveSequence(shape, x, count, columns, dy, dx);
    }
  } else if (shape.parts == 2) {
    DeriveFeatures<RotateRows>(shape, x, count, blocks.rows, dy, dx);
  } else {
    DeriveFeatures<CosineRows>(shape, x, count, blocks.rows, dy, dx);
  }
}

// The angles of a few consecutive tokens: rows of a table, or one row and the steps from it to each
// token, or none, where they have no position.
struct RunAngles {
  const float* table = nullptr;
  const float* steps = nullptr;
};

// f<Kind>(angles) where angles(row) are those of a row, and Kind is E or, for tokens without a
// position, Unplaced<E>.
template <class E, class F>
HWY_INLINE void WithAngles(const StageShape& shape, const RunAngles& run, const F& f) {
  const auto at = [&shape](const float* rows, std::int64_t row) ATTNOPS_INLINE_LAMBDA {
    return TableAngles{rows + static_cast<std::size_t>(row) * 2 * shape.width, shape.width};
  };
  if (run.table == nullptr) {
    f.template operator()<Unplaced<E>>([](std::int64_t)
                                           ATTNOPS_INLINE_LAMBDA { return NoAngles(); });
  } else if (run.steps != nullptr) {
    f.template operator()<E>([&](std::int64_t row) ATTNOPS_INLINE_LAMBDA {
      return SteppedAngles{at(run.table, 0), at(run.steps, row)};
    });
  } else {
    f.template operator()<E>([&](std::int64_t row)
                                 ATTNOPS_INLINE_LAMBDA { return at(run.table, row); });
  }
}

// A chunk of each of kParts parts of a row of a block.
template <int kParts>
HWY_INLINE Piece<kParts, 1> LoadParts(const StageShape& shape, const Panels& block,
                                      std::int64_t row, std::size_t j) {
  if constexpr (kParts == 1) {
    return LoadPanels<1>(block, row, j);
  } else {
    return Join(LoadPanels<1>(block, row, j), LoadPanels<1>(shape.PartOf(block, 1), row, j));
  }
}
template <int kParts>
HWY_INLINE void StoreParts(const StageShape& shape, const Piece<kParts, 1>& piece,
                           const Panels& block, std::int64_t row, std::size_t j) {
  if constexpr (kParts == 1) {
    StorePanels<1>(piece, block, row, j);
  } else {
    StorePanels<1>(FirstHalf(piece), block, row, j);
    StorePanels<1>(SecondHalf(piece), shape.PartOf(block, 1), row, j);
  }
}

// Rows of a block become f<Kind>(piece, angles, j, n), of which `to` parts are left of `from`.
template <class E, int kFrom, int kTo, class F>
HWY_INLINE void RewriteRows(const StageShape& shape, const Panels& block, std::int64_t count,
                            const RunAngles& run, const F& f) {
  WithAngles<E>(shape, run, [&]<class Kind>(const auto& angles) ATTNOPS_INLINE_LAMBDA {
    for (std::size_t j = 0; j < shape.part; j += ChunkSize()) {
      const std::size_t n = std::min(ChunkSize(), shape.part - j);
      for (std::int64_t row = 0; row < count; ++row) {
        const Piece<kTo, 1> piece =
            f.template operator()<Kind>(LoadParts<kFrom>(shape, block, row, j), angles(row), j, n);
        StoreParts<kTo>(shape, piece, block, row, j);
      }
    }
  });
}

// Encodes rows of a block in place.
template <class E, typename T>
HWY_NOINLINE void EncodeRows(const StageShape& shape, const Panels& block, std::int64_t count,
                             const RunAngles& run) {
  RewriteRows<E, E::kPlainParts, 2>(
      shape, block, count, run,
      [&]<class Kind>(const auto& y, const auto& angles, std::size_t j, std::size_t n)
          ATTNOPS_INLINE_LAMBDA { return EncodePiece<Kind, 1, T>(shape, y, angles, j, n); });
}

// The transpose of that.
template <class E, typename T>
HWY_NOINLINE void DecodeRows(const StageShape& shape, const Panels& block, std::int64_t count,
                             const RunAngles& run) {
  RewriteRows<E, 2, E::kPlainParts>(
      shape, block, count, run,
      [&]<class Kind>(const auto& d, const auto& angles, std::size_t j, std::size_t n)
          ATTNOPS_INLINE_LAMBDA { return DecodePiece<Kind, 1, T>(shape, d, angles, j, n); });
}

// f(row, rows, angles) for runs of the tokens [first, first + count), all of them where nothing is
// encoded. On a line, where a token's angles are one step from the run's first, these are all that
// is written: a table of a run would not fit L1 beside the steps and the rows.
template <class F>
HWY_INLINE void ForEachRun(const Problem& problem, const Stage& stage, Head head,
                           std::int64_t first, std::int64_t count, float* table, const F& f) {
  if (!stage.encodes) return f(0, count, RunAngles{});
  const Angles& angles = stage.angles;
  const std::int64_t angle_row = angles.rows == 1 ? 0 : head.head;
  const bool line = angles.OnLine();
  for (std::int64_t row = 0; row < count;) {
    const std::int64_t token = first + row;
    const bool placed = token >= stage.prefix;
    const std::int64_t most = placed ? count - row : std::min(count - row, stage.prefix - token);
    const std::int64_t rows = std::min(angles.block, most);
    if (placed) {
      problem.fill_table(angles, angle_row, angle_row + 1, token - stage.prefix, line ? 1 : rows,
                         table);
      f(row, rows, RunAngles{table, line ? angles.Step(angle_row, 0) : nullptr});
    } else {
      f(row, rows, RunAngles{});
    }
    row += rows;
  }
}

// The rows from `first` on of a tensor through its stage into a block. Run by run: then a run's
// angles and rows are in L1.
template <typename T>
void LoadOperand(const Problem& problem, const Operand& operand, Head head, std::int64_t first,
                 std::int64_t count, const Blocks& blocks, const Panels& to) {
  const Stage& stage = operand.stage;
  const Rows<const T> x = RowsOf<T>(operand.x, head, first);
  if (stage.IsDirect()) return LoadRows(x.data, x.stride, count, stage.part, to);
  const StageShape shape(stage);
  ForEachRun(problem, stage, head, first, count, blocks.table,
             [&](std::int64_t row, std::int64_t rows, const RunAngles& angles) HWY_ATTR {
               const Panels at{to.data + row * static_cast<std::int64_t>(ChunkSize()), to.panel};
               Activate<T>(operand, {x[row], x.stride}, rows, blocks, at);
               if (!stage.encodes) return;
               if (stage.encoding == Encoding::kCosine) {
                 EncodeRows<CosineRows, T>(shape, at, rows, angles);
               } else {
                 EncodeRows<RotateRows, T>(shape, at, rows, angles);
               }
             });
}

// The gradient of those rows from that of the block, which is used up.
template <typename T>
void StoreOperandGradient(const Problem& problem, const Operand& operand, Goal goal, Head head,
                          std::int64_t first, std::int64_t count, const Blocks& blocks,
                          const Panels& gradient) {
  const Stage& stage = operand.stage;
  const Rows<const T> x = RowsOf<T>(operand.x, head, first);
  const Rows<T> dx = RowsOf<T>(operand.dx, head, first);
  const StageShape shape(stage);
  ForEachRun(problem, stage, head, first, count, blocks.table,
             [&](std::int64_t row, std::int64_t rows, const RunAngles& angles) HWY_ATTR {
               const Panels at{gradient.data + row * static_cast<std::int64_t>(ChunkSize()),
                               gradient.panel};
               if (stage.encodes && stage.encoding == Encoding::kCosine) {
                 DecodeRows<CosineRows, T>(shape, at, rows, angles);
               } else if (stage.encodes) {
                 DecodeRows<RotateRows, T>(shape, at, rows, angles);
               }
               Derive<T>(operand, goal, {x[row], x.stride}, rows, blocks, at, {dx[row], dx.stride});
             });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ATTENTION_STAGES_INL_H_
