// A cache of the factors of keys and values, which serves a changing batch of sequences.
#ifndef ATTNOPS_TPA_CACHE_H_
#define ATTNOPS_TPA_CACHE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "attnops/tpa.h"
#include "attnops/view.h"

#pragma GCC visibility push(default)
namespace attnops {

// The type of a cache's numbers. int8 has a scale for each token of ak and av and for each row of
// bk and bv: the row's largest magnitude is 127 steps.
enum class TpaCacheType { kFloat32, kFloat16, kBFloat16, kInt8 };

struct TpaCacheShape {
  TpaCacheType type = TpaCacheType::kBFloat16;
  std::int64_t pages = 0, page_size = 0;  // tokens of a page
  std::int64_t heads = 0, k_rank = 0, v_rank = 0, d = 0, e = 0;
};

// The caller's memory, contiguous: ak (pages, page_size, heads, k_rank), av likewise, bk (pages,
// page_size, k_rank, d), bv likewise. For int8 the scales, float32: ak_scale and av_scale (pages,
// page_size), bk_scale (pages, page_size, k_rank), bv_scale likewise.
struct TpaPool {
  TpaCacheShape shape;
  void *ak = nullptr, *av = nullptr, *bk = nullptr, *bv = nullptr;
  float *ak_scale = nullptr, *av_scale = nullptr, *bk_scale = nullptr, *bv_scale = nullptr;
};

// Writes tokens, ak (B,N,H,R_k) and so on, behind the sequences.lengths[b] that sequence b has
// already; the page table has room for them, without one sequence b is page b. The first counts[b]
// tokens of sequence b, or all N. With theta (D/2 angles), rows of bk are rotated in halves by
// their position times theta before they are stored, as lrpe_rotate does. The tokens have the type
// of the cache, or any if that is int8.
void TpaAppend(const TpaPool& pool, const TpaKeys& tokens, const TpaSequences& sequences,
               const std::int64_t* counts = nullptr,
               const std::optional<ConstTensorView>& theta = {});

// One decoding step from a cache, as TpaDecode from tensors. The queries have the type of the
// cache, or any if that is int8.
void TpaDecode(const TpaQuery& query, const TpaPool& pool, const TensorView& out,
               const TpaSequences& sequences, const std::optional<TensorView>& lse = {},
               const TpaOptions& options = {}, TpaSplit split = TpaSplit::kAuto);

// A cache with memory and bookkeeping of its own. Sequences take pages from the pool as they grow
// and give them back when they leave. Not for several threads at once.
class TpaCache {
 public:
  explicit TpaCache(const TpaCacheShape& shape);

  // A new sequence without tokens.
  std::int64_t Join();
  // A new sequence with the tokens of another one. They share pages; one that is not full is copied
  // when either grows.
  std::int64_t Fork(std::int64_t sequence);
  // Ends a sequence; the pages that no other one has are free.
  void Leave(std::int64_t sequence);

  // Appends tokens (B,N,…) to B different sequences. Throws Error, with nothing written, if there
  // are not enough free pages.
  void Append(const std::vector<std::int64_t>& sequences, const TpaKeys& tokens,
              const std::optional<ConstTensorView>& theta = {});
  void Decode(const std::vector<std::int64_t>& sequences, const TpaQuery& query,
              const TensorView& out, const std::optional<TensorView>& lse = {},
              const TpaOptions& options = {}) const;

  std::int64_t Length(std::int64_t sequence) const;
  std::int64_t FreePages() const { return static_cast<std::int64_t>(free_.size()); }
  const TpaPool& pool() const { return pool_; }

 private:
  struct Sequence {
    bool used = false;
    std::int64_t length = 0;
    std::vector<std::int64_t> pages;
  };
  // The table of some sequences, all rows as long as the longest.
  struct Table {
    std::vector<std::int64_t> lengths, pages;
    std::int64_t width = 0;

    TpaSequences View() const { return {lengths.data(), pages.data(), width, width}; }
  };

  const Sequence& At(std::int64_t sequence) const;
  Table TableOf(const std::vector<std::int64_t>& sequences) const;
  void CopyPage(std::int64_t from, std::int64_t to);

  std::vector<std::uint8_t> memory_;
  TpaPool pool_;
  std::vector<Sequence> sequences_;
  std::vector<std::int64_t> free_;
  std::vector<std::int64_t> users_;  // how many sequences have a page
};

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_TPA_CACHE_H_
