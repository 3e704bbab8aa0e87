#include "src/ops/tensor_product_attention/tpa_arguments.h"

#include <utility>

#include "src/core/numeric.h"

namespace attnops::tensor_product_attention {
namespace {

void CheckRanks(const char* op, const char* name, std::int64_t ranks) {
  if (ranks < 1) Fail(op, name, " has ", ranks, " ranks; it must have at least 1");
}

}  // namespace

TpaSizes CheckQuery(const char* op, const TpaQuery& query) {
  const bool factored = query.a && query.b;
  if (query.full ? query.a || query.b : !factored) {
    Fail(op, "q must be given, or else aq and bq, and not all of them");
  }
  if (query.full) {
    const ConstTensorView& q = *query.full;
    CheckRank(op, "q", q, 4, "(B,N,H,D)");
    return {q.shape(0), q.shape(1), 0, q.shape(2), 0, 0, 0, q.shape(3), 0, q.dtype()};
  }
  const ConstTensorView &a = *query.a, &b = *query.b;
  CheckRank(op, "aq", a, 4, "(B,N,H,R)");
  CheckRank(op, "bq", b, 4, "(B,N,R,D)");
  CheckAxis(op, "bq", b, 0, "batches", "aq", a.shape(0));
  CheckAxis(op, "bq", b, 1, "tokens", "aq", a.shape(1));
  CheckAxis(op, "bq", b, 2, "ranks", "aq", a.shape(3));
  CheckSameType(op, "bq", b, "aq", a);
  CheckRanks(op, "aq", a.shape(3));
  return {a.shape(0), a.shape(1), 0, a.shape(2), a.shape(3), 0, 0, b.shape(3), 0, a.dtype()};
}

TpaSizes CheckFactors(const char* op, const TpaQuery& query, const TpaKeys& keys, bool paged) {
  TpaSizes sizes = CheckQuery(op, query);
  const char* queries = query.full ? "q" : "aq";
  CheckRank(op, "ak", keys.ak, 4, paged ? "(P,page_size,H,R)" : "(B,M,H,R)");
  CheckRank(op, "av", keys.av, 4, paged ? "(P,page_size,H,R)" : "(B,M,H,R)");
  CheckRank(op, "bk", keys.bk, 4, paged ? "(P,page_size,R,D)" : "(B,M,R,D)");
  CheckRank(op, "bv", keys.bv, 4, paged ? "(P,page_size,R,E)" : "(B,M,R,E)");
  const std::pair<const char*, const ConstTensorView&> all[] = {
      {"ak", keys.ak}, {"av", keys.av}, {"bk", keys.bk}, {"bv", keys.bv}};
  for (const auto& [name, view] : all) {
    if (paged) {
      CheckAxis(op, name, view, 0, "pages", "ak", keys.ak.shape(0));
    } else {
      CheckAxis(op, name, view, 0, "batches", queries, sizes.B);
    }
    CheckAxis(op, name, view, 1, "tokens", "ak", keys.ak.shape(1));
    CheckSameType(op, name, view, queries, query.full ? *query.full : *query.a);
  }
  CheckAxis(op, "ak", keys.ak, 2, "heads", queries, sizes.H);
  CheckAxis(op, "av", keys.av, 2, "heads", queries, sizes.H);
  CheckAxis(op, "bk", keys.bk, 2, "ranks", "ak", keys.ak.shape(3));
  CheckAxis(op, "bv", keys.bv, 2, "ranks", "av", keys.av.shape(3));
  CheckAxis(op, "bk", keys.bk, 3, "features", query.full ? "q" : "bq", sizes.D);
  CheckRanks(op, "ak", keys.ak.shape(3));
  CheckRanks(op, "av", keys.av.shape(3));
  sizes.M = keys.ak.shape(1);
  sizes.Rk = keys.ak.shape(3);
  sizes.Rv = keys.av.shape(3);
  sizes.E = keys.bv.shape(3);
  return sizes;
}

void CheckLse(const char* op, const TpaSizes& sizes, const ConstTensorView& lse) {
  CheckView(op, "lse", lse);
  CheckShape(op, "lse", lse, {sizes.B, sizes.H, sizes.N});
  if (lse.dtype() != DType::kFloat32) {
    Fail(op, "lse must be float32; it is ", Name(lse.dtype()));
  }
}

void CheckResults(const char* op, const TpaSizes& sizes, const TpaQuery& query,
                  const TensorView& out, const std::optional<TensorView>& lse) {
  const ConstTensorView& first = query.full ? *query.full : *query.a;
  const char* name = query.full ? "q" : "aq";
  CheckShape(op, "out", out, {sizes.B, sizes.N, sizes.H, sizes.E});
  CheckSameType(op, "out", out, name, first);
  CheckOutput(op, "out", out);
  CheckApart(op, "out", out, name, first);
  if (query.b) CheckApart(op, "out", out, "bq", *query.b);
  if (!lse) return;
  CheckLse(op, sizes, *lse);
  CheckOutput(op, "lse", *lse);
  CheckApart(op, "lse", *lse, "out", out);
  CheckApart(op, "lse", *lse, name, first);
  if (query.b) CheckApart(op, "lse", *lse, "bq", *query.b);
}

void CheckSplit(const char* op, TpaSplit split) {
  const int number = static_cast<int>(split);
  if (number < 0 || number > static_cast<int>(TpaSplit::kBN)) {
    Fail(op, "split is no known way to divide the work (", number, ")");
  }
}

void CheckSequences(const char* op, const TpaSequences& sequences, std::int64_t batches,
                    std::int64_t pages, std::int64_t page_size) {
  const bool paged = sequences.page_table != nullptr;
  if (paged && sequences.lengths == nullptr) Fail(op, "lengths must be given with a page_table");
  if (paged && page_size < 1) Fail(op, "pages must have at least 1 token; they have ", page_size);
  const std::int64_t capacity = paged ? sequences.table_pages * page_size : page_size;
  for (std::int64_t b = 0; b < batches && sequences.lengths != nullptr; ++b) {
    const std::int64_t length = sequences.lengths[b];
    if (length < 0 || length > capacity) {
      Fail(op, "lengths must be from 0 to the capacity, ", capacity, "; that of sequence ", b,
           " is ", length);
    }
    for (std::int64_t i = 0; paged && i < DivideUp(length, page_size); ++i) {
      const std::int64_t page = sequences.page_table[b * sequences.table_stride + i];
      if (page < 0 || page >= pages) {
        Fail(op, "page_table must have pages from 0 to ", pages - 1, "; page ", i, " of sequence ",
             b, " is ", page);
      }
    }
  }
}

TpaScales ScalesOf(const TpaSizes& sizes, const TpaOptions& options) {
  const auto inverse = [](std::int64_t n) { return n == 0 ? 1 : 1 / static_cast<double>(n); };
  const double root = sizes.D == 0 ? 1 : 1 / std::sqrt(static_cast<double>(sizes.D));
  return {options.scale.value_or(root) * options.scale_q.value_or(inverse(sizes.Rq)) *
              options.scale_k.value_or(inverse(sizes.Rk)),
          options.scale_v.value_or(inverse(sizes.Rv))};
}

Input RowsOf(const ConstTensorView& view) {
  static constexpr float kNothing = 0;
  if (view.size() == 0) return {&kNothing, 0, 0, 0};
  return {view.data(), view.stride(0), view.stride(2), view.stride(1)};
}
Output RowsOf(const TensorView& view) {
  static float nothing = 0;
  if (view.size() == 0) return {&nothing, 0, 0, 0};
  return {view.data(), view.stride(0), view.stride(2), view.stride(1)};
}
Input RowsOf(const std::optional<ConstTensorView>& view) { return view ? RowsOf(*view) : Input{}; }
Output RowsOf(const std::optional<TensorView>& view) { return view ? RowsOf(*view) : Output{}; }

DecodeProblem DecodeProblemOf(const TpaSizes& sizes, const TpaQuery& query, const TensorView& out,
                              const std::optional<TensorView>& lse, const TpaOptions& options) {
  const TpaScales scales = ScalesOf(sizes, options);
  DecodeProblem problem{};
  problem.B = sizes.B;
  problem.M = problem.page_size = sizes.M;
  problem.H = sizes.H;
  problem.Rq = sizes.Rq;
  problem.Rk = sizes.Rk;
  problem.Rv = sizes.Rv;
  problem.D = sizes.D;
  problem.E = sizes.E;
  problem.dtype = sizes.dtype;
  problem.aq = RowsOf(query.a);
  problem.bq = RowsOf(query.b);
  problem.q = RowsOf(query.full);
  problem.out = RowsOf(out);
  if (lse && lse->size() > 0) problem.lse = {lse->data(), lse->stride(0), lse->stride(1), 0};
  problem.score_scale = static_cast<float>(scales.of_scores);
  problem.value_scale = static_cast<float>(scales.of_values);
  problem.through_rank = !query.full && sizes.Rq * (sizes.D + sizes.H) < sizes.H * sizes.D;
  return problem;
}

}  // namespace attnops::tensor_product_attention
