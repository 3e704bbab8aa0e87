// tpa, tpa_decode and the cache for C.
#include <memory>
#include <vector>

#include "attnops/tpa.h"
#include "attnops/tpa_cache.h"
#include "attnops/tpa_decode.h"
#include "src/c/convert.h"

struct attnops_tpa_cache {
  attnops::TpaCache cache;
};

namespace attnops::c {
namespace {

TpaQuery Convert(const Arguments& a, const attnops_tpa_query* given) {
  const attnops_tpa_query& query = a.Given("query", given);
  return {a.OptionalInput("aq", query.a), a.OptionalInput("bq", query.b),
          a.OptionalInput("q", query.full)};
}

TpaKeys Convert(const Arguments& a, const attnops_tpa_keys* given) {
  const attnops_tpa_keys& keys = a.Given("keys", given);
  return {a.Input("ak", keys.ak), a.Input("av", keys.av), a.Input("bk", keys.bk),
          a.Input("bv", keys.bv)};
}

TpaOptions Convert(const Arguments& a, const attnops_tpa_options* given) {
  const attnops_tpa_options& options = OrDefault(given);
  TpaOptions converted;
  converted.causal = options.bidirectional == 0;
  converted.scale = OptionalNumber(options.scale);
  converted.scale_q = OptionalNumber(options.scale_q);
  converted.scale_k = OptionalNumber(options.scale_k);
  converted.scale_v = OptionalNumber(options.scale_v);
  converted.precision = a.OptionalPrecision(options.precision);
  return converted;
}

TpaSequences Convert(const attnops_tpa_sequences* given) {
  const attnops_tpa_sequences& sequences = OrDefault(given);
  return {sequences.lengths, sequences.page_table, sequences.table_pages, sequences.table_stride};
}

TpaSplit Split(const Arguments& a, std::int32_t split) {
  return a.Choice("split", split, TpaSplit::kBN);
}

TpaCacheShape Convert(const Arguments& a, const attnops_tpa_cache_shape& shape) {
  return {a.Choice("type", shape.type, TpaCacheType::kInt8),
          shape.pages,
          shape.page_size,
          shape.heads,
          shape.k_rank,
          shape.v_rank,
          shape.d,
          shape.e};
}

TpaPool Convert(const Arguments& a, const attnops_tpa_pool* given) {
  const attnops_tpa_pool& pool = a.Given("pool", given);
  return {Convert(a, pool.shape), pool.ak,       pool.av,       pool.bk,      pool.bv,
          pool.ak_scale,          pool.av_scale, pool.bk_scale, pool.bv_scale};
}

// The numbers of some of a cache's sequences.
std::vector<std::int64_t> Numbers(const Arguments& a, const std::int64_t* sequences,
                                  std::int64_t count) {
  if (count < 0) throw Error("attnops_tpa_cache: num_sequences must not be negative");
  if (count == 0) return {};
  const std::int64_t* first = &a.Given("sequences", sequences);
  return {first, first + count};
}

}  // namespace
}  // namespace attnops::c

using namespace attnops::c;  // NOLINT(google-build-using-namespace)

attnops_status attnops_tpa(const attnops_tpa_query* query, const attnops_tpa_keys* keys,
                           const attnops_tensor* out, const attnops_tensor* lse,
                           const attnops_tpa_options* options) {
  return Guard([&] {
    const Arguments a("attnops_tpa");
    attnops::Tpa(Convert(a, query), Convert(a, keys), a.Output("out", out),
                 a.OptionalOutput("lse", lse), Convert(a, options));
  });
}

attnops_status attnops_tpa_backward(const attnops_tpa_query* query, const attnops_tpa_keys* keys,
                                    const attnops_tensor* out, const attnops_tensor* lse,
                                    const attnops_tensor* d_out,
                                    const attnops_tpa_gradients* gradients,
                                    const attnops_tpa_options* options) {
  return Guard([&] {
    const Arguments a("attnops_tpa_backward");
    const attnops_tpa_gradients& d = a.Given("gradients", gradients);
    attnops::TpaBackward(Convert(a, query), Convert(a, keys), a.Input("out", out),
                         a.Input("lse", lse), a.Input("d_out", d_out),
                         {a.OptionalOutput("daq", d.aq), a.OptionalOutput("dbq", d.bq),
                          a.OptionalOutput("dq", d.q), a.Output("dak", d.ak), a.Output("dav", d.av),
                          a.Output("dbk", d.bk), a.Output("dbv", d.bv)},
                         Convert(a, options));
  });
}

attnops_status attnops_tpa_decode(const attnops_tpa_query* query, const attnops_tpa_keys* keys,
                                  const attnops_tensor* out, const attnops_tpa_sequences* sequences,
                                  const attnops_tensor* lse, const attnops_tpa_options* options,
                                  int32_t split) {
  return Guard([&] {
    const Arguments a("attnops_tpa_decode");
    attnops::TpaDecode(Convert(a, query), Convert(a, keys), a.Output("out", out),
                       Convert(sequences), a.OptionalOutput("lse", lse), Convert(a, options),
                       Split(a, split));
  });
}

attnops_status attnops_tpa_decode_rank1(const attnops_tensor* aq, const attnops_tensor* ak,
                                        const attnops_tensor* av, const attnops_tensor* bq,
                                        const attnops_tensor* bk, const attnops_tensor* bv,
                                        const attnops_tensor* out,
                                        const attnops_tpa_options* options, int32_t split) {
  return Guard([&] {
    const Arguments a("attnops_tpa_decode_rank1");
    const attnops::TpaOptions given = Convert(a, options);
    attnops::TpaDecodeOptions converted;
    converted.scale = given.scale;
    converted.scale_q = given.scale_q;
    converted.scale_k = given.scale_k.value_or(1);
    converted.scale_v = given.scale_v.value_or(1);
    converted.split = Split(a, split);
    converted.precision = given.precision;
    attnops::TpaDecode(a.Input("aq", aq), a.Input("ak", ak), a.Input("av", av), a.Input("bq", bq),
                       a.Input("bk", bk), a.Input("bv", bv), a.Output("out", out), converted);
  });
}

attnops_status attnops_tpa_append(const attnops_tpa_pool* pool, const attnops_tpa_keys* tokens,
                                  const attnops_tpa_sequences* sequences, const int64_t* counts,
                                  const attnops_tensor* theta) {
  return Guard([&] {
    const Arguments a("attnops_tpa_append");
    attnops::TpaAppend(Convert(a, pool), Convert(a, tokens), Convert(sequences), counts,
                       a.OptionalInput("theta", theta));
  });
}

attnops_status attnops_tpa_decode_pool(const attnops_tpa_query* query, const attnops_tpa_pool* pool,
                                       const attnops_tensor* out,
                                       const attnops_tpa_sequences* sequences,
                                       const attnops_tensor* lse,
                                       const attnops_tpa_options* options, int32_t split) {
  return Guard([&] {
    const Arguments a("attnops_tpa_decode_pool");
    attnops::TpaDecode(Convert(a, query), Convert(a, pool), a.Output("out", out),
                       Convert(sequences), a.OptionalOutput("lse", lse), Convert(a, options),
                       Split(a, split));
  });
}

attnops_status attnops_tpa_cache_create(const attnops_tpa_cache_shape* shape,
                                        attnops_tpa_cache** cache) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_create");
    attnops_tpa_cache*& result = a.Given("cache", cache);
    result = nullptr;
    result = new attnops_tpa_cache{attnops::TpaCache(Convert(a, a.Given("shape", shape)))};
  });
}

void attnops_tpa_cache_destroy(attnops_tpa_cache* cache) { delete cache; }

attnops_status attnops_tpa_cache_join(attnops_tpa_cache* cache, int64_t* sequence) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_join");
    std::int64_t& result = a.Given("sequence", sequence);
    result = a.Given("cache", cache).cache.Join();
  });
}

attnops_status attnops_tpa_cache_fork(attnops_tpa_cache* cache, int64_t of, int64_t* sequence) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_fork");
    std::int64_t& result = a.Given("sequence", sequence);
    result = a.Given("cache", cache).cache.Fork(of);
  });
}

attnops_status attnops_tpa_cache_leave(attnops_tpa_cache* cache, int64_t sequence) {
  return Guard(
      [&] { Arguments("attnops_tpa_cache_leave").Given("cache", cache).cache.Leave(sequence); });
}

attnops_status attnops_tpa_cache_append(attnops_tpa_cache* cache, const int64_t* sequences,
                                        int64_t num_sequences, const attnops_tpa_keys* tokens,
                                        const attnops_tensor* theta) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_append");
    a.Given("cache", cache)
        .cache.Append(Numbers(a, sequences, num_sequences), Convert(a, tokens),
                      a.OptionalInput("theta", theta));
  });
}

attnops_status attnops_tpa_cache_decode(const attnops_tpa_cache* cache, const int64_t* sequences,
                                        int64_t num_sequences, const attnops_tpa_query* query,
                                        const attnops_tensor* out, const attnops_tensor* lse,
                                        const attnops_tpa_options* options) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_decode");
    a.Given("cache", cache)
        .cache.Decode(Numbers(a, sequences, num_sequences), Convert(a, query), a.Output("out", out),
                      a.OptionalOutput("lse", lse), Convert(a, options));
  });
}

attnops_status attnops_tpa_cache_length(const attnops_tpa_cache* cache, int64_t sequence,
                                        int64_t* length) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_length");
    a.Given("length", length) = a.Given("cache", cache).cache.Length(sequence);
  });
}

attnops_status attnops_tpa_cache_free_pages(const attnops_tpa_cache* cache, int64_t* pages) {
  return Guard([&] {
    const Arguments a("attnops_tpa_cache_free_pages");
    a.Given("pages", pages) = a.Given("cache", cache).cache.FreePages();
  });
}
