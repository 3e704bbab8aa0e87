// Several threads call tpa, tpa_decode and the cache at once. Runs under tsan, so the parallel-for
// is made of std::threads.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attnops/parallel.h"
#include "attnops/tpa_cache.h"
#include "tests/ops/tpa_case.h"
#include "tests/ops/tpa_decode_case.h"
#include "tests/support/parallel_fors.h"

namespace attnops::testing {
namespace {

using Bits = std::vector<std::vector<std::uint32_t>>;

// Both passes, every split, and a step from a cache of `type` that is filled first.
Bits RunAll(const TpaRanksSpec& prefill, const TpaRanksSpec& decode, TpaCacheType type) {
  TpaRanksCase whole(prefill), step(decode);
  whole.Backward();
  Bits bits = {whole.out.Bits(),  whole.lse.Bits(),  whole.d_aq.Bits(), whole.d_bq.Bits(),
               whole.d_ak.Bits(), whole.d_av.Bits(), whole.d_bk.Bits(), whole.d_bv.Bits()};
  for (const TpaSplit split : kTpaSplits) {
    step.Decode(split);
    bits.push_back(step.out.Bits());
  }
  TpaCache cache({type, 2 * (decode.m / 16 + 1), 16, decode.heads, decode.k_rank, decode.v_rank,
                  decode.d, decode.e});
  const std::vector<std::int64_t> ids = {cache.Join(), cache.Join()};
  cache.Append(ids, step.Keys());
  step.out.Poison();
  cache.Decode(ids, step.Query(), step.out.view());
  bits.push_back(step.out.Bits());
  return bits;
}

TEST(TpaConcurrency, ResultsAreThoseOfSerialCalls) {
  const ParallelRestorer restorer;
  SetParallelFor(ThreadsFor(2), [] { return 2; });
  for (const TpaCacheType type : {TpaCacheType::kBFloat16, TpaCacheType::kInt8}) {
    const TpaRanksSpec prefill = {
        .dtype = DType::kBFloat16, .n = 140, .m = 150, .heads = 3, .d = 24, .e = 20};
    const TpaRanksSpec decode = {.dtype = DType::kBFloat16,
                                 .batch = 2,
                                 .m = 600,
                                 .heads = 19,
                                 .q_rank = 3,
                                 .d = 24,
                                 .e = 20};
    const Bits expected = RunAll(prefill, decode, type);
    std::vector<int> differences(4, 0);
    std::vector<std::thread> callers;
    for (int& count : differences) {
      callers.emplace_back([&] { count += RunAll(prefill, decode, type) != expected; });
    }
    for (std::thread& caller : callers) caller.join();
    for (const int count : differences) EXPECT_EQ(count, 0);
  }
}

}  // namespace
}  // namespace attnops::testing
