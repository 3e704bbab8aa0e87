/* flao, flao_fal and linear_attention from C. Each is linear in q, in k and in v: the product of a
   gradient with its input is that of d_out with out. */
#include <string.h>

#include "check.h"
#include "operators.h"

enum { B = 1, H = 2, N = 6, D = 4, SIZE = B * H * N * D, STATE = B * H * D * D };

typedef struct {
  float q[SIZE], k[SIZE], v[SIZE], g[SIZE], out[SIZE];
  float d_out[SIZE], dq[SIZE], dk[SIZE], dv[SIZE], dg[SIZE];
  attnops_tensor tq, tk, tv, tg, tout, td_out, tdq, tdk, tdv, tdg;
} Tensors;

/* Tensors of the shape (B, first, second, D). */
static void make(Tensors* t, int64_t first, int64_t second) {
  fill(t->q, SIZE, 1);
  fill(t->k, SIZE, 2);
  fill(t->v, SIZE, 3);
  fill(t->g, SIZE, 4);
  fill(t->d_out, SIZE, 5);
  float* data[] = {t->q, t->k, t->v, t->g, t->out, t->d_out, t->dq, t->dk, t->dv, t->dg};
  attnops_tensor* tensors[] = {&t->tq,     &t->tk,  &t->tv,  &t->tg,  &t->tout,
                               &t->td_out, &t->tdq, &t->tdk, &t->tdv, &t->tdg};
  for (int i = 0; i < 10; ++i) {
    *tensors[i] = attnops_tensor4(data[i], ATTNOPS_FLOAT32, B, first, second, D);
  }
}

/* The gradients of q, k and v times their inputs. */
static void check_linear(const Tensors* t) {
  const double loss = dot(t->out, t->d_out, SIZE);
  CHECK_NEAR(dot(t->dq, t->q, SIZE), loss);
  CHECK_NEAR(dot(t->dk, t->k, SIZE), loss);
  CHECK_NEAR(dot(t->dv, t->v, SIZE), loss);
}

/* The results of an operator in halves and of the whole one. */
static void check_same(const Tensors* a, const Tensors* b) {
  for (int i = 0; i < SIZE; ++i) {
    CHECK_NEAR(a->out[i], b->out[i]);
    CHECK_NEAR(a->dq[i], b->dq[i]);
    CHECK_NEAR(a->dk[i], b->dk[i]);
    CHECK_NEAR(a->dv[i], b->dv[i]);
    CHECK_NEAR(a->dg[i], b->dg[i]);
  }
}

/* out[n] = g[n] * sum over m of (q[n] . k[m]) v[m], for all heads. */
static void flao(void) {
  Tensors t;
  make(&t, H, N);
  float kv[STATE], qkv[SIZE];
  const attnops_tensor tkv = attnops_tensor4(kv, ATTNOPS_FLOAT32, B, H, D, D);
  const attnops_tensor tqkv = attnops_tensor4(qkv, ATTNOPS_FLOAT32, B, H, N, D);
  const attnops_flao_options keep = {
      .kv = &tkv, .qkv = &tqkv, .precision = ATTNOPS_PRECISION_HIGHEST};

  CALL(attnops_flao(&t.tq, &t.tk, &t.tv, &t.tg, &t.tout, &keep));
  for (int h = 0; h < H; ++h) {
    for (int n = 0; n < N; ++n) {
      for (int e = 0; e < D; ++e) {
        double sum = 0;
        for (int m = 0; m < N; ++m) {
          sum += dot(t.q + (h * N + n) * D, t.k + (h * N + m) * D, D) * t.v[(h * N + m) * D + e];
        }
        CHECK_NEAR(t.out[(h * N + n) * D + e], t.g[(h * N + n) * D + e] * sum);
      }
    }
  }
  CALL(attnops_flao_backward(&t.tq, &t.tk, &t.tv, &t.tg, &t.td_out, &t.tdq, &t.tdk, &t.tdv, &t.tdg,
                             &keep));
  check_linear(&t);
  for (int i = 0; i < SIZE; ++i) CHECK_NEAR(t.dg[i], t.d_out[i] * qkv[i]);

  /* In halves. */
  Tensors half;
  make(&half, H, N);
  float d_kv[STATE];
  const attnops_tensor td_kv = attnops_tensor4(d_kv, ATTNOPS_FLOAT32, B, H, D, D);
  CALL(attnops_flao_kv(&half.tk, &half.tv, &tkv, ATTNOPS_PRECISION_HIGHEST));
  CALL(attnops_flao_out(&half.tq, &tkv, &half.tg, &half.tout, ATTNOPS_PRECISION_HIGHEST));
  CALL(attnops_flao_out_backward(&half.tq, &tkv, &half.tg, &half.td_out, &half.tdq, &td_kv,
                                 &half.tdg, ATTNOPS_PRECISION_HIGHEST));
  CALL(attnops_flao_kv_backward(&half.tk, &half.tv, &td_kv, &half.tdk, &half.tdv,
                                ATTNOPS_PRECISION_HIGHEST));
  check_same(&half, &t);
}

/* With a gate of 1/2 and no encoding it is flao; with an encoding it stays linear in v. */
static void flao_fal(void) {
  Tensors t, plain;
  make(&t, H, N);
  make(&plain, H, N);
  for (int i = 0; i < SIZE; ++i) t.g[i] = 0, plain.g[i] = 0.5f;
  attnops_flao_fal_options options = {.g_act = {.kind = ATTNOPS_SIGMOID}};
  CALL(attnops_flao(&plain.tq, &plain.tk, &plain.tv, &plain.tg, &plain.tout, NULL));
  CALL(attnops_flao_fal(&t.tq, &t.tk, &t.tv, &t.tg, &t.tout, &options, NULL));
  for (int i = 0; i < SIZE; ++i) CHECK_NEAR(t.out[i], plain.out[i]);

  float theta[D] = {1, 0.5f, 0.2f, 0.1f}, d_theta[D];
  const attnops_tensor ttheta = attnops_tensor2(theta, ATTNOPS_FLOAT32, 1, D);
  const attnops_tensor td_theta = attnops_tensor2(d_theta, ATTNOPS_FLOAT32, 1, D);
  options.lrpe = ATTNOPS_LRPE_COSINE;
  options.theta = &ttheta;
  options.offset = 2;
  CALL(attnops_flao_fal(&t.tq, &t.tk, &t.tv, &t.tg, &t.tout, &options, NULL));
  CALL(attnops_flao_fal_backward(&t.tq, &t.tk, &t.tv, &t.tg, &t.td_out, &t.tdq, &t.tdk, &t.tdv,
                                 &t.tdg, &td_theta, &options, NULL));
  check_linear(&t);

  /* In halves; the encoding doubles the features. */
  Tensors half;
  make(&half, H, N);
  for (int i = 0; i < SIZE; ++i) half.g[i] = 0;
  float kv[2 * STATE], d_kv[2 * STATE], of_kv[D], of_out[D];
  const attnops_tensor tkv = attnops_tensor4(kv, ATTNOPS_FLOAT32, B, H, 2 * D, D);
  const attnops_tensor td_kv = attnops_tensor4(d_kv, ATTNOPS_FLOAT32, B, H, 2 * D, D);
  const attnops_tensor tof_kv = attnops_tensor2(of_kv, ATTNOPS_FLOAT32, 1, D);
  const attnops_tensor tof_out = attnops_tensor2(of_out, ATTNOPS_FLOAT32, 1, D);
  attnops_flao_fal_options of_keys = options;
  of_keys.offset = 0; /* keys are numbered from 0 */
  CALL(attnops_flao_fal_kv(&half.tk, &half.tv, &tkv, &of_keys, ATTNOPS_PRECISION_DEFAULT));
  CALL(attnops_flao_fal_out(&half.tq, &tkv, &half.tg, &half.tout, &options,
                            ATTNOPS_PRECISION_DEFAULT));
  CALL(attnops_flao_fal_out_backward(&half.tq, &tkv, &half.tg, &half.td_out, &half.tdq, &td_kv,
                                     &half.tdg, &tof_out, &options, ATTNOPS_PRECISION_DEFAULT));
  CALL(attnops_flao_fal_kv_backward(&half.tk, &half.tv, &td_kv, &half.tdk, &half.tdv, &tof_kv,
                                    &of_keys, ATTNOPS_PRECISION_DEFAULT));
  check_same(&half, &t);
  for (int j = 0; j < D; ++j) CHECK_NEAR(of_kv[j] + of_out[j], d_theta[j]);

  const float step = 1e-3f;
  theta[1] += step;
  CALL(attnops_flao_fal(&t.tq, &t.tk, &t.tv, &t.tg, &t.tout, &options, NULL));
  const double above = dot(t.out, t.d_out, SIZE);
  theta[1] -= 2 * step;
  CALL(attnops_flao_fal(&t.tq, &t.tk, &t.tv, &t.tg, &t.tout, &options, NULL));
  CHECK_SLOPE(d_theta[1], (above - dot(t.out, t.d_out, SIZE)) / (2 * step));
}

/* Causal, with a decay for each head, in one call and token by token from the state. */
static void linear_attention(void) {
  Tensors t;
  make(&t, N, H);
  float log_decay[H] = {-0.1f, -0.5f}, d_log_decay[H], state[STATE] = {0}, last[STATE];
  const double scale = 1;
  const attnops_tensor decay = attnops_tensor1(log_decay, ATTNOPS_FLOAT32, H);
  const attnops_tensor d_decay = attnops_tensor1(d_log_decay, ATTNOPS_FLOAT32, H);
  const attnops_tensor tstate = attnops_tensor4(state, ATTNOPS_FLOAT32, B, H, D, D);
  const attnops_tensor tlast = attnops_tensor4(last, ATTNOPS_FLOAT32, B, H, D, D);
  attnops_linear_attention_options options = {.log_decay = &decay,
                                              .scale = &scale,
                                              .state = &tlast,
                                              .precision = ATTNOPS_PRECISION_HIGHEST};

  CALL(attnops_linear_attention(&t.tq, &t.tk, &t.tv, &t.tout, &options));
  /* The first token sees itself alone. */
  for (int e = 0; e < D; ++e) CHECK_NEAR(t.out[e], dot(t.q, t.k, D) * t.v[e]);
  const attnops_linear_attention_gradients gradients = {.d_log_decay = &d_decay};
  CALL(attnops_linear_attention_backward(&t.tq, &t.tk, &t.tv, &t.td_out, &t.tdq, &t.tdk, &t.tdv,
                                         &options, &gradients));
  check_linear(&t);
  int64_t kept_states;
  CALL(attnops_linear_attention_kept_states(B, N, &kept_states));
  CHECK(kept_states == 0); /* of a few tokens */

  /* One step for each token, with the state in place. */
  float whole[SIZE];
  memcpy(whole, t.out, sizeof whole);
  options.initial_state = &tstate;
  options.state = &tstate;
  for (int n = 0; n < N; ++n) {
    const int64_t at = n * H * D;
    const attnops_tensor q = attnops_tensor4(t.q + at, ATTNOPS_FLOAT32, B, 1, H, D);
    const attnops_tensor k = attnops_tensor4(t.k + at, ATTNOPS_FLOAT32, B, 1, H, D);
    const attnops_tensor v = attnops_tensor4(t.v + at, ATTNOPS_FLOAT32, B, 1, H, D);
    const attnops_tensor out = attnops_tensor4(t.out + at, ATTNOPS_FLOAT32, B, 1, H, D);
    CALL(attnops_linear_attention(&q, &k, &v, &out, &options));
  }
  for (int i = 0; i < SIZE; ++i) CHECK_NEAR(t.out[i], whole[i]);
  for (int i = 0; i < STATE; ++i) CHECK_NEAR(state[i], last[i]);

  /* Packed sequences: the first token of the second one sees itself alone. */
  const int64_t cu_seqlens[3] = {0, 2, N};
  const attnops_linear_attention_options packed = {
      .scale = &scale, .cu_seqlens = cu_seqlens, .num_seqlens = 3};
  CALL(attnops_linear_attention(&t.tq, &t.tk, &t.tv, &t.tout, &packed));
  const int64_t at = 2 * H * D;
  for (int e = 0; e < D; ++e) CHECK_NEAR(t.out[at + e], dot(t.q + at, t.k + at, D) * t.v[at + e]);

  options.initial_state = NULL;
  options.state = NULL;
  const float step = 1e-3f;
  log_decay[1] += step;
  CALL(attnops_linear_attention(&t.tq, &t.tk, &t.tv, &t.tout, &options));
  const double above = dot(t.out, t.d_out, SIZE);
  log_decay[1] -= 2 * step;
  CALL(attnops_linear_attention(&t.tq, &t.tk, &t.tv, &t.tout, &options));
  CHECK_SLOPE(d_log_decay[1], (above - dot(t.out, t.d_out, SIZE)) / (2 * step));
}

void linear_attentions(void) {
  flao();
  flao_fal();
  linear_attention();
}
