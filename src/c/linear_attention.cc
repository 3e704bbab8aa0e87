// flao, flao_fal and linear_attention for C.
#include "attnops/linear_attention.h"

#include "attnops/flao.h"
#include "attnops/flao_fal.h"
#include "src/c/convert.h"

namespace attnops::c {
namespace {

FlaoOptions Keep(const Arguments& a, const attnops_flao_options* given) {
  const attnops_flao_options& keep = OrDefault(given);
  return {a.OptionalOutput("kv", keep.kv), a.OptionalOutput("qkv", keep.qkv),
          a.OptionalPrecision(keep.precision)};
}

FlaoKept Kept(const Arguments& a, const attnops_flao_options* given) {
  const attnops_flao_options& kept = OrDefault(given);
  return {a.OptionalInput("kv", kept.kv), a.OptionalInput("qkv", kept.qkv),
          a.OptionalPrecision(kept.precision)};
}

FlaoFalOptions Convert(const Arguments& a, const attnops_flao_fal_options* given) {
  const attnops_flao_fal_options& options = OrDefault(given);
  FlaoFalOptions converted;
  converted.q_act = a.Act("q_act", options.q_act);
  converted.k_act = a.Act("k_act", options.k_act);
  converted.v_act = a.Act("v_act", options.v_act);
  converted.g_act = a.Act("g_act", options.g_act);
  converted.lrpe = a.Choice("lrpe", options.lrpe, Lrpe::kRotate);
  converted.theta = a.OptionalInput("theta", options.theta);
  converted.shape = a.Sizes("shape", options.shape);
  converted.offset = options.offset;
  converted.l = options.l;
  converted.start = options.start;
  return converted;
}

LinearAttentionOptions Convert(const Arguments& a, const attnops_linear_attention_options* given) {
  const attnops_linear_attention_options& options = OrDefault(given);
  LinearAttentionOptions converted;
  converted.log_decay = a.OptionalInput("log_decay", options.log_decay);
  converted.log_decay_v = a.OptionalInput("log_decay_v", options.log_decay_v);
  converted.scale = OptionalNumber(options.scale);
  converted.initial_state = a.OptionalInput("initial_state", options.initial_state);
  converted.state = a.OptionalOutput("state", options.state);
  if (options.num_seqlens < 0) {
    throw Error("attnops_linear_attention: num_seqlens must not be negative; it is " +
                std::to_string(options.num_seqlens));
  }
  if (options.num_seqlens > 0) {
    const std::int64_t* first = &a.Given("cu_seqlens", options.cu_seqlens);
    converted.cu_seqlens.assign(first, first + options.num_seqlens);
  }
  converted.kept_states = a.OptionalOutput("kept_states", options.kept_states);
  converted.precision = a.OptionalPrecision(options.precision);
  return converted;
}

}  // namespace
}  // namespace attnops::c

using namespace attnops::c;  // NOLINT(google-build-using-namespace)

attnops_status attnops_flao(const attnops_tensor* q, const attnops_tensor* k,
                            const attnops_tensor* v, const attnops_tensor* g,
                            const attnops_tensor* out, const attnops_flao_options* keep) {
  return Guard([&] {
    const Arguments a("attnops_flao");
    attnops::Flao(a.Input("q", q), a.Input("k", k), a.Input("v", v), a.Input("g", g),
                  a.Output("out", out), Keep(a, keep));
  });
}

attnops_status attnops_flao_backward(const attnops_tensor* q, const attnops_tensor* k,
                                     const attnops_tensor* v, const attnops_tensor* g,
                                     const attnops_tensor* d_out, const attnops_tensor* dq,
                                     const attnops_tensor* dk, const attnops_tensor* dv,
                                     const attnops_tensor* dg, const attnops_flao_options* kept) {
  return Guard([&] {
    const Arguments a("attnops_flao_backward");
    attnops::FlaoBackward(a.Input("q", q), a.Input("k", k), a.Input("v", v), a.Input("g", g),
                          a.Input("d_out", d_out), a.Output("dq", dq), a.Output("dk", dk),
                          a.Output("dv", dv), a.Output("dg", dg), Kept(a, kept));
  });
}

attnops_status attnops_flao_kv(const attnops_tensor* k, const attnops_tensor* v,
                               const attnops_tensor* kv, int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_kv");
    attnops::FlaoKv(a.Input("k", k), a.Input("v", v), a.Output("kv", kv),
                    a.OptionalPrecision(precision));
  });
}

attnops_status attnops_flao_kv_backward(const attnops_tensor* k, const attnops_tensor* v,
                                        const attnops_tensor* d_kv, const attnops_tensor* dk,
                                        const attnops_tensor* dv, int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_kv_backward");
    attnops::FlaoKvBackward(a.Input("k", k), a.Input("v", v), a.Input("d_kv", d_kv),
                            a.Output("dk", dk), a.Output("dv", dv), a.OptionalPrecision(precision));
  });
}

attnops_status attnops_flao_out(const attnops_tensor* q, const attnops_tensor* kv,
                                const attnops_tensor* g, const attnops_tensor* out,
                                int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_out");
    attnops::FlaoOut(a.Input("q", q), a.Input("kv", kv), a.Input("g", g), a.Output("out", out),
                     a.OptionalPrecision(precision));
  });
}

attnops_status attnops_flao_out_backward(const attnops_tensor* q, const attnops_tensor* kv,
                                         const attnops_tensor* g, const attnops_tensor* d_out,
                                         const attnops_tensor* dq, const attnops_tensor* d_kv,
                                         const attnops_tensor* dg, int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_out_backward");
    attnops::FlaoOutBackward(a.Input("q", q), a.Input("kv", kv), a.Input("g", g),
                             a.Input("d_out", d_out), a.Output("dq", dq), a.Output("d_kv", d_kv),
                             a.Output("dg", dg), a.OptionalPrecision(precision));
  });
}

attnops_status attnops_flao_fal(const attnops_tensor* q, const attnops_tensor* k,
                                const attnops_tensor* v, const attnops_tensor* g,
                                const attnops_tensor* out, const attnops_flao_fal_options* options,
                                const attnops_flao_options* keep) {
  return Guard([&] {
    const Arguments a("attnops_flao_fal");
    attnops::FlaoFal(a.Input("q", q), a.Input("k", k), a.Input("v", v), a.Input("g", g),
                     a.Output("out", out), Convert(a, options), Keep(a, keep));
  });
}

attnops_status attnops_flao_fal_backward(const attnops_tensor* q, const attnops_tensor* k,
                                         const attnops_tensor* v, const attnops_tensor* g,
                                         const attnops_tensor* d_out, const attnops_tensor* dq,
                                         const attnops_tensor* dk, const attnops_tensor* dv,
                                         const attnops_tensor* dg, const attnops_tensor* d_theta,
                                         const attnops_flao_fal_options* options,
                                         const attnops_flao_options* kept) {
  return Guard([&] {
    const Arguments a("attnops_flao_fal_backward");
    attnops::FlaoFalBackward(a.Input("q", q), a.Input("k", k), a.Input("v", v), a.Input("g", g),
                             a.Input("d_out", d_out), a.Output("dq", dq), a.Output("dk", dk),
                             a.Output("dv", dv), a.Output("dg", dg), Convert(a, options),
                             Kept(a, kept), a.OptionalOutput("d_theta", d_theta));
  });
}

attnops_status attnops_flao_fal_kv(const attnops_tensor* k, const attnops_tensor* v,
                                   const attnops_tensor* kv,
                                   const attnops_flao_fal_options* options, int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_fal_kv");
    attnops::FlaoFalKv(a.Input("k", k), a.Input("v", v), a.Output("kv", kv), Convert(a, options),
                       a.OptionalPrecision(precision));
  });
}

attnops_status attnops_flao_fal_kv_backward(const attnops_tensor* k, const attnops_tensor* v,
                                            const attnops_tensor* d_kv, const attnops_tensor* dk,
                                            const attnops_tensor* dv, const attnops_tensor* d_theta,
                                            const attnops_flao_fal_options* options,
                                            int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_fal_kv_backward");
    attnops::FlaoFalKvBackward(a.Input("k", k), a.Input("v", v), a.Input("d_kv", d_kv),
                               a.Output("dk", dk), a.Output("dv", dv), Convert(a, options),
                               a.OptionalPrecision(precision),
                               a.OptionalOutput("d_theta", d_theta));
  });
}

attnops_status attnops_flao_fal_out(const attnops_tensor* q, const attnops_tensor* kv,
                                    const attnops_tensor* g, const attnops_tensor* out,
                                    const attnops_flao_fal_options* options, int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_fal_out");
    attnops::FlaoFalOut(a.Input("q", q), a.Input("kv", kv), a.Input("g", g), a.Output("out", out),
                        Convert(a, options), a.OptionalPrecision(precision));
  });
}

attnops_status attnops_flao_fal_out_backward(const attnops_tensor* q, const attnops_tensor* kv,
                                             const attnops_tensor* g, const attnops_tensor* d_out,
                                             const attnops_tensor* dq, const attnops_tensor* d_kv,
                                             const attnops_tensor* dg,
                                             const attnops_tensor* d_theta,
                                             const attnops_flao_fal_options* options,
                                             int32_t precision) {
  return Guard([&] {
    const Arguments a("attnops_flao_fal_out_backward");
    attnops::FlaoFalOutBackward(
        a.Input("q", q), a.Input("kv", kv), a.Input("g", g), a.Input("d_out", d_out),
        a.Output("dq", dq), a.Output("d_kv", d_kv), a.Output("dg", dg), Convert(a, options),
        a.OptionalPrecision(precision), a.OptionalOutput("d_theta", d_theta));
  });
}

attnops_status attnops_linear_attention_kept_states(int64_t batches, int64_t tokens,
                                                    int64_t* states) {
  return Guard([&] {
    const Arguments a("attnops_linear_attention_kept_states");
    a.Given("states", states) = attnops::LinearAttentionKeptStates(batches, tokens);
  });
}

attnops_status attnops_linear_attention(const attnops_tensor* q, const attnops_tensor* k,
                                        const attnops_tensor* v, const attnops_tensor* out,
                                        const attnops_linear_attention_options* options) {
  return Guard([&] {
    const Arguments a("attnops_linear_attention");
    attnops::LinearAttention(a.Input("q", q), a.Input("k", k), a.Input("v", v),
                             a.Output("out", out), Convert(a, options));
  });
}

attnops_status attnops_linear_attention_backward(
    const attnops_tensor* q, const attnops_tensor* k, const attnops_tensor* v,
    const attnops_tensor* d_out, const attnops_tensor* dq, const attnops_tensor* dk,
    const attnops_tensor* dv, const attnops_linear_attention_options* options,
    const attnops_linear_attention_gradients* gradients) {
  return Guard([&] {
    const Arguments a("attnops_linear_attention_backward");
    const attnops_linear_attention_gradients& given = OrDefault(gradients);
    attnops::LinearAttentionBackward(a.Input("q", q), a.Input("k", k), a.Input("v", v),
                                     a.Input("d_out", d_out), a.Output("dq", dq),
                                     a.Output("dk", dk), a.Output("dv", dv), Convert(a, options),
                                     {a.OptionalInput("d_state", given.d_state),
                                      a.OptionalOutput("d_log_decay", given.d_log_decay),
                                      a.OptionalOutput("d_log_decay_v", given.d_log_decay_v),
                                      a.OptionalOutput("d_initial_state", given.d_initial_state),
                                      a.OptionalInput("kept_states", given.kept_states)});
  });
}
