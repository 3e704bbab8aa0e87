#include "flao.h"

namespace attnops::torch_binding {
namespace {

void CheckKeep(const char* op, const std::string& keep) {
  if (keep == "none" || keep == "kv" || keep == "kv_qkv") return;
  throw Error(std::string(op) + ": keep must be one of none, kv, kv_qkv; it is \"" + keep + "\"");
}

// q, k, v and g as the operators read them.
struct Readables {
  Readables(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g)
      : q(Readable(op, "q", q)),
        k(Readable(op, "k", k)),
        v(Readable(op, "v", v)),
        g(Readable(op, "g", g)) {}

  Tensor q, k, v, g;
};

// Room for the results of a forward, of which kv has `rows` for each of q's features.
struct Results {
  Results(const Readables& x, const std::string& keep, std::int64_t rows)
      : out(NewTensor(x.g)),
        has_axes(x.q.dim() == 4 && x.v.dim() == 4),
        keeps_kv(keep != "none" && has_axes),
        keeps_qkv(keep == "kv_qkv" && has_axes),
        kv(NewTensor(
            x.q,
            keeps_kv ? Dims{x.q.size(0), x.q.size(1), rows * x.q.size(3), x.v.size(3)} : Dims{0},
            ResultType::kFloat32)),
        qkv(NewTensor(x.q, keeps_qkv ? Dims(x.g.sizes()) : Dims{0},
                      x.q.scalar_type() == torch::headeronly::ScalarType::Half
                          ? ResultType::kFloat32
                          : ResultType::kSame)) {}

  FlaoOptions kept() const {
    FlaoOptions options;
    if (keeps_kv) options.kv = ViewOf(kv);
    if (keeps_qkv) options.qkv = ViewOf(qkv);
    return options;
  }

  Tensor out;
  bool has_axes;  // else the call is an error
  bool keeps_kv, keeps_qkv;
  Tensor kv, qkv;
};

// What a forward kept, if it did.
struct Kept {
  Kept(const char* op, const std::optional<Tensor>& given_kv,
       const std::optional<Tensor>& given_qkv) {
    if (given_kv) kv = Readable(op, "kv", *given_kv);
    if (given_qkv) qkv = Readable(op, "qkv", *given_qkv);
  }

  FlaoKept views() const {
    FlaoKept views;
    if (kv) views.kv = ViewOf(*kv);
    if (qkv) views.qkv = ViewOf(*qkv);
    return views;
  }

  std::optional<Tensor> kv, qkv;
};

constexpr char kFalOp[] = "flao_fal";

Lrpe LrpeOf(const std::string& lrpe) {
  if (lrpe == "none") return Lrpe::kNone;
  if (lrpe == "cosine") return Lrpe::kCosine;
  if (lrpe == "rotate") return Lrpe::kRotate;
  throw Error(std::string(kFalOp) + ": lrpe must be one of none, cosine, rotate; it is \"" + lrpe +
              "\"");
}

Activation ActOf(char tensor, const std::string& act, std::optional<std::int64_t> dim) {
  const std::string act_name = std::string(1, tensor) + "_act";
  const std::string dim_name = std::string(1, tensor) + "_dim";
  return ActivationOf(kFalOp, act_name.c_str(), act, dim_name.c_str(), dim);
}

// The rest of the options; theta becomes readable and is what they point to.
void SetPositions(FlaoFalOptions& options, std::optional<Tensor>& theta,
                  const std::vector<std::int64_t>& shape, std::int64_t offset, std::int64_t l) {
  if (theta) {
    theta = Readable(kFalOp, "theta", *theta);
    options.theta = ViewOf(*theta);
  }
  if (!shape.empty()) options.shape = DimsOf(kFalOp, "shape", shape);
  options.offset = offset;
  options.l = l;
}

}  // namespace

KeptTensors Flao(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                 std::string keep) {
  constexpr char kOp[] = "flao";
  CheckKeep(kOp, keep);
  const Readables x(kOp, q, k, v, g);
  const Results results(x, keep, 1);
  attnops::Flao(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(results.out),
                results.kept());
  return {results.out, results.kv, results.qkv};
}

Gradients FlaoBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                       const Tensor& d_out, std::optional<Tensor> kv, std::optional<Tensor> qkv) {
  constexpr char kOp[] = "flao";
  const Readables x(kOp, q, k, v, g);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const Kept kept(kOp, kv, qkv);
  const Tensor dq = NewTensor(q), dk = NewTensor(k), dv = NewTensor(v), dg = NewTensor(g);
  attnops::FlaoBackward(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(d_out_read),
                        ViewOf(dq), ViewOf(dk), ViewOf(dv), ViewOf(dg), kept.views());
  return {dq, dk, dv, dg};
}

KeptTensors FlaoFal(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                    std::optional<Tensor> theta, std::string q_act,
                    std::optional<std::int64_t> q_dim, std::string k_act,
                    std::optional<std::int64_t> k_dim, std::string v_act,
                    std::optional<std::int64_t> v_dim, std::string g_act,
                    std::optional<std::int64_t> g_dim, std::string lrpe,
                    std::vector<std::int64_t> shape, std::int64_t offset, std::int64_t l,
                    std::string keep) {
  FlaoFalOptions options{ActOf('q', q_act, q_dim), ActOf('k', k_act, k_dim),
                         ActOf('v', v_act, v_dim), ActOf('g', g_act, g_dim), LrpeOf(lrpe)};
  CheckKeep(kFalOp, keep);
  const Readables x(kFalOp, q, k, v, g);
  SetPositions(options, theta, shape, offset, l);
  const Results results(x, keep, options.lrpe == Lrpe::kCosine ? 2 : 1);
  attnops::FlaoFal(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(results.out), options,
                   results.kept());
  return {results.out, results.kv, results.qkv};
}

Gradients FlaoFalBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                          const Tensor& d_out, std::optional<Tensor> kv, std::optional<Tensor> qkv,
                          std::optional<Tensor> theta, std::string q_act,
                          std::optional<std::int64_t> q_dim, std::string k_act,
                          std::optional<std::int64_t> k_dim, std::string v_act,
                          std::optional<std::int64_t> v_dim, std::string g_act,
                          std::optional<std::int64_t> g_dim, std::string lrpe,
                          std::vector<std::int64_t> shape, std::int64_t offset, std::int64_t l) {
  FlaoFalOptions options{ActOf('q', q_act, q_dim), ActOf('k', k_act, k_dim),
                         ActOf('v', v_act, v_dim), ActOf('g', g_act, g_dim), LrpeOf(lrpe)};
  const Readables x(kFalOp, q, k, v, g);
  const Tensor d_out_read = Readable(kFalOp, "d_out", d_out);
  const Kept kept(kFalOp, kv, qkv);
  SetPositions(options, theta, shape, offset, l);
  const Tensor dq = NewTensor(q), dk = NewTensor(k), dv = NewTensor(v), dg = NewTensor(g);
  attnops::FlaoFalBackward(ViewOf(x.q), ViewOf(x.k), ViewOf(x.v), ViewOf(x.g), ViewOf(d_out_read),
                           ViewOf(dq), ViewOf(dk), ViewOf(dv), ViewOf(dg), options, kept.views());
  return {dq, dk, dv, dg};
}

}  // namespace attnops::torch_binding
