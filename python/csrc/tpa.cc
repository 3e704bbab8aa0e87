// tpa, both passes, and its decoding from tensors and from a cache, as torch.ops.attnops.*
#include <attnops/attnops.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "tensors.h"

namespace attnops::torch_binding {
namespace {

using MaybeTensor = std::optional<Tensor>;
using Scale = std::optional<double>;
using torch::headeronly::ScalarType;

[[noreturn]] void Fail(const char* op, const std::string& text) {
  throw Error(std::string(op) + ": " + text);
}

TpaOptions OptionsOf(const char* op, bool causal, Scale scale, Scale scale_q, Scale scale_k,
                     Scale scale_v, std::optional<std::int64_t> precision) {
  return {causal, scale, scale_q, scale_k, scale_v, PrecisionOf(op, precision)};
}

// The queries as the operators read them.
struct Queries {
  Queries(const char* op, const MaybeTensor& aq, const MaybeTensor& bq, const MaybeTensor& q) {
    if (aq) a = Readable(op, "aq", *aq);
    if (bq) b = Readable(op, "bq", *bq);
    if (q) full = Readable(op, "q", *q);
    if (!a && !full) Fail(op, "q must be given, or else aq and bq, and not all of them");
  }

  TpaQuery View() const {
    TpaQuery view;
    if (a) view.a = ViewOf(*a);
    if (b) view.b = ViewOf(*b);
    if (full) view.full = ViewOf(*full);
    return view;
  }
  const Tensor& First() const { return full ? *full : *a; }
  std::int64_t Batches() const { return First().dim() > 0 ? First().size(0) : 0; }
  // (B,N,H,E) and (B,H,N); empty where the queries have no such axes, which is an error.
  Dims OutShape(std::int64_t features) const {
    const Tensor& x = First();
    return x.dim() == 4 ? Dims{x.size(0), x.size(1), x.size(2), features} : Dims{0};
  }
  Dims LseShape() const {
    const Tensor& x = First();
    return x.dim() == 4 ? Dims{x.size(0), x.size(2), x.size(1)} : Dims{0};
  }

  MaybeTensor a, b, full;
};

struct Factors {
  Factors(const char* op, const Tensor& ak, const Tensor& av, const Tensor& bk, const Tensor& bv)
      : ak(Readable(op, "ak", ak)),
        av(Readable(op, "av", av)),
        bk(Readable(op, "bk", bk)),
        bv(Readable(op, "bv", bv)) {}

  TpaKeys View() const { return {ViewOf(ak), ViewOf(av), ViewOf(bk), ViewOf(bv)}; }
  std::int64_t Features() const { return bv.dim() == 4 ? bv.size(3) : 0; }

  Tensor ak, av, bk, bv;
};

// Integers of a batch: int64, contiguous, with `axes` axes.
const std::int64_t* IntegersOf(const char* op, const char* name, const Tensor& tensor, int axes,
                               std::int64_t batches) {
  if (tensor.scalar_type() != ScalarType::Long) Fail(op, std::string(name) + " must be int64");
  if (tensor.dim() != axes || tensor.size(0) != batches) {
    Fail(op, std::string(name) + " must have " + std::to_string(axes) + " axes and " +
                 std::to_string(batches) + " rows, one for each sequence");
  }
  if (!tensor.is_contiguous()) Fail(op, std::string(name) + " must be contiguous");
  return static_cast<const std::int64_t*>(tensor.data_ptr());
}

TpaSequences SequencesOf(const char* op, const MaybeTensor& lengths, const MaybeTensor& page_table,
                         std::int64_t batches) {
  TpaSequences sequences;
  if (lengths) sequences.lengths = IntegersOf(op, "lengths", *lengths, 1, batches);
  if (page_table) {
    sequences.page_table = IntegersOf(op, "page_table", *page_table, 2, batches);
    sequences.table_pages = sequences.table_stride = page_table->size(1);
  }
  return sequences;
}

std::tuple<Tensor, Tensor> Tpa(const MaybeTensor& aq, const Tensor& ak, const Tensor& av,
                               const MaybeTensor& bq, const Tensor& bk, const Tensor& bv,
                               const MaybeTensor& q, bool causal, Scale scale, Scale scale_q,
                               Scale scale_k, Scale scale_v,
                               std::optional<std::int64_t> precision) {
  constexpr char kOp[] = "tpa";
  const TpaOptions options = OptionsOf(kOp, causal, scale, scale_q, scale_k, scale_v, precision);
  const Queries queries(kOp, aq, bq, q);
  const Factors factors(kOp, ak, av, bk, bv);
  const Tensor out = NewTensor(kOp, "out", queries.First(), queries.OutShape(factors.Features()));
  const Tensor lse =
      NewTensor(kOp, "lse", queries.First(), queries.LseShape(), ResultType::kFloat32);
  attnops::Tpa(queries.View(), factors.View(), ViewOf(out), ViewOf(lse), options);
  return {out, lse};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Those of aq, ak, av, bq, bk, bv and q; empty ones of one axis for arguments that are not given.
Gradients TpaBackward(const MaybeTensor& aq, const Tensor& ak, const Tensor& av,
                      const MaybeTensor& bq, const Tensor& bk, const Tensor& bv,
                      const MaybeTensor& q, const Tensor& out, const Tensor& lse,
                      const Tensor& d_out, bool causal, Scale scale, Scale scale_q, Scale scale_k,
                      Scale scale_v, std::optional<std::int64_t> precision,
                      const MaybeTensor& lengths) {
  constexpr char kOp[] = "tpa";
  const TpaOptions options = OptionsOf(kOp, causal, scale, scale_q, scale_k, scale_v, precision);
  const Queries queries(kOp, aq, bq, q);
  const Factors factors(kOp, ak, av, bk, bv);
  const Tensor out_read = Readable(kOp, "out", out);
  const Tensor lse_read = Readable(kOp, "lse", lse);
  const Tensor d_out_read = Readable(kOp, "d_out", d_out);
  const auto gradient = [&](const char* name, const MaybeTensor& of) {
    return of ? NewTensor(kOp, name, *of) : NewTensor(kOp, name, factors.ak, Dims{0});
  };
  const Tensor d_aq = gradient("d_aq", queries.a), d_bq = gradient("d_bq", queries.b);
  const Tensor d_q = gradient("d_q", queries.full);
  const Tensor d_ak = gradient("d_ak", factors.ak), d_av = gradient("d_av", factors.av);
  const Tensor d_bk = gradient("d_bk", factors.bk), d_bv = gradient("d_bv", factors.bv);
  TpaGradients gradients{{}, {}, {}, ViewOf(d_ak), ViewOf(d_av), ViewOf(d_bk), ViewOf(d_bv)};
  if (queries.a) gradients.aq = ViewOf(d_aq);
  if (queries.b) gradients.bq = ViewOf(d_bq);
  if (queries.full) gradients.q = ViewOf(d_q);
  attnops::TpaBackward(queries.View(), factors.View(), ViewOf(out_read), ViewOf(lse_read),
                       ViewOf(d_out_read), gradients, options,
                       SequencesOf(kOp, lengths, {}, queries.Batches()).lengths);
  return {d_aq, d_ak, d_av, d_bq, d_bk, d_bv, d_q};
}

std::tuple<Tensor, Tensor> TpaDecodeRanks(const MaybeTensor& aq, const Tensor& ak, const Tensor& av,
                                          const MaybeTensor& bq, const Tensor& bk, const Tensor& bv,
                                          const MaybeTensor& q, Scale scale, Scale scale_q,
                                          Scale scale_k, Scale scale_v, std::int64_t split,
                                          const MaybeTensor& lengths, const MaybeTensor& page_table,
                                          std::optional<std::int64_t> precision) {
  constexpr char kOp[] = "tpa_decode";
  const TpaOptions options = OptionsOf(kOp, false, scale, scale_q, scale_k, scale_v, precision);
  const TpaSplit choice = ChoiceOf(kOp, "split", split, TpaSplit::kBN);
  const Queries queries(kOp, aq, bq, q);
  const Factors factors(kOp, ak, av, bk, bv);
  const TpaSequences sequences = SequencesOf(kOp, lengths, page_table, queries.Batches());
  const Tensor out = NewTensor(kOp, "out", queries.First(), queries.OutShape(factors.Features()));
  const Tensor lse =
      NewTensor(kOp, "lse", queries.First(), queries.LseShape(), ResultType::kFloat32);
  attnops::TpaDecode(queries.View(), factors.View(), ViewOf(out), sequences, ViewOf(lse), options,
                     choice);
  return {out, lse};
}

// The four factors of a cache and, for int8, their scales.
struct Pool {
  Pool(const char* op, const Tensor& ak, const Tensor& av, const Tensor& bk, const Tensor& bv,
       const MaybeTensor& ak_scale, const MaybeTensor& av_scale, const MaybeTensor& bk_scale,
       const MaybeTensor& bv_scale) {
    switch (ak.scalar_type()) {
      case ScalarType::Float:
        view.shape.type = TpaCacheType::kFloat32;
        break;
      case ScalarType::Half:
        view.shape.type = TpaCacheType::kFloat16;
        break;
      case ScalarType::BFloat16:
        view.shape.type = TpaCacheType::kBFloat16;
        break;
      case ScalarType::Char:
        view.shape.type = TpaCacheType::kInt8;
        break;
      default:
        Fail(op, "the cache must be float32, float16, bfloat16 or int8");
    }
    const bool quantized = view.shape.type == TpaCacheType::kInt8;
    if (ak.dim() != 4) Fail(op, "the cache's ak must have 4 axes (P,page_size,H,R)");
    view.shape.pages = ak.size(0);
    view.shape.page_size = ak.size(1);
    view.shape.heads = ak.size(2);
    view.shape.k_rank = ak.size(3);
    view.shape.v_rank = av.dim() == 4 ? av.size(3) : 0;
    view.shape.d = bk.dim() == 4 ? bk.size(3) : 0;
    view.shape.e = bv.dim() == 4 ? bv.size(3) : 0;
    const TpaCacheShape& s = view.shape;
    const auto take = [&](const char* name, const Tensor& tensor, const Dims& shape,
                          ScalarType type) {
      bool fits = tensor.dim() == shape.rank() && tensor.scalar_type() == type;
      for (int i = 0; fits && i < shape.rank(); ++i) fits = tensor.size(i) == shape[i];
      if (!fits) Fail(op, std::string("the cache's ") + name + " does not fit to its ak");
      if (!tensor.is_contiguous())
        Fail(op, std::string("the cache's ") + name + " must be contiguous");
      return tensor.data_ptr();
    };
    view.ak = take("ak", ak, {s.pages, s.page_size, s.heads, s.k_rank}, ak.scalar_type());
    view.av = take("av", av, {s.pages, s.page_size, s.heads, s.v_rank}, ak.scalar_type());
    view.bk = take("bk", bk, {s.pages, s.page_size, s.k_rank, s.d}, ak.scalar_type());
    view.bv = take("bv", bv, {s.pages, s.page_size, s.v_rank, s.e}, ak.scalar_type());
    if (!quantized) return;
    if (!ak_scale || !av_scale || !bk_scale || !bv_scale) Fail(op, "an int8 cache has scales");
    const auto scale = [&](const char* name, const Tensor& tensor, const Dims& shape) {
      return static_cast<float*>(take(name, tensor, shape, ScalarType::Float));
    };
    view.ak_scale = scale("ak_scale", *ak_scale, {s.pages, s.page_size});
    view.av_scale = scale("av_scale", *av_scale, {s.pages, s.page_size});
    view.bk_scale = scale("bk_scale", *bk_scale, {s.pages, s.page_size, s.k_rank});
    view.bv_scale = scale("bv_scale", *bv_scale, {s.pages, s.page_size, s.v_rank});
  }

  TpaPool view;
};

void TpaCacheAppend(const Tensor& ak, const Tensor& av, const Tensor& bk, const Tensor& bv,
                    const Tensor& pool_ak, const Tensor& pool_av, const Tensor& pool_bk,
                    const Tensor& pool_bv, const MaybeTensor& ak_scale, const MaybeTensor& av_scale,
                    const MaybeTensor& bk_scale, const MaybeTensor& bv_scale, const Tensor& lengths,
                    const MaybeTensor& page_table, const MaybeTensor& theta) {
  constexpr char kOp[] = "tpa_append";
  const Factors tokens(kOp, ak, av, bk, bv);
  const Pool pool(kOp, pool_ak, pool_av, pool_bk, pool_bv, ak_scale, av_scale, bk_scale, bv_scale);
  const TpaSequences sequences =
      SequencesOf(kOp, lengths, page_table, ak.dim() > 0 ? ak.size(0) : 0);
  MaybeTensor theta_read;
  std::optional<ConstTensorView> theta_view;
  if (theta) {
    theta_read = Readable(kOp, "theta", *theta);
    theta_view = ViewOf(*theta_read);
  }
  TpaAppend(pool.view, tokens.View(), sequences, nullptr, theta_view);
}

std::tuple<Tensor, Tensor> TpaCacheDecode(const MaybeTensor& aq, const MaybeTensor& bq,
                                          const MaybeTensor& q, const Tensor& pool_ak,
                                          const Tensor& pool_av, const Tensor& pool_bk,
                                          const Tensor& pool_bv, const MaybeTensor& ak_scale,
                                          const MaybeTensor& av_scale, const MaybeTensor& bk_scale,
                                          const MaybeTensor& bv_scale, const Tensor& lengths,
                                          const MaybeTensor& page_table, Scale scale, Scale scale_q,
                                          Scale scale_k, Scale scale_v, std::int64_t split,
                                          std::optional<std::int64_t> precision) {
  constexpr char kOp[] = "tpa_decode";
  const TpaOptions options = OptionsOf(kOp, false, scale, scale_q, scale_k, scale_v, precision);
  const TpaSplit choice = ChoiceOf(kOp, "split", split, TpaSplit::kBN);
  const Queries queries(kOp, aq, bq, q);
  const Pool pool(kOp, pool_ak, pool_av, pool_bk, pool_bv, ak_scale, av_scale, bk_scale, bv_scale);
  const TpaSequences sequences = SequencesOf(kOp, lengths, page_table, queries.Batches());
  const Tensor out = NewTensor(kOp, "out", queries.First(), queries.OutShape(pool.view.shape.e));
  const Tensor lse =
      NewTensor(kOp, "lse", queries.First(), queries.LseShape(), ResultType::kFloat32);
  attnops::TpaDecode(queries.View(), pool.view, ViewOf(out), sequences, ViewOf(lse), options,
                     choice);
  return {out, lse};
}

}  // namespace
}  // namespace attnops::torch_binding

#define ATTNOPS_TPA_SCALES "float? scale, float? scale_q, float? scale_k, float? scale_v, "
#define ATTNOPS_TPA_FACTORS "Tensor? aq, Tensor ak, Tensor av, Tensor? bq, Tensor bk, Tensor bv, "
#define ATTNOPS_TPA_POOL_SCALES \
  "Tensor? ak_scale, Tensor? av_scale, Tensor? bk_scale, Tensor? bv_scale, "

STABLE_TORCH_LIBRARY_FRAGMENT(attnops, m) {
  m.def("tpa(" ATTNOPS_TPA_FACTORS "Tensor? q, bool causal, " ATTNOPS_TPA_SCALES
        "int? precision) -> (Tensor, Tensor)");
  m.def("tpa_backward(" ATTNOPS_TPA_FACTORS
        "Tensor? q, Tensor out, Tensor lse, Tensor d_out, bool causal, " ATTNOPS_TPA_SCALES
        "int? precision, Tensor? lengths=None) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("tpa_decode_ranks(" ATTNOPS_TPA_FACTORS "Tensor? q, " ATTNOPS_TPA_SCALES
        "int split, Tensor? lengths, Tensor? page_table, int? precision) -> (Tensor, Tensor)");
  m.def(
      "tpa_cache_append(Tensor ak, Tensor av, Tensor bk, Tensor bv, Tensor(a!) pool_ak, "
      "Tensor(b!) pool_av, Tensor(c!) pool_bk, Tensor(d!) pool_bv, Tensor(e!)? ak_scale, "
      "Tensor(f!)? av_scale, Tensor(g!)? bk_scale, Tensor(h!)? bv_scale, Tensor lengths, "
      "Tensor? page_table, Tensor? theta) -> ()");
  m.def(
      "tpa_cache_decode(Tensor? aq, Tensor? bq, Tensor? q, Tensor pool_ak, Tensor pool_av, "
      "Tensor pool_bk, Tensor pool_bv, " ATTNOPS_TPA_POOL_SCALES
      "Tensor lengths, Tensor? page_table, " ATTNOPS_TPA_SCALES
      "int split, int? precision) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(attnops, CPU, m) {
  m.impl("tpa", TORCH_BOX(&attnops::torch_binding::Tpa));
  m.impl("tpa_backward", TORCH_BOX(&attnops::torch_binding::TpaBackward));
  m.impl("tpa_decode_ranks", TORCH_BOX(&attnops::torch_binding::TpaDecodeRanks));
  m.impl("tpa_cache_append", TORCH_BOX(&attnops::torch_binding::TpaCacheAppend));
  m.impl("tpa_cache_decode", TORCH_BOX(&attnops::torch_binding::TpaCacheDecode));
}
