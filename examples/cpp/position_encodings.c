/* The position encodings from C, each pass checked against the equations. */
#include "check.h"
#include "operators.h"

enum { B = 2, N = 5, H = 2, D = 8, E = D / 2, X = B * N * H * D };

/* A rotation keeps lengths, its backward undoes it, and the encoding of position 0 is nothing. */
static void lrpe_rotate(void) {
  float x[X], out[X], back[X], d_out[X], theta[E] = {1, 0.3f, 0.1f, 0.03f}, d_theta[E];
  fill(x, X, 1);
  fill(d_out, X, 2);
  const attnops_tensor tx = attnops_tensor4(x, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor tout = attnops_tensor4(out, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor tback = attnops_tensor4(back, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor td_out = attnops_tensor4(d_out, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor ttheta = attnops_tensor2(theta, ATTNOPS_FLOAT32, 1, E);
  const attnops_tensor td_theta = attnops_tensor2(d_theta, ATTNOPS_FLOAT32, 1, E);

  CALL(attnops_lrpe_rotate(&tx, &ttheta, &tout, NULL));
  for (int i = 0; i < H * D; ++i) CHECK_NEAR(out[i], x[i]);
  CHECK_NEAR(dot(out, out, X), dot(x, x, X));
  CALL(attnops_lrpe_rotate_backward(&tx, &ttheta, &tout, &tback, NULL));
  for (int i = 0; i < X; ++i) CHECK_NEAR(back[i], x[i]);

  const attnops_lrpe_rotate_options options = {.offset = 7, .act = {.kind = ATTNOPS_SILU}};
  CALL(attnops_lrpe_rotate(&tx, &ttheta, &tout, &options));
  const double y0 = x[0] / (1 + exp(-x[0])), y4 = x[E] / (1 + exp(-x[E]));
  CHECK_NEAR(out[0], y0 * cos(7) - y4 * sin(7));
  CALL(attnops_lrpe_rotate_theta_gradient(&tx, &ttheta, &td_out, &td_theta, &options));
  const float step = 1e-3f;
  theta[1] += step;
  CALL(attnops_lrpe_rotate(&tx, &ttheta, &tout, &options));
  const double above = dot(out, d_out, X);
  theta[1] -= 2 * step;
  CALL(attnops_lrpe_rotate(&tx, &ttheta, &tout, &options));
  CHECK_SLOPE(d_theta[1], (above - dot(out, d_out, X)) / (2 * step));
}

/* Queries and keys with a position for each token; the keys have fewer heads. */
static void rope(void) {
  enum { K = B * N * D };
  float q[X], k[K], q_out[X], k_out[K], q2[X], k2[K], theta[E] = {1, 0.3f, 0.1f, 0.03f};
  float d_theta[E], cos_sin[16 * D];
  int64_t positions[N] = {0, 3, 4, 9, 2};
  const int64_t tokens[1] = {N};
  fill(q, X, 3);
  fill(k, K, 4);
  const attnops_tensor tq = attnops_tensor4(q, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor tk = attnops_tensor4(k, ATTNOPS_FLOAT32, B, N, 1, D);
  const attnops_tensor tq_out = attnops_tensor4(q_out, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor tk_out = attnops_tensor4(k_out, ATTNOPS_FLOAT32, B, N, 1, D);
  const attnops_tensor tq2 = attnops_tensor4(q2, ATTNOPS_FLOAT32, B, N, H, D);
  const attnops_tensor tk2 = attnops_tensor4(k2, ATTNOPS_FLOAT32, B, N, 1, D);
  const attnops_tensor ttheta = attnops_tensor2(theta, ATTNOPS_FLOAT32, 1, E);
  const attnops_tensor td_theta = attnops_tensor2(d_theta, ATTNOPS_FLOAT32, 1, E);
  const attnops_integers at = attnops_integers_of(positions, 64, 1, tokens);
  const attnops_rope_options options = {.rotary = {.positions = &at}};

  CALL(attnops_rope(&tq, &tk, &ttheta, &tq_out, &tk_out, &options));
  const float* row = k + D;
  CHECK_NEAR(k_out[D], row[0] * cos(3) - row[E] * sin(3));
  CALL(attnops_rope_backward(&tq_out, &tk_out, &ttheta, &tq2, &tk2, &options));
  for (int i = 0; i < X; ++i) CHECK_NEAR(q2[i], q[i]);
  for (int i = 0; i < K; ++i) CHECK_NEAR(k2[i], k[i]);
  /* Rotating with the result's own direction changes nothing. */
  CALL(attnops_rope_theta_gradient(&tq, &tk, &ttheta, &tq_out, &tk_out, &td_theta, &options));
  for (int j = 0; j < E; ++j) CHECK_NEAR(d_theta[j], 0);

  /* The same with a table of cosines and sines. */
  for (int p = 0; p < 16; ++p) {
    for (int j = 0; j < E; ++j) {
      cos_sin[p * D + j] = cosf((float)p * theta[j]);
      cos_sin[p * D + E + j] = sinf((float)p * theta[j]);
    }
  }
  const attnops_tensor table = attnops_tensor2(cos_sin, ATTNOPS_FLOAT32, 16, D);
  CALL(attnops_rope_with_cos_sin(&tq, &tk, &table, &tq2, &tk2, &options));
  for (int i = 0; i < X; ++i) CHECK_NEAR(q2[i], q_out[i]);
  CALL(attnops_rope_backward_with_cos_sin(&tq_out, &tk_out, &table, &tq2, &tk2, &options));
  for (int i = 0; i < K; ++i) CHECK_NEAR(k2[i], k[i]);
}

/* A grid of 2 x 3 behind one token without position. */
static void md_lrpe_cosine(void) {
  enum { L = 1 + 2 * 3, IN = B * H * L * D, OUT = 2 * IN, TABLE = (2 + 3) * E * 2 };
  float x[IN], out[OUT], d_out[OUT], dx[IN], theta[E] = {1, 0.3f, 0.1f, 0.03f}, d_theta[E];
  float cos_sin[TABLE];
  fill(x, IN, 5);
  fill(d_out, OUT, 6);
  const attnops_tensor tx = attnops_tensor4(x, ATTNOPS_FLOAT32, B, H, L, D);
  const attnops_tensor tout = attnops_tensor4(out, ATTNOPS_FLOAT32, B, H, L, 2 * D);
  const attnops_tensor td_out = attnops_tensor4(d_out, ATTNOPS_FLOAT32, B, H, L, 2 * D);
  const attnops_tensor tdx = attnops_tensor4(dx, ATTNOPS_FLOAT32, B, H, L, D);
  const attnops_tensor ttheta = attnops_tensor2(theta, ATTNOPS_FLOAT32, 1, E);
  const attnops_tensor td_theta = attnops_tensor2(d_theta, ATTNOPS_FLOAT32, 1, E);
  const attnops_tensor table = attnops_tensor4(cos_sin, ATTNOPS_FLOAT32, 1, 2 + 3, E, 2);
  const attnops_md_lrpe_cosine_options options = {.shape = {2, {2, 3}}, .l = 1};

  CALL(attnops_md_lrpe_cosine(&tx, &ttheta, &tout, &options));
  for (int j = 0; j < D; ++j) CHECK(out[j] == x[j] && out[D + j] == 0);
  /* Token 1 + 5 is (1, 2): feature 0 has the first axis, feature E the second. */
  CHECK_NEAR(out[6 * 2 * D], x[6 * D] * cos(1));
  CHECK_NEAR(out[6 * 2 * D + D + E], x[6 * D + E] * sin(2));
  const double loss = dot(out, d_out, OUT);
  CALL(attnops_md_lrpe_cosine_backward(&tx, &ttheta, &td_out, &tdx, &options));
  CHECK_NEAR(dot(dx, x, IN), loss); /* the encoding is linear */
  CALL(attnops_md_lrpe_cosine_theta_gradient(&tx, &ttheta, &td_out, &td_theta, &options));

  CALL(attnops_lrpe_table(&ttheta, &options.shape, D, &table, 0));
  CHECK_NEAR(cos_sin[E * 2], cos(1));
  CALL(attnops_md_lrpe_cosine_with_table(&tx, &table, &tout, &options));
  CHECK_NEAR(dot(out, d_out, OUT), loss);
  CALL(attnops_md_lrpe_cosine_backward_with_table(&tx, &table, &td_out, &tdx, &options));
  CHECK_NEAR(dot(dx, x, IN), loss);

  const float step = 1e-3f;
  theta[2] += step;
  CALL(attnops_md_lrpe_cosine(&tx, &ttheta, &tout, &options));
  const double above = dot(out, d_out, OUT);
  theta[2] -= 2 * step;
  CALL(attnops_md_lrpe_cosine(&tx, &ttheta, &tout, &options));
  CHECK_SLOPE(d_theta[2], (above - dot(out, d_out, OUT)) / (2 * step));
}

void position_encodings(void) {
  lrpe_rotate();
  rope();
  md_lrpe_cosine();
}
