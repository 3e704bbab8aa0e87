// The matrix product of the SIMD layer, on the chosen target, for its tests and benchmarks.
#ifndef ATTNOPS_TESTS_GEMM_PANEL_PRODUCT_H_
#define ATTNOPS_TESTS_GEMM_PANEL_PRODUCT_H_

#include <cstdint>
#include <memory>

#include "src/gemm/panels.h"

namespace attnops::gemm {

// a·b of row-major float32 matrices, or aᵀ·b.
class PanelProduct {
 public:
  // a is (rows, depth), or (depth, rows) if transposed; b (depth, columns).
  PanelProduct(std::int64_t rows, std::int64_t depth, std::int64_t columns, bool transposed);
  ~PanelProduct();
  PanelProduct(const PanelProduct&) = delete;
  PanelProduct& operator=(const PanelProduct&) = delete;

  void Fill(const float* a, const float* b);
  // The product alone; `add` adds it to the last result.
  void Run(bool add);
  // The same with the rows of b, which the product converts itself.
  void RunFromRows(const float* b, bool add);
  // The product in tiles of a chunk of each of `parts` parts of the columns, which are whole chunks
  // in two.
  void RunToTiles(int parts);
  // The result, (rows, columns).
  void Read(float* c) const;

 private:
  struct Memory;
  std::int64_t rows_, depth_, columns_;
  bool transposed_;
  std::unique_ptr<Memory> memory_;
};

// aᵀ for a of (rows, columns), both multiples of a chunk.
void TransposeMatrix(const float* a, float* result, std::int64_t rows, std::int64_t columns);
std::int64_t ChunkElements();

}  // namespace attnops::gemm

#endif  // ATTNOPS_TESTS_GEMM_PANEL_PRODUCT_H_
