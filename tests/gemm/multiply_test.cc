// The matrix product of the SIMD layer: all edge sizes, straight and transposed, on every target.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attnops/types.h"
#include "src/gemm/panels.h"
#include "tests/gemm/panel_product.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"
#include "tests/support/tolerances.h"

namespace attnops::testing {
namespace {

// A panel has whole tiles of rows and, to shift it in the caches, a row or a pair of rows more.
static_assert(Panels::PanelSize(1, 32) == 17 * 32);
static_assert(Panels::Size(17, 33, 32) == 2 * 33 * 32);
using PairPanels = BasicPanels<BFloat16, PanelLayout::kPairs>;
static_assert(PairPanels::PanelSize(16, 32) == 18 * 32);
static_assert(PairPanels::Size(16, 64, 32) == 2 * 18 * 32);

std::vector<float> Floats(std::int64_t n, std::uint32_t seed) {
  std::vector<float> values;
  for (const double value : RandomNormal(n, seed)) values.push_back(static_cast<float>(value));
  return values;
}

// Runs the product twice, the second time added to the first, then from rows of b that it converts
// itself, and in tiles, of two parts where there is an even number of chunks: the same bits.
void Check(std::int64_t rows, std::int64_t depth, std::int64_t columns, bool transposed) {
  SCOPED_TRACE(::testing::Message()
               << rows << "x" << depth << "x" << columns << " transposed " << transposed);
  const std::vector<float> a = Floats(rows * depth, 1);
  const std::vector<float> b = Floats(depth * columns, 2);
  gemm::PanelProduct product(rows, depth, columns, transposed);
  product.Fill(a.data(), b.data());
  product.Run(false);
  product.Run(true);
  std::vector<float> c(rows * columns, NAN);
  product.Read(c.data());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      double scale = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const double left = a[transposed ? k * rows + i : i * depth + k];
        sum += left * b[k * columns + j];
        scale += std::abs(left * b[k * columns + j]);
      }
      const double bound = 2 * SumError(depth) * scale + kTiny;
      ASSERT_NEAR(c[i * columns + j], 2 * sum, bound) << "at " << i << ", " << j;
    }
  }
  std::vector<float> from_rows(c.size(), NAN);
  product.RunFromRows(b.data(), false);
  product.RunFromRows(b.data(), true);
  product.Read(from_rows.data());
  ASSERT_EQ(from_rows, c);
  const std::int64_t chunks = (columns + gemm::ChunkElements() - 1) / gemm::ChunkElements();
  for (int parts = 1; parts <= (chunks % 2 == 0 ? 2 : 1); ++parts) {
    std::vector<float> tiles(c.size(), NAN);
    product.Fill(a.data(), b.data());
    product.RunToTiles(parts);
    product.Read(tiles.data());
    for (float& value : tiles) value *= 2;
    ASSERT_EQ(tiles, c) << parts << " parts";
  }
}

TEST(MatMul, EveryEdge) {
  OnEveryTarget([] {
    for (const bool transposed : {false, true}) {
      for (std::int64_t size = 1; size <= 67; ++size) {
        Check(size, 5, 6, transposed);
        Check(7, size, 3, transposed);
        Check(5, 4, size, transposed);
      }
    }
  });
}

TEST(MatMul, LargerSizes) {
  OnEveryTarget([] {
    for (const bool transposed : {false, true}) {
      Check(128, 128, 128, transposed);
      Check(65, 130, 97, transposed);
      Check(33, 300, 129, transposed);
    }
  });
}

TEST(MatMul, NothingToSum) {
  OnEveryTarget([] {
    for (const bool transposed : {false, true}) {
      Check(5, 0, 6, transposed);
      Check(0, 5, 6, transposed);
      Check(5, 6, 0, transposed);
    }
  });
}

// A NaN or infinity spoils its row or column and nothing else.
TEST(MatMul, NotFinite) {
  constexpr std::int64_t kRows = 9, kDepth = 5, kColumns = 11;
  OnEveryTarget([] {
    std::vector<float> a = Floats(kRows * kDepth, 1);
    std::vector<float> b = Floats(kDepth * kColumns, 2);
    a[3 * kDepth + 2] = NAN;
    b[1 * kColumns + 7] = std::numeric_limits<float>::infinity();
    gemm::PanelProduct product(kRows, kDepth, kColumns, false);
    product.Fill(a.data(), b.data());
    product.Run(false);
    std::vector<float> c(kRows * kColumns);
    product.Read(c.data());
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) {
        const float value = c[i * kColumns + j];
        if (i == 3) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(std::isinf(value), j == 7);
          EXPECT_FALSE(std::isnan(value));
        }
      }
    }
  });
}

TEST(MatMul, Transposition) {
  OnEveryTarget([] {
    const std::int64_t chunk = gemm::ChunkElements();
    const std::int64_t rows = 2 * chunk, columns = 3 * chunk;
    const std::vector<float> a = Floats(rows * columns, 3);
    std::vector<float> result(a.size());
    if (chunk % 4 != 0 && chunk != 2) FAIL() << "a chunk of " << chunk;
    gemm::TransposeMatrix(a.data(), result.data(), rows, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        ASSERT_EQ(result[j * rows + i], a[i * columns + j]);
      }
    }
  });
}

}  // namespace
}  // namespace attnops::testing
