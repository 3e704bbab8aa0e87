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

// The decays of a block with a number for each token: from_start, to_end and, if wanted, the lower
// triangle of the mask, whose other elements are 0 and stay so. Returns the sum of the logarithms.
// Within groups decays are products along the tokens; above, of exp of sums over nodes of the tree.
HWY_INLINE float MakeTokenDecays(const float* logs, float* from_start, float* to_end,
                                 const Panels* mask) {
  constexpr std::int64_t kGroup = kGroupTokens;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  alignas(64) float decays[kBlockTokens];
  std::memcpy(decays, logs, sizeof(decays));
  ExpInPlace(decays, kBlockTokens);
  // Sums over the halves of nodes, and their decays; padded for ExpInPlace.
  alignas(64) float sums[kBlockTokens] = {}, factors[kBlockTokens];
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const std::int64_t first = group * kGroup, last = first + kGroup - 1;
    sums[group] = logs[first];
    from_start[first] = decays[first];
    to_end[last] = 1.0f;
    for (std::int64_t i = 1; i < kGroup; ++i) {
      sums[group] += logs[first + i];
      from_start[first + i] = from_start[first + i - 1] * decays[first + i];
      to_end[last - i] = to_end[last - i + 1] * decays[last - i + 1];
    }
  }
  const hn::CappedTag<float, kGroupTokens> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto mask_at = [&](std::int64_t row, std::int64_t column) ATTNOPS_INLINE_LAMBDA {
    return At(*mask, row, column / chunk) + column % chunk;
  };
  if (mask != nullptr) {
    for (std::int64_t first = 0; first < kBlockTokens; first += kGroup) {
      for (std::int64_t j = 0; j < kGroup; j += lanes) {
        const auto column = hn::Iota(d, static_cast<float>(j));
        auto row = hn::Zero(d);
        for (std::int64_t i = 0; i < kGroup; ++i) {
          const auto diagonal = hn::Set(d, static_cast<float>(i));
          row = hn::Mul(row, hn::Set(d, decays[first + i]));
          row = hn::IfThenElseZero(hn::Lt(column, diagonal), row);
          row = hn::IfThenElse(hn::Eq(column, diagonal), hn::Set(d, 1.0f), row);
          hn::StoreU(row, d, mask_at(first + i, first + j));
        }
      }
    }
  }
  for (int level = 0; level < kLevels; ++level) {
    const std::int64_t half = kGroup << level, halves = kGroups >> level;
    std::memcpy(factors, sums, sizeof(factors));
    ExpInPlace(factors, kBlockTokens);
    for (std::int64_t n = 0; n < halves; n += 2) {
      const std::int64_t left = n * half, right = left + half;
      for (std::int64_t i = right; mask != nullptr && i < right + half; ++i) {
        const auto factor = hn::Set(d, from_start[i]);
        for (std::int64_t j = left; j < right; j += lanes) {
          hn::StoreU(hn::Mul(factor, hn::LoadU(d, to_end + j)), d, mask_at(i, j));
        }
      }
      for (std::int64_t i = 0; i < half; ++i) {
        from_start[right + i] *= factors[n];
        to_end[left + i] *= factors[n + 1];
      }
      sums[n / 2] = sums[n] + sums[n + 1];
    }
  }
  return sums[0];
}

// log_decay of each token and feature of a block in side.logs, 0 behind it.
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

// Whether a log_decay of a block is above 0, or a NaN: else no product of decays is above 1.
template <typename T>
HWY_INLINE bool MayGrow(const Input& tensor, bool is_float, Head head, Range block,
                        std::int64_t features) {
  const auto any_above = [&](const auto* from) ATTNOPS_INLINE_LAMBDA {
    bool at_most = true;
    ForEachChunk(features,
                 [&](std::int64_t column, std::size_t n, std::int64_t) ATTNOPS_INLINE_LAMBDA {
                   MF first = hn::Le(hn::Zero(DF()), hn::Zero(DF())), second = first;
                   for (std::int64_t i = 0; i < block.size(); ++i) {
                     const Chunk x = LoadChunkN(from + i * tensor.token + column, n);
                     first = hn::And(first, hn::Le(x.v[0], hn::Zero(DF())));
                     second = hn::And(second, hn::Le(x.v[1], hn::Zero(DF())));
                   }
                   at_most = at_most && hn::AllTrue(DF(), hn::And(first, second));
                 });
    return !at_most;
  };
  const std::int64_t token = head.first + block.begin;
  return is_float ? any_above(RowAt<float>(tensor, head.batch, head.head, token))
                  : any_above(RowAt<T>(tensor, head.batch, head.head, token));
}

// A level of the tree over the tokens of a block: nodes with halves of `half` tokens. Its rows of
// matrices that have some for each level begin at `row`.
struct Level {
  std::int64_t half, row, tokens;
};
HWY_INLINE Level LevelAt(int number, std::int64_t tokens) {
  return {kGroupTokens << number, number * kBlockTokens, tokens};
}
// Calls f for each level whose nodes have two halves with tokens of the block.
template <class F>
HWY_INLINE void ForEachNodeLevel(std::int64_t tokens, const F& f) {
  for (int i = 0; i < kLevels && LevelAt(i, tokens).half < tokens; ++i) f(LevelAt(i, tokens));
}

// The decay of half `number` of a level's nodes, in side.nodes.
HWY_INLINE Chunk HalfDecay(const SideDecay& side, int level, std::int64_t number,
                           std::int64_t chunk) {
  const std::int64_t before = 2 * kGroups - (2 * kGroups >> level);
  return LoadChunk(At(side.nodes, before + number, chunk));
}
// Makes side.nodes from the logarithms in side.logs, and `log`, their sums over the block.
HWY_INLINE void MakeHalfDecays(std::int64_t features, const SideDecay& side, float* log) {
  alignas(64) float sums[kGroups][kMaxChunk];
  for (std::int64_t chunk = 0; chunk < ChunksOf(features); ++chunk) {
    for (std::int64_t group = 0; group < kGroups; ++group) {
      Chunk sum = LoadChunk(At(side.logs, group * kGroupTokens, chunk));
      for (std::int64_t i = 1; i < kGroupTokens; ++i) {
        sum = Add(sum, LoadChunk(At(side.logs, group * kGroupTokens + i, chunk)));
      }
      StoreChunk(sum, sums[group]);
    }
    float* to = At(side.nodes, 0, chunk);
    for (int halves = kGroups; halves > 1; halves /= 2) {
      for (int i = 0; i < halves; ++i, to += ChunkSize()) StoreChunk(ExpOf(LoadChunk(sums[i])), to);
      for (int i = 0; i < halves / 2; ++i) {
        StoreChunk(Add(LoadChunk(sums[2 * i]), LoadChunk(sums[2 * i + 1])), sums[i]);
      }
    }
    StoreChunk(LoadChunk(sums[0]), ChunkOf(log, chunk));
  }
}

// What MakeFeatureDecays calls; a user hides what it needs.
struct DecayVisitor {
  // The tokens of a group, whose own decays are in side.decays.
  HWY_INLINE void Group(Range) const {}
  // For each level and token in a first half, the decay from it to the middle of its node; in a
  // second half, that from the middle to it.
  HWY_INLINE void ToMiddle(const Level&, std::int64_t, std::int64_t, const Chunk&) const {}
  HWY_INLINE void FromMiddle(const Level&, std::int64_t, std::int64_t, const Chunk&) const {}
  // The decays from a token to the block's end and from the block's start to it.
  HWY_INLINE void ToEnd(std::int64_t, std::int64_t, const Chunk&) const {}
  HWY_INLINE void FromStart(std::int64_t, std::int64_t, const Chunk&) const {}
};

// Passes the decays of a block, from the logarithms in side.logs, to a visitor, a group after the
// other while its rows are in L1, and row by row and chunk by chunk within a group. `log` becomes
// the sums of the block.
template <class Visitor>
HWY_INLINE void MakeFeatureDecays(std::int64_t tokens, std::int64_t features, const SideDecay& side,
                                  float* log, const Visitor& visitor) {
  const std::int64_t chunks = ChunksOf(features);
  MakeHalfDecays(features, side, log);
  for (std::int64_t begin = 0; begin < tokens; begin += kGroupTokens) {
    const std::int64_t end = begin + kGroupTokens, group = begin / kGroupTokens;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int64_t i = begin; i < end; ++i) {
        StoreChunk(ExpOf(LoadChunk(At(side.logs, i, chunk))), At(side.decays, i, chunk));
      }
    }
    visitor.Group(Range{begin, std::min(tokens, end)});
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      Chunk product = Fill<2>(1.0f);
      for (std::int64_t i = end - 1; i >= begin; --i) {
        Chunk decay = product;
        for (int level = 0; level < kLevels; ++level) {
          const std::int64_t half = group >> level;
          if (half % 2 != 0) continue;
          visitor.ToMiddle(LevelAt(level, tokens), i, chunk, decay);
          decay = Mul(decay, HalfDecay(side, level, half + 1, chunk));
        }
        visitor.ToEnd(i, chunk, decay);
        product = Mul(product, LoadChunk(At(side.decays, i, chunk)));
      }
      product = Fill<2>(1.0f);
      for (std::int64_t i = begin; i < end; ++i) {
        product = Mul(product, LoadChunk(At(side.decays, i, chunk)));
        Chunk decay = product;
        for (int level = 0; level < kLevels; ++level) {
          const std::int64_t half = group >> level;
          if (half % 2 == 0) continue;
          visitor.FromMiddle(LevelAt(level, tokens), i, chunk, decay);
          decay = Mul(decay, HalfDecay(side, level, half - 1, chunk));
        }
        visitor.FromStart(i, chunk, decay);
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
  if (std::all_of(logs, logs + tokens, [](float x) { return x <= 0; })) return tokens;
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
