/* Every function of attnops/c.h, in C, on small tensors whose results are known. */
#include "operators.h"

#include <string.h>

#include "check.h"

/* A parallel-for with no threads, which counts its calls. */
static void in_order(void* data, int64_t n, attnops_body body, void* body_data) {
  ++*(int*)data;
  for (int64_t i = 0; i < n; ++i) body(body_data, i, i + 1);
}

static void runtime(void) {
  const char* names;
  int32_t precision;
  CHECK(strncmp(attnops_version(), "0.2.", 4) == 0);
  CALL(attnops_supported_targets(&names));
  CHECK(strstr(names, "AVX2") || strstr(names, "SSE4") || strstr(names, "NEON") ||
        strstr(names, "SCALAR") || strstr(names, "EMU128"));
  CALL(attnops_compiled_targets(&names));
  CALL(attnops_get_target(&names));
  CHECK(attnops_set_target("Z80") == ATTNOPS_INVALID_ARGUMENT);
  CHECK(strstr(attnops_last_error(), "Z80") != NULL);
  CALL(attnops_set_target(NULL));

  CALL(attnops_set_precision(ATTNOPS_PRECISION_HIGHEST));
  CALL(attnops_get_precision(&precision));
  CHECK(precision == ATTNOPS_PRECISION_HIGHEST);
  CALL(attnops_set_precision(ATTNOPS_PRECISION_DEFAULT));
  CALL(attnops_effective_precision(ATTNOPS_FLOAT32, ATTNOPS_PRECISION_MEDIUM, &precision));
  CHECK(precision == ATTNOPS_PRECISION_HIGHEST); /* float32 tensors always are */

  CALL(attnops_set_num_threads(2));
  CHECK(attnops_get_num_threads() == 2);
  CALL(attnops_set_num_threads(0));

  double speed;
  CALL(attnops_measure_copy_bandwidth(0.001, &speed));
  CHECK(speed > 0);
  CALL(attnops_measure_fma_peak(0.001, &speed));
  CHECK(speed > 0);
  CALL(attnops_measure_bf16_peak(0.001, &speed));
  CHECK(speed >= 0);
}

int main(void) {
  runtime();
  position_encodings();
  linear_attentions();
  tensor_product_attention();

  /* Enough work for several threads, on those of the program. */
  static float big[2048 * 8 * 64];
  float angles[1] = {0.5f};
  fill(big, 64, 1);
  const double before = dot(big, big, 64);
  const attnops_tensor tbig = attnops_tensor4(big, ATTNOPS_FLOAT32, 1, 2048, 8, 64);
  const attnops_tensor tangles = attnops_tensor2(angles, ATTNOPS_FLOAT32, 1, 1);
  const attnops_lrpe_rotate_options from_3 = {.offset = 3};
  int calls = 0;
  CALL(attnops_set_parallel_for(in_order, &calls, 3));
  CALL(attnops_lrpe_rotate(&tbig, &tangles, &tbig, &from_3));
  CHECK_NEAR(dot(big, big, 64), before);
  CHECK(calls > 0);
  CALL(attnops_set_parallel_for(NULL, NULL, 0));

  /* Tensors of any number of axes, and an error that says what is wrong. */
  float x[8] = {0}, theta[3] = {0};
  const int64_t shape[3] = {1, 2, 4};
  const attnops_tensor tx = attnops_tensor_of(x, ATTNOPS_FLOAT32, 3, shape);
  const attnops_tensor ttheta = attnops_tensor2(theta, ATTNOPS_FLOAT32, 1, 3);
  CHECK(attnops_lrpe_rotate(&tx, &ttheta, &tx, NULL) == ATTNOPS_INVALID_ARGUMENT);
  printf("as it should: %s\n", attnops_last_error());
  CHECK(attnops_lrpe_rotate(NULL, &ttheta, &tx, NULL) == ATTNOPS_INVALID_ARGUMENT);
  printf("as it should: %s\n", attnops_last_error());
  return 0;
}
