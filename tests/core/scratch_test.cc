// Scratch memory: aligned, disjoint, of the calling thread, and not kept beyond its bound.
#include "src/core/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>

namespace attnops {
namespace {

TEST(Scratch, PiecesAreAlignedAndDisjoint) {
  Scratch scratch(Scratch::Size<float>(3) + Scratch::Size<std::uint64_t>(100) +
                  Scratch::Size<char>(1));
  auto* first = scratch.Take<float>(3);
  auto* second = scratch.Take<std::uint64_t>(100);
  auto* third = scratch.Take<char>(1);
  for (const void* p :
       {static_cast<void*>(first), static_cast<void*>(second), static_cast<void*>(third)}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % Scratch::kAlignment, 0u);
  }
  EXPECT_GE(reinterpret_cast<char*>(second), reinterpret_cast<char*>(first + 3));
  EXPECT_GE(third, reinterpret_cast<char*>(second + 100));
  std::memset(second, 0xff, 100 * sizeof(*second));
}

TEST(Scratch, IsReusedByTheThread) {
  const auto take = [] {
    Scratch scratch(Scratch::Size<char>(1000));
    return scratch.Take<char>(1000);
  };
  EXPECT_EQ(take(), take());
}

TEST(Scratch, ThreadsHaveTheirOwn) {
  Scratch scratch(Scratch::Size<char>(1000));
  char* mine = scratch.Take<char>(1000);
  char* other = nullptr;
  std::thread([&other] {
    Scratch theirs(Scratch::Size<char>(1000));
    other = theirs.Take<char>(1000);
  }).join();
  EXPECT_NE(mine, other);
}

// As in a thread pool whose waiting threads run other calls.
TEST(Scratch, NestedOnesHaveTheirOwn) {
  constexpr std::int64_t kSize = 1000;
  Scratch outer(Scratch::Size<char>(kSize));
  char* mine = outer.Take<char>(kSize);
  std::memset(mine, 1, kSize);
  for (const std::int64_t size : {kSize, 2 * kSize, std::int64_t{1} << 20}) {
    Scratch inner(Scratch::Size<char>(size));
    std::memset(inner.Take<char>(size), 2, static_cast<std::size_t>(size));
  }
  for (std::int64_t i = 0; i < kSize; ++i) ASSERT_EQ(mine[i], 1) << i;
}

TEST(Scratch, LargeOnesWork) {
  const auto bytes = static_cast<std::int64_t>(2 * Scratch::kKeptBytes);
  Scratch scratch(Scratch::Size<char>(bytes));
  char* p = scratch.Take<char>(bytes);
  p[0] = 1;
  p[bytes - 1] = 2;
  EXPECT_EQ(p[0] + p[bytes - 1], 3);
}

}  // namespace
}  // namespace attnops
