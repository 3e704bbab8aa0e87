/* tpa, tpa_decode and the cache from C: prefill, gradients, and the last token of it decoded in
   every way that there is. */
#include "check.h"
#include "operators.h"

enum { B = 1, N = 4, H = 2, R = 2, D = 4, A = B * N * H * R, F = B * N * R * D, O = B * N * H * D };

typedef struct {
  float aq[A], ak[A], av[A], bq[F], bk[F], bv[F], out[O], lse[B * H * N];
} Factors;

static attnops_tensor heads(float* data, int64_t tokens) {
  return attnops_tensor4(data, ATTNOPS_FLOAT32, B, tokens, H, R);
}
static attnops_tensor features(float* data, int64_t tokens) {
  return attnops_tensor4(data, ATTNOPS_FLOAT32, B, tokens, R, D);
}

/* The row of the last token of a result. */
static void check_last(const Factors* f, const float* out) {
  for (int i = 0; i < H * D; ++i) CHECK_NEAR(out[i], f->out[(N - 1) * H * D + i]);
}

static void prefill(Factors* f) {
  Factors d;
  float d_out[O];
  fill(d_out, O, 9);
  const attnops_tensor aq = heads(f->aq, N), ak = heads(f->ak, N), av = heads(f->av, N);
  const attnops_tensor bq = features(f->bq, N), bk = features(f->bk, N), bv = features(f->bv, N);
  const attnops_tensor out = attnops_tensor4(f->out, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor lse = attnops_tensor3(f->lse, ATTNOPS_FLOAT32, B, H, N);
  const attnops_tpa_query query = {.a = &aq, .b = &bq};
  const attnops_tpa_keys keys = {&ak, &av, &bk, &bv};
  CALL(attnops_tpa(&query, &keys, &out, &lse, NULL));
  /* The first token sees itself alone: its value, the mean over the ranks. */
  for (int e = 0; e < D; ++e) {
    CHECK_NEAR(f->out[e], (f->av[0] * f->bv[e] + f->av[1] * f->bv[D + e]) / 2);
  }

  const attnops_tensor daq = heads(d.aq, N), dak = heads(d.ak, N), dav = heads(d.av, N);
  const attnops_tensor dbq = features(d.bq, N), dbk = features(d.bk, N), dbv = features(d.bv, N);
  const attnops_tensor td_out = attnops_tensor4(d_out, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tpa_gradients gradients = {
      .aq = &daq, .bq = &dbq, .ak = &dak, .av = &dav, .bk = &dbk, .bv = &dbv};
  CALL(attnops_tpa_backward(&query, &keys, &out, &lse, &td_out, &gradients, NULL));
  /* Linear in both factors of v; scores are linear in each of the four others. */
  CHECK_NEAR(dot(d.av, f->av, A), dot(f->out, d_out, O));
  CHECK_NEAR(dot(d.bv, f->bv, F), dot(f->out, d_out, O));
  CHECK_NEAR(dot(d.aq, f->aq, A), dot(d.bk, f->bk, F));
  CHECK_NEAR(dot(d.bq, f->bq, F), dot(d.ak, f->ak, A));
}

static void decode(Factors* f) {
  float row[H * D], lse_row[H];
  const attnops_tensor aq = heads(f->aq + (N - 1) * H * R, 1);
  const attnops_tensor bq = features(f->bq + (N - 1) * R * D, 1);
  const attnops_tensor ak = heads(f->ak, N), av = heads(f->av, N);
  const attnops_tensor bk = features(f->bk, N), bv = features(f->bv, N);
  const attnops_tensor out = attnops_tensor4(row, ATTNOPS_FLOAT32, B, 1, H, D);
  const attnops_tensor lse = attnops_tensor3(lse_row, ATTNOPS_FLOAT32, B, H, 1);
  const attnops_tpa_query query = {.a = &aq, .b = &bq};
  const attnops_tpa_keys keys = {&ak, &av, &bk, &bv};
  CALL(attnops_tpa_decode(&query, &keys, &out, NULL, &lse, NULL, ATTNOPS_SPLIT_BN));
  check_last(f, row);
  for (int h = 0; h < H; ++h) CHECK_NEAR(lse_row[h], f->lse[h * N + N - 1]);

  /* Only the first token: the result is its value. */
  const int64_t lengths[B] = {1};
  const attnops_tpa_sequences sequences = {.lengths = lengths};
  CALL(attnops_tpa_decode(&query, &keys, &out, &sequences, NULL, NULL, ATTNOPS_SPLIT_AUTO));
  CHECK_NEAR(row[0], (f->av[0] * f->bv[0] + f->av[1] * f->bv[D]) / 2);

  /* Keys and values of rank 1, without an axis for it. */
  const attnops_tensor ak1 = attnops_tensor3(f->ak, ATTNOPS_FLOAT32, B, 1, H);
  const attnops_tensor av1 = attnops_tensor3(f->av, ATTNOPS_FLOAT32, B, 1, H);
  const attnops_tensor bk1 = attnops_tensor3(f->bk, ATTNOPS_FLOAT32, B, 1, D);
  const attnops_tensor bv1 = attnops_tensor3(f->bv, ATTNOPS_FLOAT32, B, 1, D);
  CALL(attnops_tpa_decode_rank1(&aq, &ak1, &av1, &bq, &bk1, &bv1, &out, NULL, ATTNOPS_SPLIT_B));
  CHECK_NEAR(row[D], f->av[1] * f->bv[0]);
}

static void cache(Factors* f) {
  enum { PAGES = 3, PAGE = 2 };
  const attnops_tpa_cache_shape shape = {ATTNOPS_CACHE_FLOAT32, PAGES, PAGE, H, R, R, D, D};
  float row[H * D];
  const attnops_tensor ak = heads(f->ak, N), av = heads(f->av, N);
  const attnops_tensor bk = features(f->bk, N), bv = features(f->bv, N);
  const attnops_tensor aq = heads(f->aq + (N - 1) * H * R, 1);
  const attnops_tensor bq = features(f->bq + (N - 1) * R * D, 1);
  const attnops_tensor out = attnops_tensor4(row, ATTNOPS_FLOAT32, B, 1, H, D);
  const attnops_tpa_query query = {.a = &aq, .b = &bq};
  const attnops_tpa_keys tokens = {&ak, &av, &bk, &bv};

  /* Pages of the program's own; the sequence has pages 2 and 0. */
  float pak[PAGES * PAGE * H * R], pav[PAGES * PAGE * H * R];
  float pbk[PAGES * PAGE * R * D], pbv[PAGES * PAGE * R * D];
  const attnops_tpa_pool pool = {.shape = shape, .ak = pak, .av = pav, .bk = pbk, .bv = pbv};
  const int64_t pages[2] = {2, 0}, empty[B] = {0}, full[B] = {N};
  attnops_tpa_sequences sequences = {empty, pages, 2, 2};
  CALL(attnops_tpa_append(&pool, &tokens, &sequences, NULL, NULL));
  sequences.lengths = full;
  CALL(attnops_tpa_decode_pool(&query, &pool, &out, &sequences, NULL, NULL, ATTNOPS_SPLIT_AUTO));
  check_last(f, row);

  /* A cache that looks after its pages. */
  attnops_tpa_cache* cache;
  int64_t sequence, fork, number;
  CALL(attnops_tpa_cache_create(&shape, &cache));
  CALL(attnops_tpa_cache_join(cache, &sequence));
  CALL(attnops_tpa_cache_append(cache, &sequence, 1, &tokens, NULL));
  CALL(attnops_tpa_cache_decode(cache, &sequence, 1, &query, &out, NULL, NULL));
  check_last(f, row);
  CALL(attnops_tpa_cache_fork(cache, sequence, &fork));
  CALL(attnops_tpa_cache_length(cache, fork, &number));
  CHECK(number == N);
  CHECK(attnops_tpa_cache_append(cache, &fork, 1, &tokens, NULL) == ATTNOPS_INVALID_ARGUMENT);
  CALL(attnops_tpa_cache_leave(cache, sequence));
  CALL(attnops_tpa_cache_leave(cache, fork));
  CALL(attnops_tpa_cache_free_pages(cache, &number));
  CHECK(number == PAGES);
  attnops_tpa_cache_destroy(cache);
}

void tensor_product_attention(void) {
  Factors f;
  fill(f.aq, A, 1);
  fill(f.ak, A, 2);
  fill(f.av, A, 3);
  fill(f.bq, F, 4);
  fill(f.bk, F, 5);
  fill(f.bv, F, 6);
  prefill(&f);
  decode(&f);
  cache(&f);
}
