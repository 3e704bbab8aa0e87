// The backward of a stage, tile by tile of the product that makes the gradient.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_GRADIENT_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_GRADIENT_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_GRADIENT_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/linear_attention/pairs-inl.h"
#include "src/ops/linear_attention/stages-inl.h"
#include "src/positions/ids-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::linear_attention {
namespace HWY_NAMESPACE {

// Whether each tile of an operand's gradient can be turned into dx by itself. Then f(x) and f'(x)
// are computed together: the tile that makes dx also makes the operand's rows, for a later product.
// Softmax over the features needs whole rows, and the means of one over the sequence need whole
// columns: their operand is loaded before.
HWY_INLINE bool IsTiled(const Operand& operand, Goal goal) {
  return goal == Goal::kGradients && !operand.stage.IsDirect() && !operand.stage.SumsRows();
}

// Adds Σ p·dy of a block's rows to the means of softmax over the sequence; dy is a block too.
template <typename T>
HWY_NOINLINE void AddMeans(const StagedRows<T>& staged, std::int64_t count, const Panels& dy,
                           float* means) {
  const StageShape& shape = staged.shape;
  const std::size_t size = ChunkSize();
  for (std::int64_t chunk = 0; chunk < shape.Chunks(); ++chunk) {
    const std::size_t j = static_cast<std::size_t>(chunk) * size;
    const std::size_t n = std::min(size, shape.part - j);
    for (int p = 0; p < shape.parts; ++p) {
      const std::size_t at = static_cast<std::size_t>(p) * shape.width + j;
      const Sequence f{staged.columns + at, shape.ColumnsSize(), shape.width};
      const float* gradient = shape.RowsOf(dy, 0, chunk).part[p];
      Chunk sum = Fill<2>(0.0f);
      for (std::int64_t row = 0; row < count; ++row, gradient += size) {
        const Chunk x = LoadChunkN(staged.x[row] + p * shape.part + j, n);
        sum = MulAdd(f.Value<AccuracyFor<T>(), 1>(x), LoadChunk(gradient), sum);
      }
      StoreChunk(Add(LoadChunk(means + at), sum), means + at);
    }
  }
}

// Computes dx of the rows [first, first + count) of an operand with a stage, or what they add to
// its means. Tile takes a tile of the gradient of the rows that the stage makes, times `factor` if
// that is given; Finish comes after the last tile. If the operand is tiled and `rows` is given, the
// rows themselves are put there, times the factor.
template <typename T>
class StageGradient {
 public:
  StageGradient(const Operand& operand, Goal goal, Head head, std::int64_t first,
                std::int64_t count, const Blocks& blocks, const Panels& rows,
                const Rows<const T>& factor, Prefetcher& prefetches)
      : prefetcher(prefetches),
        operand_(operand),
        tiled_(IsTiled(operand, goal)),
        count_(count),
        blocks_(blocks),
        rows_(tiled_ ? rows : Panels{}),
        staged_(operand, head, first, blocks) {
    staged_.factor = factor;
    FillAngles<T>(operand.stage, head, first, count, blocks.table, staged_.angles);
    if (goal == Goal::kGradients) theta_ = operand.ThetaSumsOf(head.batch, head.head, first);
    if (theta_ != nullptr) StartTheta(first);
  }

  // For a gradient that is the product left·right.
  void Multiply(const Panels& left, const Panels& right, std::int64_t depth) const {
    MultiplyToTiles<Left::kStraight>(left, right, count_, depth, operand_.stage.encodes ? 2 : 1,
                                     staged_.shape.Chunks(), *this);
    Finish();
  }

#if !ATTNOPS_ONE_LANE
  // The same with bfloat16 operands.
  void Multiply(DotTile dot, const PairLeft& left, const Panels& right, std::int64_t depth) const {
    MultiplyPairsToTiles(dot, left, right, count_, depth, operand_.stage.encodes ? 2 : 1,
                         staged_.shape.Chunks(), *this);
    Finish();
  }
#endif

  HWY_INLINE void Tile(std::int64_t first, std::int64_t rows, std::int64_t chunk,
                       const ChunkRows& sums) const {
    const StageShape& shape = staged_.shape;
    const StageTile tile{first, rows, chunk};
    if (theta_ != nullptr) {
      const ChunkRows activated =
          operand_.stage.SumsRows() ? shape.RowsOf(blocks_.activated, first, chunk) : ChunkRows{};
      RunTile(staged_, tile, AddThetaTerms{sums, blocks_.factors, activated, theta_});
    }
    if (tiled_) {
      const ChunkRows to = rows_.data != nullptr ? shape.RowsOf(rows_, first, chunk) : ChunkRows{};
      RunTile(staged_, tile, Differentiate{sums, to});
      return;
    }
    RunTile(staged_, tile, DecodeGradient{sums});
    const ChunkRows to = shape.RowsOf(blocks_.gradient, first, chunk);
    for (int p = 0; p < shape.parts; ++p) {
      std::copy_n(sums.part[p], rows * static_cast<std::int64_t>(ChunkSize()), to.part[p]);
    }
  }

  void Finish() const {
    if (tiled_) return;
    if (operand_.stage.SumsRows()) {
      DeriveFeatures<T>(staged_.shape, staged_.x, count_, blocks_.rows, blocks_.gradient,
                        staged_.dx);
    } else {
      AddMeans<T>(staged_, count_, blocks_.gradient, blocks_.means[operand_.index]);
    }
  }

  Prefetcher& prefetcher;

 private:
  // The positions of the rows, and f(x) where a tile cannot compute it.
  void StartTheta(std::int64_t first) const {
    const std::int64_t prefix = staged_.angles.prefix;
    const Angles& angles = operand_.stage.angles;
    FillFactors<T>(angles, nullptr, first + prefix - operand_.stage.prefix, count_ - prefix,
                   blocks_.factors + prefix * angles.width);
    if (operand_.stage.SumsRows()) {
      ActivateFeatures<T>(staged_.shape, staged_.x, count_, blocks_.rows, blocks_.activated);
    }
  }

  const Operand& operand_;
  bool tiled_;
  std::int64_t count_;
  const Blocks& blocks_;
  Panels rows_;
  StagedRows<T> staged_;
  double* theta_ = nullptr;  // sums of theta's gradient
};

}  // namespace HWY_NAMESPACE
}  // namespace attnops::linear_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_GRADIENT_INL_H_
