// The bookkeeping of TpaCache: which sequence has which pages.
#include <algorithm>
#include <cstring>
#include <set>

#include "attnops/tpa_cache.h"
#include "src/core/checks.h"
#include "src/core/numeric.h"
#include "src/ops/tensor_product_attention/pool.h"

namespace attnops {
namespace {

constexpr char kOp[] = "tpa_cache";

}  // namespace

TpaCache::TpaCache(const TpaCacheShape& shape) {
  pool_.shape = shape;
  tensor_product_attention::CheckPool(kOp, pool_);
  const std::int64_t tokens = shape.pages * shape.page_size;
  const std::int64_t number = tensor_product_attention::NumberSize(shape.type);
  const std::int64_t scales = shape.type == TpaCacheType::kInt8 ? sizeof(float) : 0;
  // Scales first, which are aligned.
  const std::int64_t bytes = tokens * (scales * (2 + shape.k_rank + shape.v_rank) +
                                       number * (shape.heads * (shape.k_rank + shape.v_rank) +
                                                 shape.k_rank * shape.d + shape.v_rank * shape.e));
  memory_.resize(static_cast<std::size_t>(bytes));
  std::uint8_t* at = memory_.data();
  const auto take = [&](std::int64_t size) {
    std::uint8_t* taken = at;
    at += size;
    return taken;
  };
  if (scales > 0) {
    pool_.ak_scale = reinterpret_cast<float*>(take(tokens * scales));
    pool_.av_scale = reinterpret_cast<float*>(take(tokens * scales));
    pool_.bk_scale = reinterpret_cast<float*>(take(tokens * scales * shape.k_rank));
    pool_.bv_scale = reinterpret_cast<float*>(take(tokens * scales * shape.v_rank));
  }
  pool_.ak = take(tokens * number * shape.heads * shape.k_rank);
  pool_.av = take(tokens * number * shape.heads * shape.v_rank);
  pool_.bk = take(tokens * number * shape.k_rank * shape.d);
  pool_.bv = take(tokens * number * shape.v_rank * shape.e);
  users_.assign(static_cast<std::size_t>(shape.pages), 0);
  for (std::int64_t page = shape.pages; page-- > 0;) free_.push_back(page);
}

const TpaCache::Sequence& TpaCache::At(std::int64_t sequence) const {
  if (sequence < 0 || sequence >= static_cast<std::int64_t>(sequences_.size()) ||
      !sequences_[static_cast<std::size_t>(sequence)].used) {
    Fail(kOp, "there is no sequence ", sequence);
  }
  return sequences_[static_cast<std::size_t>(sequence)];
}

std::int64_t TpaCache::Length(std::int64_t sequence) const { return At(sequence).length; }

std::int64_t TpaCache::Join() {
  std::size_t i = 0;
  while (i < sequences_.size() && sequences_[i].used) ++i;
  if (i == sequences_.size()) sequences_.emplace_back();
  sequences_[i] = {true, 0, {}};
  return static_cast<std::int64_t>(i);
}

std::int64_t TpaCache::Fork(std::int64_t sequence) {
  const Sequence from = At(sequence);
  const std::int64_t to = Join();
  sequences_[static_cast<std::size_t>(to)] = from;
  for (const std::int64_t page : from.pages) ++users_[static_cast<std::size_t>(page)];
  return to;
}

void TpaCache::Leave(std::int64_t sequence) {
  for (const std::int64_t page : At(sequence).pages) {
    if (--users_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
  }
  sequences_[static_cast<std::size_t>(sequence)] = {};
}

TpaCache::Table TpaCache::TableOf(const std::vector<std::int64_t>& sequences) const {
  Table table;
  table.width = 1;
  for (const std::int64_t i : sequences) {
    table.width = std::max(table.width, static_cast<std::int64_t>(At(i).pages.size()));
  }
  for (const std::int64_t i : sequences) {
    const Sequence& sequence = At(i);
    table.lengths.push_back(sequence.length);
    table.pages.insert(table.pages.end(), sequence.pages.begin(), sequence.pages.end());
    table.pages.resize(table.lengths.size() * static_cast<std::size_t>(table.width));
  }
  return table;
}

void TpaCache::CopyPage(std::int64_t from, std::int64_t to) {
  const TpaCacheShape& shape = pool_.shape;
  const auto copy = [&](void* data, std::int64_t token_bytes) {
    if (data == nullptr) return;
    const std::int64_t bytes = token_bytes * shape.page_size;
    std::memcpy(static_cast<char*>(data) + to * bytes, static_cast<char*>(data) + from * bytes,
                static_cast<std::size_t>(bytes));
  };
  const std::int64_t number = tensor_product_attention::NumberSize(shape.type);
  constexpr std::int64_t kScale = sizeof(float);
  copy(pool_.ak, number * shape.heads * shape.k_rank);
  copy(pool_.av, number * shape.heads * shape.v_rank);
  copy(pool_.bk, number * shape.k_rank * shape.d);
  copy(pool_.bv, number * shape.v_rank * shape.e);
  copy(pool_.ak_scale, kScale);
  copy(pool_.av_scale, kScale);
  copy(pool_.bk_scale, kScale * shape.k_rank);
  copy(pool_.bv_scale, kScale * shape.v_rank);
}

void TpaCache::Append(const std::vector<std::int64_t>& sequences, const TpaKeys& tokens,
                      const std::optional<ConstTensorView>& theta) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  if (tokens.ak.rank() != 4 || tokens.ak.shape(0) != count) {
    Fail(kOp, "ak must have 4 axes (B,N,H,R) and as many batches as sequences are given, ", count,
         "; its shape is ", ToString(tokens.ak.shape()));
  }
  if (static_cast<std::int64_t>(
          std::set<std::int64_t>(sequences.begin(), sequences.end()).size()) != count) {
    Fail(kOp, "sequences must be different ones");
  }
  const std::int64_t size = pool_.shape.page_size, added = tokens.ak.shape(1);
  // The last page is written to: a shared one is copied.
  const auto must_copy = [&](const Sequence& sequence) {
    return added > 0 && sequence.length % size != 0 &&
           users_[static_cast<std::size_t>(sequence.pages.back())] > 1;
  };
  std::int64_t needed = 0;
  for (const std::int64_t i : sequences) {
    const Sequence& sequence = At(i);
    needed += DivideUp(sequence.length + added, size) -
              static_cast<std::int64_t>(sequence.pages.size()) + (must_copy(sequence) ? 1 : 0);
  }
  if (needed > FreePages()) {
    Fail(kOp, "ak has ", added, " tokens a sequence, which need ", needed, " pages; ", FreePages(),
         " are free");
  }
  const std::vector<Sequence> before = sequences_;
  const std::vector<std::int64_t> free_before = free_, users_before = users_;
  const auto take = [&] {
    const std::int64_t page = free_.back();
    free_.pop_back();
    users_[static_cast<std::size_t>(page)] = 1;
    return page;
  };
  std::vector<std::pair<std::int64_t, std::int64_t>> copies;
  for (const std::int64_t i : sequences) {
    Sequence& sequence = sequences_[static_cast<std::size_t>(i)];
    if (must_copy(sequence)) {
      const std::int64_t shared = sequence.pages.back();
      --users_[static_cast<std::size_t>(shared)];
      sequence.pages.back() = take();
      copies.emplace_back(shared, sequence.pages.back());
    }
    while (static_cast<std::int64_t>(sequence.pages.size()) * size < sequence.length + added) {
      sequence.pages.push_back(take());
    }
  }
  try {
    for (const auto& [from, to] : copies) CopyPage(from, to);
    TpaAppend(pool_, tokens, TableOf(sequences).View(), nullptr, theta);
  } catch (...) {
    sequences_ = before;
    free_ = free_before;
    users_ = users_before;
    throw;
  }
  for (const std::int64_t i : sequences) sequences_[static_cast<std::size_t>(i)].length += added;
}

void TpaCache::Decode(const std::vector<std::int64_t>& sequences, const TpaQuery& query,
                      const TensorView& out, const std::optional<TensorView>& lse,
                      const TpaOptions& options) const {
  const ConstTensorView* first = query.full ? &*query.full : query.a ? &*query.a : nullptr;
  const auto count = static_cast<std::int64_t>(sequences.size());
  if (first != nullptr && first->rank() > 0 && first->shape(0) != count) {
    Fail(kOp, query.full ? "q" : "aq", " has ", first->shape(0), " batches; ", count,
         " sequences are given");
  }
  TpaDecode(query, pool_, out, TableOf(sequences).View(), lse, options);
}

}  // namespace attnops
