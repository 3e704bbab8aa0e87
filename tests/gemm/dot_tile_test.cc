// The tile of bfloat16 products: the steps that it promises, in vector code on every target and by
// the instructions where the CPU has them.
#include "src/gemm/dot_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "src/core/numeric.h"
#include "src/gemm/kernels.h"
#include "tests/gemm/panel_product.h"
#include "tests/support/precisions.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FloatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
float Flushed(float value) {
  return std::abs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

// (sum + second·second) + first·first, each to nearest, denormals as 0.
float Step(float sum, std::uint32_t a, std::uint32_t b) {
  const auto half = [](std::uint32_t pair, bool second) {
    return Flushed(FloatOf(second ? pair & 0xffff0000u : pair << 16));
  };
  sum = Flushed(std::fma(half(a, true), half(b, true), sum));
  return Flushed(std::fma(half(a, false), half(b, false), sum));
}

// Pairs of bfloat16: normal numbers and, if `odd_ones`, all that is unusual. No product of two
// overflows: without a fused multiply-add it would be infinite before the sum is added.
std::vector<std::uint32_t> Pairs(std::int64_t n, std::uint32_t seed, bool odd_ones) {
  const float unusual[] = {0.0f,     -0.0f,   0x1p-127f, -0x1p-130f, 0x1p-126f, -0x1p-63f,
                           0x1p-70f, 0x1p60f, -0x1p63f,  INFINITY,   NAN};
  const std::vector<double> values = RandomNormal(2 * n, seed);
  std::vector<std::uint32_t> pairs(n);
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t halves[2];
    for (int h = 0; h < 2; ++h) {
      const std::int64_t at = 2 * i + h;
      const bool takes = odd_ones && (at * 7 + seed) % 5 == 0;
      const float value =
          takes ? unusual[(at + seed) % std::size(unusual)] : static_cast<float>(values[at]);
      halves[h] = BitsOf(value) >> 16;
    }
    pairs[i] = halves[0] | halves[1] << 16;
  }
  return pairs;
}

// A tile with the left operand in rows or in columns.
void CheckTile(DotTile dot, std::int64_t chunk, int rows, int vectors, std::int64_t depth,
               bool in_rows, bool odd_ones) {
  const std::int64_t columns = vectors * chunk / 2, chunks = DivideUp(vectors, 2);
  // Room for what is prefetched is not needed, only for what is read.
  const std::int64_t left_row = in_rows ? depth + 3 : 1;
  const std::int64_t left_step = in_rows ? 1 : 32;
  const auto left = Pairs(rows * (depth + 3) + 32 * depth, 1, odd_ones);
  const std::int64_t panel = (depth + 1) * chunk;
  const auto right = Pairs(chunks * panel, 2, odd_ones);
  // Aligned as panels are.
  std::vector<float> memory(chunks * panel + 16), results(rows * columns + 16);
  const auto aligned = [](std::vector<float>& floats) {
    const auto address = reinterpret_cast<std::uintptr_t>(floats.data());
    return floats.data() + (64 - address % 64) % 64 / sizeof(float);
  };
  float* b = aligned(memory);
  std::memcpy(b, right.data(), right.size() * sizeof(float));
  float* sums = aligned(results);
  Prefetcher prefetcher;
  dot({.left = left.data(),
       .left_row = left_row * 4,
       .left_step = left_step * 4,
       .right = b,
       .right_panel = panel,
       .depth = depth,
       .rows = rows,
       .vectors = vectors,
       .sums = sums,
       .sums_row = columns,
       .sums_chunk = chunk,
       .prefetcher = &prefetcher});
  for (int i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      float expected = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        expected = Step(expected, left[i * left_row + k * left_step],
                        right[j / chunk * panel + k * chunk + j % chunk]);
      }
      const float actual = sums[i * columns + j];
      if (std::isnan(expected) && std::isnan(actual)) continue;
      ASSERT_EQ(BitsOf(actual), BitsOf(expected))
          << actual << " for " << expected << " at " << i << "," << j << " of " << rows << "x"
          << vectors << ", depth " << depth << ", in rows " << in_rows;
    }
  }
}

// All tile sizes.
void Check(DotTile dot, std::int64_t chunk, bool odd_ones) {
  for (const std::int64_t depth : {0, 1, 2, 15, 16, 17, 40}) {
    for (const int vectors : {1, 2, 4}) {
      const int most = vectors == 1 ? DotTileArguments::kMaxNarrowRows : DotTileArguments::kMaxRows;
      for (int rows = 1; rows <= most; ++rows) {
        for (const bool in_rows : {true, false}) {
          CheckTile(dot, chunk, rows, vectors, depth, in_rows, odd_ones);
        }
      }
    }
  }
}

TEST(DotTile, VectorCode) {
  OnEveryTarget([] {
    const DotTile dot = gemm::KernelsOf<BFloat16>(ChosenTarget()).dot_tile;
    if (dot == nullptr) return;
    Check(dot, gemm::ChunkElements(), false);
    Check(dot, gemm::ChunkElements(), true);
  });
}

TEST(DotTile, Instructions) {
  if (DotTileAvx512() == nullptr) GTEST_SKIP() << "the CPU has no AVX512_BF16";
  Check(DotTileAvx512(), 32, false);
  Check(DotTileAvx512(), 32, true);
}

// A target that is narrower than the instructions does not get them.
TEST(DotTile, OfATarget) {
  OnEveryTarget([] {
    const gemm::Kernels kernels = gemm::KernelsOf<BFloat16>(ChosenTarget());
    const DotTile instructions = kernels.takes_avx512 ? DotTileAvx512() : nullptr;
    EXPECT_EQ(FindDotTile(ChosenTarget()), instructions);
    const DotTileEmulation emulation;
    EXPECT_EQ(FindDotTile(ChosenTarget()),
              instructions != nullptr ? instructions : kernels.dot_tile);
  });
}

}  // namespace
}  // namespace attnops::testing
