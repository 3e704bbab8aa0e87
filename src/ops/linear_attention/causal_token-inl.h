// Both passes over a block where the features of a token share a decay, or nothing decays, and
// those of v have none. Decays of rows are then factors of sums in registers, and results go from
// there to their tensors.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_TOKEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_TOKEN_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_TOKEN_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_TOKEN_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "src/ops/linear_attention/causal_block-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

// The lower triangle of x·y, times the decays between its tokens.
HWY_INLINE void MakeTriangle(const Problem& problem, const Panels& x, const Panels& y,
                             std::int64_t tokens, std::int64_t features, const Workspace& work,
                             const Panels& to, Prefetcher& prefetcher) {
  if (problem.has_decay) {
    MultiplyLower(x, y, tokens, Padded(features), StoreWeighted{work.mask, to, false, prefetcher});
  } else {
    MultiplyLower(x, y, tokens, Padded(features), AddToMatrix{to, false, prefetcher});
  }
}

template <typename T>
void ForwardOfTokens(const Problem& problem, Head head, Range block, const Workspace& work,
                     const Panels& state, Prefetcher& prefetcher) {
  const std::int64_t tokens = block.size(), D = problem.D, E = problem.E;
  const bool outputs = problem.out.data != nullptr;
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, block);
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, block);
  prefetcher.Spread((outputs ? PausesOf(tokens, D + tokens / 2, E) : 0) + PausesOf(D, tokens, E));
  LoadTokenDecays<T>(problem, head, block, work, outputs && problem.decay == Decay::kToken);
  LoadRows(v.data, v.stride, tokens, E, work.v);
  if (outputs) {
    const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, block);
    LoadRows(q.data, q.stride, tokens, D, work.q);
    LoadTransposed(k.data, k.stride, tokens, D, work.columns);
    MakeTriangle(problem, work.q, work.columns, tokens, D, work, work.scores, prefetcher);
    MultiplySum(tokens, ChunksOf(E),
                StoreScaled<T>{RowsOf<T>(problem.out, head, head.head, block), E, problem.scale,
                               prefetcher},
                Term<Left::kStraight>{work.q, state, Padded(D)},
                ScaleRows{problem.has_decay ? work.from_start : nullptr},
                Term<Left::kStraight, Triangle::kLower>{work.scores, work.v, tokens});
  }
  LoadScaledRows<T>(k, tokens, D, problem.has_decay ? work.to_end : nullptr, work.k);
  UpdateBy<T>(problem, work.k, work.v, tokens, work, state, prefetcher);
}

// Stores rows of a gradient in a tensor, or in a matrix if the tensor has no data. Adds ±x ⊙ the
// gradient to `products`, a chunk for each row, if there are such.
template <typename T, class Factor>
struct StoreGradient {
  Rows<T> to;
  Panels matrix;
  std::int64_t columns;
  Factor x;
  Panels products;
  float sign;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return ChunkCount(columns, chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    if (products.data != nullptr) {
      float* at = At(products, row, 0);
      const Chunk factor = Mul(x(row, chunk, n), Fill<2>(sign));
      StoreChunk(MulAdd(factor, sums, LoadChunk(at)), at);
    }
    if (to.data != nullptr) {
      StoreChunkN<Payload::kAny>(sums, ChunkOf(to[row], chunk), n);
    } else {
      StoreChunk(sums, At(matrix, row, chunk));
    }
  }
};

// Σ S ⊙ dS.
HWY_INLINE float DotStates(const Problem& problem, const Panels& state, const Panels& d_state) {
  const DF d;
  const std::int64_t D = Padded(problem.D), chunks = ChunksOf(problem.E);
  double all = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    Pack<4> sums = attnops::HWY_NAMESPACE::Fill<4>(0.0f);
    for (std::int64_t row = 0; row < D; row += 2) {
      ForEach<4>([&](auto i) ATTNOPS_INLINE_LAMBDA {
        const std::size_t at = static_cast<std::size_t>(i()) * hn::Lanes(d);
        sums.v[i()] = hn::MulAdd(hn::Load(d, At(state, row, chunk) + at),
                                 hn::Load(d, At(d_state, row, chunk) + at), sums.v[i()]);
      });
    }
    const VF sum = hn::Add(hn::Add(sums.v[0], sums.v[1]), hn::Add(sums.v[2], sums.v[3]));
    all += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return static_cast<float>(all);
}

// The gradient of the decays of tokens, or of a constant: a running sum from the last token to the
// first, which begins with Σ S ⊙ dS behind the block and adds `products` of each token.
template <typename T>
void TokenDecayGradients(const Problem& problem, Head head, const BackwardBlock& block,
                         const Panels& products, float sum) {
  const DF d;
  const Range tokens = block.tokens;
  alignas(64) float logs[kBlockTokens];
  LoadLogDecays<T>(problem, head, tokens, logs);
  for (std::int64_t i = tokens.size() - 1; i >= 0; --i) {
    const Chunk product = LoadChunk(At(products, i, 0));
    sum += hn::GetLane(hn::SumOfLanes(d, hn::Add(product.v[0], product.v[1])));
    if (logs[i] == -std::numeric_limits<float>::infinity()) sum = 0;
    if (block.d_constant != nullptr) {
      *block.d_constant += static_cast<double>(sum);
    } else {
      StoreDecayGradient<T>(problem, head.batch, head.head, head.first + tokens.begin + i, sum);
    }
  }
}

template <typename T>
void BackwardOfTokens(const Problem& problem, Head head, const BackwardBlock& block,
                      const Workspace& work, Prefetcher& prefetcher) {
  const Range range = block.tokens;
  const std::int64_t tokens = range.size(), D = problem.D, E = problem.E;
  const Panels& d_state = block.d_state;
  const Rows<const T> q = RowsOf<T>(problem.q, head, head.key_head, range);
  const Rows<const T> k = RowsOf<T>(problem.k, head, head.key_head, range);
  const Rows<const T> v = RowsOf<T>(problem.v, head, head.head, range);
  const float* from_start = problem.has_decay ? work.from_start : nullptr;
  const float* to_end = problem.has_decay ? work.to_end : nullptr;
  prefetcher.Spread(2 * PausesOf(tokens, E, D) + PausesOf(tokens, D, E) + PausesOf(D, tokens, E));
  LoadTokenDecays<T>(problem, head, range, work, problem.decay == Decay::kToken);
  LoadRows(q.data, q.stride, tokens, D, work.q);
  LoadTransposed(k.data, k.stride, tokens, D, work.columns);
  MakeTriangle(problem, work.q, work.columns, tokens, D, work, work.scores, prefetcher);
  LoadGradient<T>(problem, head, range, work.g);
  LoadTransposed(v.data, v.stride, tokens, E, work.columns);
  MakeTriangle(problem, work.g, work.columns, tokens, E, work, work.d_scores, prefetcher);
  LoadRows(k.data, k.stride, tokens, D, work.k);
  LoadRows(v.data, v.stride, tokens, E, work.v);

  // The heads of a group add their dq and dk in float32 before they are rounded.
  const bool direct = block.dq_sums.data == nullptr;
  Panels products{};
  if (problem.d_log_decay.data != nullptr) {
    products = work.weighted;
    ZeroRows(tokens, 1, products);
  }
  const auto store = [&](const Output& to, const Panels& matrix, const Panels& x, float sign) {
    return StoreGradient<T, PanelsFactor>{
        direct ? RowsOf<T>(to, head, head.key_head, range) : Rows<T>{},
        matrix,
        D,
        {x},
        products,
        sign,
        prefetcher};
  };
  TransposePanels(block.state, Padded(D), Padded(E), work.state_columns);
  MultiplySum(tokens, ChunksOf(D), store(problem.dq, work.dq, work.q, 1.0f),
              Term<Left::kStraight>{work.g, work.state_columns, Padded(E)}, ScaleRows{from_start},
              Term<Left::kStraight, Triangle::kLower>{work.d_scores, work.k, tokens});
  TransposePanels(d_state, Padded(D), Padded(E), work.state_columns);
  MultiplySum(tokens, ChunksOf(D), store(problem.dk, work.dk, work.k, -1.0f),
              Term<Left::kStraight>{work.v, work.state_columns, Padded(E)}, ScaleRows{to_end},
              Term<Left::kTransposed, Triangle::kUpper>{work.d_scores, work.q, tokens});
  MultiplySum(
      tokens, ChunksOf(E),
      StoreInRows<T, Payload::kAny>{RowsOf<T>(problem.dv, head, head.head, range), E, prefetcher},
      Term<Left::kStraight>{work.k, d_state, Padded(D)}, ScaleRows{to_end},
      Term<Left::kTransposed, Triangle::kUpper>{work.scores, work.g, tokens});
  if (products.data != nullptr) {
    TokenDecayGradients<T>(problem, head, block, products,
                           DotStates(problem, block.next_state, d_state));
  }
  if (from_start != nullptr) MultiplyRowsBy(work.q, from_start, tokens, D, work.q);
  UpdateBy<T>(problem, work.q, work.g, tokens, work, d_state, prefetcher);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_TOKEN_INL_H_
