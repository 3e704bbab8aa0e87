// lrpe_rotate, rope, md_lrpe_cosine and lrpe_table for C.
#include "attnops/lrpe_rotate.h"
#include "attnops/md_lrpe_cosine.h"
#include "attnops/rope.h"
#include "src/c/convert.h"

namespace attnops::c {
namespace {

LrpeRotateOptions Convert(const Arguments& a, const attnops_lrpe_rotate_options* given) {
  const attnops_lrpe_rotate_options& options = OrDefault(given);
  return {options.offset, a.Act("act", options.act), a.Rotary(options.rotary)};
}

RopeOptions Convert(const Arguments& a, const attnops_rope_options* given) {
  const attnops_rope_options& options = OrDefault(given);
  return {options.offset, a.Rotary(options.rotary)};
}

MdLrpeCosineOptions Convert(const Arguments& a, const attnops_md_lrpe_cosine_options* given) {
  const attnops_md_lrpe_cosine_options& options = a.Given("options", given);
  return {a.Sizes("shape", options.shape), options.l, options.offset, a.Act("act", options.act)};
}

}  // namespace
}  // namespace attnops::c

using namespace attnops::c;  // NOLINT(google-build-using-namespace)

attnops_status attnops_lrpe_rotate(const attnops_tensor* x, const attnops_tensor* theta,
                                   const attnops_tensor* out,
                                   const attnops_lrpe_rotate_options* options) {
  return Guard([&] {
    const Arguments a("attnops_lrpe_rotate");
    attnops::LrpeRotate(a.Input("x", x), a.Input("theta", theta), a.Output("out", out),
                        Convert(a, options));
  });
}

attnops_status attnops_lrpe_rotate_backward(const attnops_tensor* x, const attnops_tensor* theta,
                                            const attnops_tensor* d_out, const attnops_tensor* dx,
                                            const attnops_lrpe_rotate_options* options) {
  return Guard([&] {
    const Arguments a("attnops_lrpe_rotate_backward");
    attnops::LrpeRotateBackward(a.Input("x", x), a.Input("theta", theta), a.Input("d_out", d_out),
                                a.Output("dx", dx), Convert(a, options));
  });
}

attnops_status attnops_lrpe_rotate_theta_gradient(const attnops_tensor* x,
                                                  const attnops_tensor* theta,
                                                  const attnops_tensor* d_out,
                                                  const attnops_tensor* d_theta,
                                                  const attnops_lrpe_rotate_options* options) {
  return Guard([&] {
    const Arguments a("attnops_lrpe_rotate_theta_gradient");
    attnops::LrpeRotateThetaGradient(a.Input("x", x), a.Input("theta", theta),
                                     a.Input("d_out", d_out), a.Output("d_theta", d_theta),
                                     Convert(a, options));
  });
}

attnops_status attnops_rope(const attnops_tensor* q, const attnops_tensor* k,
                            const attnops_tensor* theta, const attnops_tensor* q_out,
                            const attnops_tensor* k_out, const attnops_rope_options* options) {
  return Guard([&] {
    const Arguments a("attnops_rope");
    attnops::Rope(a.Input("q", q), a.Input("k", k), a.Input("theta", theta),
                  a.Output("q_out", q_out), a.Output("k_out", k_out), Convert(a, options));
  });
}

attnops_status attnops_rope_backward(const attnops_tensor* dq_out, const attnops_tensor* dk_out,
                                     const attnops_tensor* theta, const attnops_tensor* dq,
                                     const attnops_tensor* dk,
                                     const attnops_rope_options* options) {
  return Guard([&] {
    const Arguments a("attnops_rope_backward");
    attnops::RopeBackward(a.Input("dq_out", dq_out), a.Input("dk_out", dk_out),
                          a.Input("theta", theta), a.Output("dq", dq), a.Output("dk", dk),
                          Convert(a, options));
  });
}

attnops_status attnops_rope_theta_gradient(const attnops_tensor* q, const attnops_tensor* k,
                                           const attnops_tensor* theta,
                                           const attnops_tensor* dq_out,
                                           const attnops_tensor* dk_out,
                                           const attnops_tensor* d_theta,
                                           const attnops_rope_options* options) {
  return Guard([&] {
    const Arguments a("attnops_rope_theta_gradient");
    attnops::RopeThetaGradient(a.Input("q", q), a.Input("k", k), a.Input("theta", theta),
                               a.Input("dq_out", dq_out), a.Input("dk_out", dk_out),
                               a.Output("d_theta", d_theta), Convert(a, options));
  });
}

attnops_status attnops_rope_with_cos_sin(const attnops_tensor* q, const attnops_tensor* k,
                                         const attnops_tensor* cos_sin, const attnops_tensor* q_out,
                                         const attnops_tensor* k_out,
                                         const attnops_rope_options* options) {
  return Guard([&] {
    const Arguments a("attnops_rope_with_cos_sin");
    attnops::RopeWithCosSin(a.Input("q", q), a.Input("k", k), a.Input("cos_sin", cos_sin),
                            a.Output("q_out", q_out), a.Output("k_out", k_out),
                            Convert(a, options));
  });
}

attnops_status attnops_rope_backward_with_cos_sin(
    const attnops_tensor* dq_out, const attnops_tensor* dk_out, const attnops_tensor* cos_sin,
    const attnops_tensor* dq, const attnops_tensor* dk, const attnops_rope_options* options) {
  return Guard([&] {
    const Arguments a("attnops_rope_backward_with_cos_sin");
    attnops::RopeBackwardWithCosSin(a.Input("dq_out", dq_out), a.Input("dk_out", dk_out),
                                    a.Input("cos_sin", cos_sin), a.Output("dq", dq),
                                    a.Output("dk", dk), Convert(a, options));
  });
}

attnops_status attnops_md_lrpe_cosine(const attnops_tensor* x, const attnops_tensor* theta,
                                      const attnops_tensor* out,
                                      const attnops_md_lrpe_cosine_options* options) {
  return Guard([&] {
    const Arguments a("attnops_md_lrpe_cosine");
    attnops::MdLrpeCosine(a.Input("x", x), a.Input("theta", theta), a.Output("out", out),
                          Convert(a, options));
  });
}

attnops_status attnops_md_lrpe_cosine_backward(const attnops_tensor* x, const attnops_tensor* theta,
                                               const attnops_tensor* d_out,
                                               const attnops_tensor* dx,
                                               const attnops_md_lrpe_cosine_options* options) {
  return Guard([&] {
    const Arguments a("attnops_md_lrpe_cosine_backward");
    attnops::MdLrpeCosineBackward(a.Input("x", x), a.Input("theta", theta), a.Input("d_out", d_out),
                                  a.Output("dx", dx), Convert(a, options));
  });
}

attnops_status attnops_md_lrpe_cosine_theta_gradient(
    const attnops_tensor* x, const attnops_tensor* theta, const attnops_tensor* d_out,
    const attnops_tensor* d_theta, const attnops_md_lrpe_cosine_options* options) {
  return Guard([&] {
    const Arguments a("attnops_md_lrpe_cosine_theta_gradient");
    attnops::MdLrpeCosineThetaGradient(a.Input("x", x), a.Input("theta", theta),
                                       a.Input("d_out", d_out), a.Output("d_theta", d_theta),
                                       Convert(a, options));
  });
}

attnops_status attnops_lrpe_table(const attnops_tensor* theta, const attnops_dims* shape, int64_t d,
                                  const attnops_tensor* table, int64_t offset) {
  return Guard([&] {
    const Arguments a("attnops_lrpe_table");
    attnops::LrpeTable(a.Input("theta", theta), a.Sizes("shape", a.Given("shape", shape)), d,
                       a.Output("table", table), offset);
  });
}

attnops_status attnops_md_lrpe_cosine_with_table(const attnops_tensor* x,
                                                 const attnops_tensor* table,
                                                 const attnops_tensor* out,
                                                 const attnops_md_lrpe_cosine_options* options) {
  return Guard([&] {
    const Arguments a("attnops_md_lrpe_cosine_with_table");
    attnops::MdLrpeCosineWithTable(a.Input("x", x), a.Input("table", table), a.Output("out", out),
                                   Convert(a, options));
  });
}

attnops_status attnops_md_lrpe_cosine_backward_with_table(
    const attnops_tensor* x, const attnops_tensor* table, const attnops_tensor* d_out,
    const attnops_tensor* dx, const attnops_md_lrpe_cosine_options* options) {
  return Guard([&] {
    const Arguments a("attnops_md_lrpe_cosine_backward_with_table");
    attnops::MdLrpeCosineBackwardWithTable(a.Input("x", x), a.Input("table", table),
                                           a.Input("d_out", d_out), a.Output("dx", dx),
                                           Convert(a, options));
  });
}
