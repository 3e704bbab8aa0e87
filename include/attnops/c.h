/* attnops for C, and for all that can call C. What each function computes is said at the C++
   function of the same name, in the header that the section names.

   - A function returns ATTNOPS_OK, or says what is wrong; attnops_last_error() is the text. Of a
   bad argument nothing is written.
   - Tensors are views of the caller's memory. An optional one that is not given is NULL.
   - Options that are all zero, or NULL, are the defaults: `attnops_rope_options options = {0};`. So
     are optional numbers whose 0 has a meaning, which are pointers.
   - Every function may be called from several threads at once, unless it says otherwise. */
#ifndef ATTNOPS_C_H_
#define ATTNOPS_C_H_

#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

#define ATTNOPS_MAX_RANK 8

typedef enum {
  ATTNOPS_OK = 0,
  ATTNOPS_INVALID_ARGUMENT = 1,
  ATTNOPS_OUT_OF_MEMORY = 2,
  ATTNOPS_INTERNAL_ERROR = 3
} attnops_status;

/* The text of the last call on this thread that failed: the operator, the argument, what it must be
   and what it was. "" if none did. Valid until the next failure on this thread. */
const char* attnops_last_error(void);
/* Such as "0.2.0". */
const char* attnops_version(void);

/* ---- Tensors (attnops/view.h, attnops/types.h) ---- */

typedef enum { ATTNOPS_FLOAT32 = 0, ATTNOPS_FLOAT16 = 1, ATTNOPS_BFLOAT16 = 2 } attnops_dtype;

/* A strided view. Inputs are not written to. */
typedef struct {
  void* data;
  int32_t dtype; /* attnops_dtype */
  int32_t rank;  /* 0 to ATTNOPS_MAX_RANK */
  int64_t shape[ATTNOPS_MAX_RANK];
  int64_t strides[ATTNOPS_MAX_RANK]; /* in elements */
} attnops_tensor;

/* A contiguous tensor of up to 4 axes; attnops_tensor_of has any number of them. */
attnops_tensor attnops_tensor_of(const void* data, int32_t dtype, int32_t rank,
                                 const int64_t* shape);
attnops_tensor attnops_tensor1(const void* data, int32_t dtype, int64_t n0);
attnops_tensor attnops_tensor2(const void* data, int32_t dtype, int64_t n0, int64_t n1);
attnops_tensor attnops_tensor3(const void* data, int32_t dtype, int64_t n0, int64_t n1, int64_t n2);
attnops_tensor attnops_tensor4(const void* data, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
                               int64_t n3);

/* A strided view of integers of 32 or 64 bits. */
typedef struct {
  const void* data;
  int32_t bits; /* 32 or 64 */
  int32_t rank;
  int64_t shape[ATTNOPS_MAX_RANK];
  int64_t strides[ATTNOPS_MAX_RANK];
} attnops_integers;

attnops_integers attnops_integers_of(const void* data, int32_t bits, int32_t rank,
                                     const int64_t* shape);

/* A short list of sizes. */
typedef struct {
  int32_t rank;
  int64_t values[ATTNOPS_MAX_RANK];
} attnops_dims;

typedef enum {
  ATTNOPS_NONE = 0,
  ATTNOPS_RELU = 1,
  ATTNOPS_SIGMOID = 2,
  ATTNOPS_SILU = 3,
  ATTNOPS_SOFTMAX = 4
} attnops_activation_kind;

typedef struct {
  int32_t kind; /* attnops_activation_kind */
  int32_t dim;  /* of softmax, counted as in Python */
} attnops_activation;

/* ---- Precision, SIMD target, threads (attnops/precision.h, target.h, parallel.h, machine.h) ----
 */

typedef enum {
  ATTNOPS_PRECISION_DEFAULT = 0, /* the one that is set */
  ATTNOPS_PRECISION_AUTO = 1,
  ATTNOPS_PRECISION_HIGHEST = 2,
  ATTNOPS_PRECISION_HIGH = 3,
  ATTNOPS_PRECISION_MEDIUM = 4
} attnops_precision;

attnops_status attnops_set_precision(int32_t precision);
attnops_status attnops_get_precision(int32_t* precision);
attnops_status attnops_effective_precision(int32_t dtype, int32_t precision, int32_t* effective);

/* NULL or "" goes back to the default. */
attnops_status attnops_set_target(const char* name);
/* Names, separated by spaces where there are several; valid until the thread asks again. */
attnops_status attnops_get_target(const char** name);
attnops_status attnops_supported_targets(const char** names);
attnops_status attnops_compiled_targets(const char** names);

attnops_status attnops_set_num_threads(int32_t n);
int32_t attnops_get_num_threads(void);

/* Calls body(body_data, begin, end) on ranges that cover [0, n), and returns when all have. */
typedef void (*attnops_body)(void* body_data, int64_t begin, int64_t end);
typedef void (*attnops_parallel_for)(void* data, int64_t n, attnops_body body, void* body_data);
/* A parallel-for of the program's own, with `num_threads` bodies at the same time; NULL restores
   the default. Not to be called while an operator runs. */
attnops_status attnops_set_parallel_for(attnops_parallel_for parallel_for, void* data,
                                        int32_t num_threads);

attnops_status attnops_measure_copy_bandwidth(double seconds, double* bytes_per_second);
attnops_status attnops_measure_fma_peak(double seconds, double* flops);
attnops_status attnops_measure_bf16_peak(double seconds, double* flops);

/* ---- Position encodings (attnops/lrpe_rotate.h, rope.h, md_lrpe_cosine.h) ---- */

typedef enum { ATTNOPS_BNHD = 0, ATTNOPS_BHND = 1 } attnops_layout;

typedef struct {
  const attnops_integers* positions;
  const attnops_integers* offsets;
  int64_t rotary_dim;  /* 0: all features */
  int32_t interleaved; /* a truth value */
  int32_t sections_interleaved;
  attnops_dims sections;
  const float* scale; /* NULL: 1 */
  int32_t layout;     /* attnops_layout */
} attnops_rotary_options;

typedef struct {
  int64_t offset;
  attnops_activation act;
  attnops_rotary_options rotary;
} attnops_lrpe_rotate_options;

attnops_status attnops_lrpe_rotate(const attnops_tensor* x, const attnops_tensor* theta,
                                   const attnops_tensor* out,
                                   const attnops_lrpe_rotate_options* options);
attnops_status attnops_lrpe_rotate_backward(const attnops_tensor* x, const attnops_tensor* theta,
                                            const attnops_tensor* d_out, const attnops_tensor* dx,
                                            const attnops_lrpe_rotate_options* options);
attnops_status attnops_lrpe_rotate_theta_gradient(const attnops_tensor* x,
                                                  const attnops_tensor* theta,
                                                  const attnops_tensor* d_out,
                                                  const attnops_tensor* d_theta,
                                                  const attnops_lrpe_rotate_options* options);

typedef struct {
  int64_t offset;
  attnops_rotary_options rotary;
} attnops_rope_options;

attnops_status attnops_rope(const attnops_tensor* q, const attnops_tensor* k,
                            const attnops_tensor* theta, const attnops_tensor* q_out,
                            const attnops_tensor* k_out, const attnops_rope_options* options);
attnops_status attnops_rope_backward(const attnops_tensor* dq_out, const attnops_tensor* dk_out,
                                     const attnops_tensor* theta, const attnops_tensor* dq,
                                     const attnops_tensor* dk, const attnops_rope_options* options);
attnops_status attnops_rope_theta_gradient(const attnops_tensor* q, const attnops_tensor* k,
                                           const attnops_tensor* theta,
                                           const attnops_tensor* dq_out,
                                           const attnops_tensor* dk_out,
                                           const attnops_tensor* d_theta,
                                           const attnops_rope_options* options);
attnops_status attnops_rope_with_cos_sin(const attnops_tensor* q, const attnops_tensor* k,
                                         const attnops_tensor* cos_sin, const attnops_tensor* q_out,
                                         const attnops_tensor* k_out,
                                         const attnops_rope_options* options);
attnops_status attnops_rope_backward_with_cos_sin(
    const attnops_tensor* dq_out, const attnops_tensor* dk_out, const attnops_tensor* cos_sin,
    const attnops_tensor* dq, const attnops_tensor* dk, const attnops_rope_options* options);

typedef struct {
  attnops_dims shape;
  int64_t l;
  int64_t offset;
  attnops_activation act;
} attnops_md_lrpe_cosine_options;

/* The shape must be given, and so must the options. */
attnops_status attnops_md_lrpe_cosine(const attnops_tensor* x, const attnops_tensor* theta,
                                      const attnops_tensor* out,
                                      const attnops_md_lrpe_cosine_options* options);
attnops_status attnops_md_lrpe_cosine_backward(const attnops_tensor* x, const attnops_tensor* theta,
                                               const attnops_tensor* d_out,
                                               const attnops_tensor* dx,
                                               const attnops_md_lrpe_cosine_options* options);
attnops_status attnops_md_lrpe_cosine_theta_gradient(const attnops_tensor* x,
                                                     const attnops_tensor* theta,
                                                     const attnops_tensor* d_out,
                                                     const attnops_tensor* d_theta,
                                                     const attnops_md_lrpe_cosine_options* options);
attnops_status attnops_lrpe_table(const attnops_tensor* theta, const attnops_dims* shape, int64_t d,
                                  const attnops_tensor* table, int64_t offset);
attnops_status attnops_md_lrpe_cosine_with_table(const attnops_tensor* x,
                                                 const attnops_tensor* table,
                                                 const attnops_tensor* out,
                                                 const attnops_md_lrpe_cosine_options* options);
attnops_status attnops_md_lrpe_cosine_backward_with_table(
    const attnops_tensor* x, const attnops_tensor* table, const attnops_tensor* d_out,
    const attnops_tensor* dx, const attnops_md_lrpe_cosine_options* options);

/* ---- Linear attention (attnops/flao.h, flao_fal.h, linear_attention.h) ---- */

/* What the forward keeps for the backward, and the backward is given. */
typedef struct {
  const attnops_tensor* kv;
  const attnops_tensor* qkv;
  int32_t precision; /* attnops_precision */
} attnops_flao_options;

attnops_status attnops_flao(const attnops_tensor* q, const attnops_tensor* k,
                            const attnops_tensor* v, const attnops_tensor* g,
                            const attnops_tensor* out, const attnops_flao_options* keep);
attnops_status attnops_flao_backward(const attnops_tensor* q, const attnops_tensor* k,
                                     const attnops_tensor* v, const attnops_tensor* g,
                                     const attnops_tensor* d_out, const attnops_tensor* dq,
                                     const attnops_tensor* dk, const attnops_tensor* dv,
                                     const attnops_tensor* dg, const attnops_flao_options* kept);
/* Its halves; precision is an attnops_precision. */
attnops_status attnops_flao_kv(const attnops_tensor* k, const attnops_tensor* v,
                               const attnops_tensor* kv, int32_t precision);
attnops_status attnops_flao_kv_backward(const attnops_tensor* k, const attnops_tensor* v,
                                        const attnops_tensor* d_kv, const attnops_tensor* dk,
                                        const attnops_tensor* dv, int32_t precision);
attnops_status attnops_flao_out(const attnops_tensor* q, const attnops_tensor* kv,
                                const attnops_tensor* g, const attnops_tensor* out,
                                int32_t precision);
attnops_status attnops_flao_out_backward(const attnops_tensor* q, const attnops_tensor* kv,
                                         const attnops_tensor* g, const attnops_tensor* d_out,
                                         const attnops_tensor* dq, const attnops_tensor* d_kv,
                                         const attnops_tensor* dg, int32_t precision);

typedef enum {
  ATTNOPS_LRPE_NONE = 0,
  ATTNOPS_LRPE_COSINE = 1,
  ATTNOPS_LRPE_ROTATE = 2
} attnops_lrpe;

typedef struct {
  attnops_activation q_act, k_act, v_act, g_act;
  int32_t lrpe; /* attnops_lrpe */
  const attnops_tensor* theta;
  attnops_dims shape;
  int64_t offset;
  int64_t l;
  int64_t start; /* of the halves */
} attnops_flao_fal_options;

attnops_status attnops_flao_fal(const attnops_tensor* q, const attnops_tensor* k,
                                const attnops_tensor* v, const attnops_tensor* g,
                                const attnops_tensor* out, const attnops_flao_fal_options* options,
                                const attnops_flao_options* keep);
/* d_theta may be NULL. */
attnops_status attnops_flao_fal_backward(const attnops_tensor* q, const attnops_tensor* k,
                                         const attnops_tensor* v, const attnops_tensor* g,
                                         const attnops_tensor* d_out, const attnops_tensor* dq,
                                         const attnops_tensor* dk, const attnops_tensor* dv,
                                         const attnops_tensor* dg, const attnops_tensor* d_theta,
                                         const attnops_flao_fal_options* options,
                                         const attnops_flao_options* kept);
/* Its halves. */
attnops_status attnops_flao_fal_kv(const attnops_tensor* k, const attnops_tensor* v,
                                   const attnops_tensor* kv,
                                   const attnops_flao_fal_options* options, int32_t precision);
attnops_status attnops_flao_fal_kv_backward(const attnops_tensor* k, const attnops_tensor* v,
                                            const attnops_tensor* d_kv, const attnops_tensor* dk,
                                            const attnops_tensor* dv, const attnops_tensor* d_theta,
                                            const attnops_flao_fal_options* options,
                                            int32_t precision);
attnops_status attnops_flao_fal_out(const attnops_tensor* q, const attnops_tensor* kv,
                                    const attnops_tensor* g, const attnops_tensor* out,
                                    const attnops_flao_fal_options* options, int32_t precision);
attnops_status attnops_flao_fal_out_backward(const attnops_tensor* q, const attnops_tensor* kv,
                                             const attnops_tensor* g, const attnops_tensor* d_out,
                                             const attnops_tensor* dq, const attnops_tensor* d_kv,
                                             const attnops_tensor* dg,
                                             const attnops_tensor* d_theta,
                                             const attnops_flao_fal_options* options,
                                             int32_t precision);

typedef struct {
  const attnops_tensor* log_decay;
  const attnops_tensor* log_decay_v;
  const double* scale; /* NULL: D^-1/2 */
  const attnops_tensor* initial_state;
  const attnops_tensor* state;
  const int64_t* cu_seqlens;         /* (num_seqlens) */
  int64_t num_seqlens;               /* sequences + 1; 0: each batch is a sequence */
  const attnops_tensor* kept_states; /* of the forward: what it keeps for the backward */
  int32_t precision;                 /* attnops_precision */
} attnops_linear_attention_options;

typedef struct {
  const attnops_tensor* d_state;
  const attnops_tensor* d_log_decay;
  const attnops_tensor* d_log_decay_v;
  const attnops_tensor* d_initial_state;
  const attnops_tensor* kept_states; /* what the forward kept */
} attnops_linear_attention_gradients;

/* How many states of each head the forward may keep. */
attnops_status attnops_linear_attention_kept_states(int64_t batches, int64_t tokens,
                                                    int64_t* states);

attnops_status attnops_linear_attention(const attnops_tensor* q, const attnops_tensor* k,
                                        const attnops_tensor* v, const attnops_tensor* out,
                                        const attnops_linear_attention_options* options);
attnops_status attnops_linear_attention_backward(
    const attnops_tensor* q, const attnops_tensor* k, const attnops_tensor* v,
    const attnops_tensor* d_out, const attnops_tensor* dq, const attnops_tensor* dk,
    const attnops_tensor* dv, const attnops_linear_attention_options* options,
    const attnops_linear_attention_gradients* gradients);

/* ---- Tensor product attention (attnops/tpa.h, tpa_decode.h, tpa_cache.h) ---- */

/* a and b, or full. */
typedef struct {
  const attnops_tensor *a, *b, *full;
} attnops_tpa_query;

typedef struct {
  const attnops_tensor *ak, *av, *bk, *bv;
} attnops_tpa_keys;

typedef struct {
  int32_t bidirectional;                             /* 0: causal */
  int32_t precision;                                 /* attnops_precision */
  const double *scale, *scale_q, *scale_k, *scale_v; /* NULL: the defaults of attnops/tpa.h */
} attnops_tpa_options;

/* lse may be NULL. */
attnops_status attnops_tpa(const attnops_tpa_query* query, const attnops_tpa_keys* keys,
                           const attnops_tensor* out, const attnops_tensor* lse,
                           const attnops_tpa_options* options);

/* aq and bq, or q, as the query has them. */
typedef struct {
  const attnops_tensor *aq, *bq, *q;
  const attnops_tensor *ak, *av, *bk, *bv;
} attnops_tpa_gradients;

attnops_status attnops_tpa_backward(const attnops_tpa_query* query, const attnops_tpa_keys* keys,
                                    const attnops_tensor* out, const attnops_tensor* lse,
                                    const attnops_tensor* d_out,
                                    const attnops_tpa_gradients* gradients,
                                    const attnops_tpa_options* options);

typedef enum {
  ATTNOPS_SPLIT_AUTO = 0,
  ATTNOPS_SPLIT_B = 1,
  ATTNOPS_SPLIT_BH = 2,
  ATTNOPS_SPLIT_BN = 3
} attnops_tpa_split;

typedef struct {
  const int64_t* lengths;    /* (B), or NULL */
  const int64_t* page_table; /* (B, table_pages), or NULL */
  int64_t table_pages;
  int64_t table_stride;
} attnops_tpa_sequences;

/* sequences, lse and options may be NULL. */
attnops_status attnops_tpa_decode(const attnops_tpa_query* query, const attnops_tpa_keys* keys,
                                  const attnops_tensor* out, const attnops_tpa_sequences* sequences,
                                  const attnops_tensor* lse, const attnops_tpa_options* options,
                                  int32_t split);
/* The form of attnops/tpa_decode.h, with keys and values of rank 1: ak and av (B,M,H), bk (B,M,D),
   bv (B,M,E). Here scale_k and scale_v are 1 unless given. */
attnops_status attnops_tpa_decode_rank1(const attnops_tensor* aq, const attnops_tensor* ak,
                                        const attnops_tensor* av, const attnops_tensor* bq,
                                        const attnops_tensor* bk, const attnops_tensor* bv,
                                        const attnops_tensor* out,
                                        const attnops_tpa_options* options, int32_t split);

typedef enum {
  ATTNOPS_CACHE_FLOAT32 = 0,
  ATTNOPS_CACHE_FLOAT16 = 1,
  ATTNOPS_CACHE_BFLOAT16 = 2,
  ATTNOPS_CACHE_INT8 = 3
} attnops_tpa_cache_type;

typedef struct {
  int32_t type; /* attnops_tpa_cache_type */
  int64_t pages, page_size;
  int64_t heads, k_rank, v_rank, d, e;
} attnops_tpa_cache_shape;

/* Pages in the caller's memory. */
typedef struct {
  attnops_tpa_cache_shape shape;
  void *ak, *av, *bk, *bv;
  float *ak_scale, *av_scale, *bk_scale, *bv_scale; /* of int8 */
} attnops_tpa_pool;

/* counts and theta may be NULL. */
attnops_status attnops_tpa_append(const attnops_tpa_pool* pool, const attnops_tpa_keys* tokens,
                                  const attnops_tpa_sequences* sequences, const int64_t* counts,
                                  const attnops_tensor* theta);
attnops_status attnops_tpa_decode_pool(const attnops_tpa_query* query, const attnops_tpa_pool* pool,
                                       const attnops_tensor* out,
                                       const attnops_tpa_sequences* sequences,
                                       const attnops_tensor* lse,
                                       const attnops_tpa_options* options, int32_t split);

/* A cache with memory of its own. Not for several threads at once. */
typedef struct attnops_tpa_cache attnops_tpa_cache;

attnops_status attnops_tpa_cache_create(const attnops_tpa_cache_shape* shape,
                                        attnops_tpa_cache** cache);
/* NULL is allowed. */
void attnops_tpa_cache_destroy(attnops_tpa_cache* cache);
attnops_status attnops_tpa_cache_join(attnops_tpa_cache* cache, int64_t* sequence);
attnops_status attnops_tpa_cache_fork(attnops_tpa_cache* cache, int64_t of, int64_t* sequence);
attnops_status attnops_tpa_cache_leave(attnops_tpa_cache* cache, int64_t sequence);
attnops_status attnops_tpa_cache_append(attnops_tpa_cache* cache, const int64_t* sequences,
                                        int64_t num_sequences, const attnops_tpa_keys* tokens,
                                        const attnops_tensor* theta);
attnops_status attnops_tpa_cache_decode(const attnops_tpa_cache* cache, const int64_t* sequences,
                                        int64_t num_sequences, const attnops_tpa_query* query,
                                        const attnops_tensor* out, const attnops_tensor* lse,
                                        const attnops_tpa_options* options);
attnops_status attnops_tpa_cache_length(const attnops_tpa_cache* cache, int64_t sequence,
                                        int64_t* length);
attnops_status attnops_tpa_cache_free_pages(const attnops_tpa_cache* cache, int64_t* pages);

#ifdef __cplusplus
} /* extern "C" */
#endif
#pragma GCC visibility pop

#endif /* ATTNOPS_C_H_ */
