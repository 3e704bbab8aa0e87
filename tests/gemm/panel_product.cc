#include "tests/gemm/panel_product.h"

#include <algorithm>
#include <cstddef>
#include <new>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/gemm/panel_product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/core/target.h"
#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply-inl.h"
#include "src/gemm/panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::gemm {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

void MultiplyOf(bool transposed, const Panels& a, const Panels& b, std::int64_t rows,
                std::int64_t depth, std::int64_t columns, const Panels& c, bool add) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t chunks = DivideUp(columns, chunk);
  Prefetcher nothing;
  const AddToMatrix finish{c, add, nothing};
  if (transposed) {
    Multiply<Left::kTransposed>(a, b, rows, depth, chunks, finish);
  } else {
    Multiply<Left::kStraight>(a, b, rows, depth, chunks, finish);
  }
}

void MultiplyRowsOf(bool transposed, const Panels& a, const float* b, const Panels& panels,
                    std::int64_t rows, std::int64_t depth, std::int64_t columns, const Panels& c,
                    bool add) {
  Prefetcher nothing;
  const AddToMatrix finish{c, add, nothing};
  if (transposed) {
    MultiplyRows<Left::kTransposed>(a, b, columns, panels, rows, depth, columns, finish);
  } else {
    MultiplyRows<Left::kStraight>(a, b, columns, panels, rows, depth, columns, finish);
  }
}

// Keeps the tiles of a product in a matrix.
struct KeepTiles {
  const Panels& to;
  int parts;
  std::int64_t part_chunks;
  Prefetcher& prefetcher;

  void Tile(std::int64_t first, std::int64_t rows, std::int64_t chunk,
            const ChunkRows& sums) const {
    const ChunkRows at = RowsOfChunk(to, first, chunk, part_chunks);
    for (int p = 0; p < parts; ++p) {
      std::copy_n(sums.part[p], rows * static_cast<std::int64_t>(ChunkSize()), at.part[p]);
    }
  }
};

void MultiplyToTilesOf(bool transposed, const Panels& a, const Panels& b, std::int64_t rows,
                       std::int64_t depth, std::int64_t columns, int parts, const Panels& c) {
  Prefetcher nothing;
  const std::int64_t part_chunks = ChunksOf(columns) / parts;
  const KeepTiles finish{c, parts, part_chunks, nothing};
  if (transposed) {
    MultiplyToTiles<Left::kTransposed>(a, b, rows, depth, parts, part_chunks, finish);
  } else {
    MultiplyToTiles<Left::kStraight>(a, b, rows, depth, parts, part_chunks, finish);
  }
}

void LoadMatrixOf(const float* from, std::int64_t rows, std::int64_t columns, const Panels& to) {
  LoadMatrix<float>(from, columns, rows, columns, to);
}
void StoreMatrixOf(const Panels& from, std::int64_t rows, std::int64_t columns, float* to) {
  StoreMatrix<float>(from, rows, columns, to, columns);
}
void TransposeOf(const Panels& from, std::int64_t rows, std::int64_t columns, const Panels& to) {
  TransposePanels(from, rows, columns, to);
}
std::int64_t ChunkOf() { return static_cast<std::int64_t>(ChunkSize()); }

}  // namespace HWY_NAMESPACE
}  // namespace attnops::gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnops::gemm {

ATTNOPS_EXPORT(MultiplyOf);
ATTNOPS_EXPORT(MultiplyRowsOf);
ATTNOPS_EXPORT(MultiplyToTilesOf);
ATTNOPS_EXPORT(LoadMatrixOf);
ATTNOPS_EXPORT(StoreMatrixOf);
ATTNOPS_EXPORT(TransposeOf);
ATTNOPS_EXPORT(ChunkOf);

namespace {

// A matrix of its own, padded to whole chunks both ways.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns)
      : panel_(Panels::PanelSize(RoundUp(rows, ChunkElements()), ChunkElements())),
        data_(static_cast<float*>(::operator new (
            sizeof(float) *
                static_cast<std::size_t>(DivideUp(columns, ChunkElements()) * panel_ + 1),
            std::align_val_t{128}))) {}
  ~Matrix() { ::operator delete (data_, std::align_val_t{128}); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  Panels panels() const { return {data_, panel_}; }

 private:
  std::int64_t panel_;
  float* data_;
};

}  // namespace

struct PanelProduct::Memory {
  Matrix a, b, c;
};

PanelProduct::PanelProduct(std::int64_t rows, std::int64_t depth, std::int64_t columns,
                           bool transposed)
    : rows_(rows),
      depth_(depth),
      columns_(columns),
      transposed_(transposed),
      memory_(new Memory{{transposed ? depth : rows, transposed ? rows : depth},
                         {depth, columns},
                         {rows, columns}}) {}
PanelProduct::~PanelProduct() = default;

void PanelProduct::Fill(const float* a, const float* b) {
  const auto load = ATTNOPS_DISPATCH(LoadMatrixOf, ChosenTarget());
  load(a, transposed_ ? depth_ : rows_, transposed_ ? rows_ : depth_, memory_->a.panels());
  load(b, depth_, columns_, memory_->b.panels());
}

void PanelProduct::Run(bool add) {
  ATTNOPS_DISPATCH(MultiplyOf, ChosenTarget())
  (transposed_, memory_->a.panels(), memory_->b.panels(), rows_, depth_, columns_,
   memory_->c.panels(), add);
}

void PanelProduct::RunFromRows(const float* b, bool add) {
  ATTNOPS_DISPATCH(MultiplyRowsOf, ChosenTarget())
  (transposed_, memory_->a.panels(), b, memory_->b.panels(), rows_, depth_, columns_,
   memory_->c.panels(), add);
}

void PanelProduct::RunToTiles(int parts) {
  ATTNOPS_DISPATCH(MultiplyToTilesOf, ChosenTarget())
  (transposed_, memory_->a.panels(), memory_->b.panels(), rows_, depth_, columns_, parts,
   memory_->c.panels());
}

void PanelProduct::Read(float* c) const {
  ATTNOPS_DISPATCH(StoreMatrixOf, ChosenTarget())(memory_->c.panels(), rows_, columns_, c);
}

void TransposeMatrix(const float* a, float* result, std::int64_t rows, std::int64_t columns) {
  const Matrix from(rows, columns);
  const Matrix to(columns, rows);
  ATTNOPS_DISPATCH(LoadMatrixOf, ChosenTarget())(a, rows, columns, from.panels());
  ATTNOPS_DISPATCH(TransposeOf, ChosenTarget())(from.panels(), rows, columns, to.panels());
  ATTNOPS_DISPATCH(StoreMatrixOf, ChosenTarget())(to.panels(), columns, rows, result);
}

std::int64_t ChunkElements() { return ATTNOPS_DISPATCH(ChunkOf, ChosenTarget())(); }

}  // namespace attnops::gemm
#endif  // HWY_ONCE
