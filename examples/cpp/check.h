/* What the sections of operators.c share: small tensors, sums and checks. */
#ifndef ATTNOPS_EXAMPLES_CPP_CHECK_H_
#define ATTNOPS_EXAMPLES_CPP_CHECK_H_

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "attnops/c.h"

/* Ends the program if a call fails, with its text. */
#define CALL(call)                                              \
  do {                                                          \
    if ((call) != ATTNOPS_OK) {                                 \
      fprintf(stderr, "%s: %s\n", #call, attnops_last_error()); \
      exit(1);                                                  \
    }                                                           \
  } while (0)

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* Sums of a few hundred float32 products. */
#define CHECK_NEAR(a, b) check_near(__LINE__, (a), (b), 2e-4)
/* A derivative, next to a difference quotient. */
#define CHECK_SLOPE(a, b) check_near(__LINE__, (a), (b), 2e-2)

static inline void check_near(int line, double a, double b, double tolerance) {
  if (!(fabs(a - b) <= tolerance * (1 + fabs(a) + fabs(b)))) {
    fprintf(stderr, "line %d: %.9g is not %.9g\n", line, a, b);
    exit(1);
  }
}

/* Numbers from -1 to 1 that look random; `seed` chooses them. */
static inline void fill(float* x, int64_t n, uint32_t seed) {
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static inline double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (double)a[i] * b[i];
  return sum;
}

#endif /* ATTNOPS_EXAMPLES_CPP_CHECK_H_ */
