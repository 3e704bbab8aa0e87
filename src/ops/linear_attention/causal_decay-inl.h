// Products of decays between the tokens of a block. They are products of exp of sums of log_decay
// over nodes of a binary tree, so nothing cancels: −Inf is a factor of exactly 0.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_DECAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_DECAY_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_DECAY_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_DECAY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "src/core/numeric.h"
#include "src/gemm/panels-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"
#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// The most that a decay may grow within a block, as a logarithm: far from overflow, so that its
// product with a score is finite where the result is.
constexpr float kMostGrowth = 40.0f;

HWY_INLINE float* At(const Panels& matrix, std::int64_t row, std::int64_t chunk) {
  return matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
}
HWY_INLINE Chunk ExpOf(const Chunk& x) { return {{Exp(x.v[0]), Exp(x.v[1])}}; }
// exp for n ≤ 128 floats in place, n a multiple of 64.
HWY_INLINE void ExpInPlace(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(ChunkSize())) {
    StoreChunk(ExpOf(LoadChunk(x + i)), x + i);
  }
}

// One number of a tensor of T or float32.
template <typename T>
HWY_INLINE float LoadNumber(const Input& tensor, bool is_float, std::int64_t batch,
                            std::int64_t head, std::int64_t token) {
  return is_float ? *RowAt<float>(tensor, batch, head, token)
                  : ToFloat(*RowAt<T>(tensor, batch, head, token));
}

// log_decay of each token of a block, 0 behind it; kBlockTokens floats.
template <typename T>
HWY_INLINE void LoadLogDecays(const Problem& problem, Head head, Range block, float* to) {
  std::fill_n(to, kBlockTokens, 0.0f);
  if (problem.decay == Decay::kConstant) {
    if (problem.has_decay) std::fill_n(to, block.size(), problem.constants[head.head]);
    return;
  }
  for (std::int64_t i = 0; i < block.size(); ++i) {
    to[i] = LoadNumber<T>(problem.log_decay, problem.float_decay, head.batch, head.head,
                          head.first + block.begin + i);
  }
}

// Calls f(half) for each level of the tree whose nodes have two halves with tokens of the block.
template <class F>
HWY_INLINE void ForEachLevel(std::int64_t tokens, const F& f) {
  for (std::int64_t half = 1; half < tokens; half *= 2) f(half);
}

// The decays of a block with a number for each token: from_start, to_end and, if wanted, the mask,
// from `logs`, which becomes sums. Returns the sum of the logarithms.
HWY_INLINE float MakeTokenDecays(float* logs, float* from_start, float* to_end,
                                 const Panels* mask) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  alignas(64) float factors[kBlockTokens];
  std::memcpy(from_start, logs, kBlockTokens * sizeof(float));
  ExpInPlace(from_start, kBlockTokens);
  std::fill_n(to_end, kBlockTokens, 1.0f);
  if (mask != nullptr) {
    for (std::int64_t c = 0; c < kBlockTokens / chunk; ++c) {
      std::fill_n(At(*mask, 0, c), kBlockTokens * chunk, 0.0f);
    }
    for (std::int64_t i = 0; i < kBlockTokens; ++i) At(*mask, i, i / chunk)[i % chunk] = 1.0f;
  }
  ForEachLevel(kBlockTokens, [&](std::int64_t half) ATTNOPS_INLINE_LAMBDA {
    std::memcpy(factors, logs, sizeof(factors));
    ExpInPlace(factors, kBlockTokens);
    for (std::int64_t left = 0; left < kBlockTokens; left += 2 * half) {
      const std::int64_t right = left + half;
      for (std::int64_t i = right; mask != nullptr && i < right + half; ++i) {
        for (std::int64_t j = left; j < right;) {
          const std::int64_t end = std::min(right, (j / chunk + 1) * chunk);
          float* HWY_RESTRICT row = At(*mask, i, j / chunk) + j % chunk;
          for (std::int64_t n = 0; n < end - j; ++n) row[n] = from_start[i] * to_end[j + n];
          j = end;
        }
      }
      for (std::int64_t n = 0; n < half; ++n) {
        from_start[right + n] *= factors[left];
        to_end[left + n] *= factors[right];
      }
      logs[left] += logs[right];
    }
  });
  return logs[0];
}

// log_decay of each token and feature of a block in side.sums, 0 behind it.
template <typename T>
HWY_INLINE void LoadFeatureLogs(const Input& tensor, bool is_float, Head head, Range block,
                                std::int64_t features, const Panels& to) {
  const std::int64_t token = head.first + block.begin;
  if (is_float) {
    const float* from = RowAt<float>(tensor, head.batch, head.head, token);
    ForEachChunk(features, [&](std::int64_t column, std::size_t n,
                               std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
      for (std::int64_t i = 0; i < block.size(); ++i) {
        StoreChunk(LoadFloatsAs<T>(from + i * tensor.token + column, n), At(to, i, chunk));
      }
    });
  } else {
    LoadRows(RowAt<T>(tensor, head.batch, head.head, token), tensor.token, block.size(), features,
             to);
  }
  for (std::int64_t chunk = 0; chunk < ChunksOf(features); ++chunk) {
    float* at = At(to, block.size(), chunk);
    std::fill(at, At(to, kBlockTokens, chunk), 0.0f);
  }
}

// Tokens of a group. The decays between two of them are products along the tokens from one to the
// other; those between groups come from the tree.
constexpr int kGroupTokens = 8;

// A level of the tree: nodes with halves of `half` tokens, for the tokens [begin, end).
struct Level {
  std::int64_t half, begin, end;
};

// Makes from_start and to_end of a block from the logarithms in side.sums, first those of groups,
// then level by level. group(tokens) finds the decay of each of its tokens alone in from_start.
// level(nodes), called before the halves of nodes are joined, finds in from_start of the tokens of
// a second half, and in to_end of the tokens of a first half, the decays from and to the middle of
// their node. Afterwards row 0 of side.sums is the sum of the block.
template <class Group, class OfLevel>
HWY_INLINE void MakeFeatureDecays(std::int64_t tokens, std::int64_t features, const SideDecay& side,
                                  const Group& group, const OfLevel& level) {
  const std::int64_t chunks = ChunksOf(features);
  for (std::int64_t begin = 0; begin < tokens; begin += kGroupTokens) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int64_t i = begin; i < begin + kGroupTokens; ++i) {
        StoreChunk(ExpOf(LoadChunk(At(side.sums, i, chunk))), At(side.from_start, i, chunk));
      }
    }
    group(Range{begin, std::min(tokens, begin + kGroupTokens)});
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      Chunk sum = LoadChunk(At(side.sums, begin, chunk));
      Chunk product = LoadChunk(At(side.from_start, begin + kGroupTokens - 1, chunk));
      StoreChunk(Fill<2>(1.0f), At(side.to_end, begin + kGroupTokens - 1, chunk));
      for (std::int64_t i = begin + kGroupTokens - 2; i >= begin; --i) {
        StoreChunk(product, At(side.to_end, i, chunk));
        product = Mul(product, LoadChunk(At(side.from_start, i, chunk)));
      }
      product = LoadChunk(At(side.from_start, begin, chunk));
      for (std::int64_t i = begin + 1; i < begin + kGroupTokens; ++i) {
        float* at = At(side.from_start, i, chunk);
        product = Mul(product, LoadChunk(at));
        StoreChunk(product, at);
        sum = Add(sum, LoadChunk(At(side.sums, i, chunk)));
      }
      StoreChunk(sum, At(side.sums, begin, chunk));
    }
  }
  for (std::int64_t half = kGroupTokens; half < tokens; half *= 2) {
    level(Level{half, 0, tokens});
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int64_t left = 0; left < tokens; left += 2 * half) {
        const std::int64_t right = left + half;
        const Chunk first = LoadChunk(At(side.sums, left, chunk));
        const Chunk second = LoadChunk(At(side.sums, right, chunk));
        const Chunk first_factor = ExpOf(first);
        const Chunk second_factor = ExpOf(second);
        for (std::int64_t n = 0; n < half; ++n) {
          float* from = At(side.from_start, right + n, chunk);
          float* to = At(side.to_end, left + n, chunk);
          StoreChunk(Mul(LoadChunk(from), first_factor), from);
          StoreChunk(Mul(LoadChunk(to), second_factor), to);
        }
        StoreChunk(Add(first, second), At(side.sums, left, chunk));
      }
    }
  }
}

// Weights of a state's update from the logarithms of n decays, padded to whole chunks:
//   λ·S + Δ = keep·S + (rest·S + Δ)
// For λ near 1, whose rounding would add up over many blocks, keep is 1 and rest λ − 1.
HWY_INLINE void MakeUpdateWeights(const float* logs, std::int64_t n, float* keep, float* rest) {
  const DF d;
  for (std::int64_t i = 0; i < Padded(n); i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const VF x = hn::LoadU(d, logs + i);
    const MF near = hn::Le(hn::Abs(x), hn::Set(d, 0.6875f));
    const VF small = hn::IfThenElseZero(near, x);
    // x + x²/2! + … + x^9/9!
    VF sum = hn::Set(d, 1.0f / 362880);
    for (const float inverse :
         {1.0f / 40320, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f}) {
      sum = hn::MulAdd(sum, small, hn::Set(d, inverse));
    }
    hn::StoreU(hn::IfThenElse(near, hn::Mul(sum, small), Exp(x)), d, rest + i);
    hn::StoreU(hn::IfThenElseZero(near, hn::Set(d, 1.0f)), d, keep + i);
  }
}

// Tokens of a block before one whose decay from an earlier token on would be above kMostGrowth: at
// least 1. within(i), asked for one token after the other, is whether all sums of logarithms that
// end at token i are small enough.
template <class Within>
HWY_INLINE std::int64_t TokensWithin(std::int64_t tokens, const Within& within) {
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (!within(i)) return std::max<std::int64_t>(i, 1);
  }
  return tokens;
}
HWY_INLINE std::int64_t TokensOfGrowth(const float* logs, std::int64_t tokens) {
  float most = 0;
  return TokensWithin(tokens, [&](std::int64_t i) ATTNOPS_INLINE_LAMBDA {
    most = std::max(most, 0.0f) + logs[i];
    return !(most > kMostGrowth);
  });
}
HWY_INLINE std::int64_t TokensOfGrowth(const Panels& logs, std::int64_t tokens,
                                       std::int64_t features) {
  for (std::int64_t chunk = 0; chunk < ChunksOf(features); ++chunk) {
    Chunk most = Fill<2>(0.0f);
    tokens = TokensWithin(tokens, [&](std::int64_t i) ATTNOPS_INLINE_LAMBDA {
      most = Add(Max(most, Fill<2>(0.0f)), LoadChunk(At(logs, i, chunk)));
      return !AnyGreater(most, Fill<2>(kMostGrowth));
    });
  }
  return tokens;
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_DECAY_INL_H_
