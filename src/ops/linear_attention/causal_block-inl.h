// A block of tokens: its rows, the products with its scores, and the state's update.

#if defined(ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BLOCK_INL_H_
#undef ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BLOCK_INL_H_
#else
#define ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "src/gemm/epilogues-inl.h"
#include "src/gemm/multiply_sum-inl.h"
#include "src/gemm/panels-inl.h"
#include "src/gemm/prefetch.h"
#include "src/ops/linear_attention/causal_decay-inl.h"
#include "src/ops/linear_attention/causal_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::causal {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE Rows<const T> RowsOf(const Input& tensor, Head head, std::int64_t index, Range block) {
  return {RowAt<T>(tensor, head.batch, index, head.first + block.begin), tensor.token};
}
template <typename T>
HWY_INLINE Rows<T> RowsOf(const Output& tensor, Head head, std::int64_t index, Range block) {
  return {RowAt<T>(tensor, head.batch, index, head.first + block.begin), tensor.token};
}

// Sets rows of a matrix to 0.
HWY_INLINE void ZeroRows(std::int64_t rows, std::int64_t columns, const Panels& matrix) {
  for (std::int64_t chunk = 0; chunk < ChunksOf(columns); ++chunk) {
    std::fill_n(At(matrix, 0, chunk), rows * static_cast<std::int64_t>(ChunkSize()), 0.0f);
  }
}

// Rows of scale·dO.
template <typename T>
void LoadGradient(const Problem& problem, Head head, Range block, const Panels& to) {
  const Rows<const T> rows = RowsOf<T>(problem.d_out, head, head.head, block);
  ForEachChunk(problem.E, [&](std::int64_t column, std::size_t n,
                              std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    for (std::int64_t i = 0; i < block.size(); ++i) {
      StoreChunk(Mul(LoadChunkN(rows[i] + column, n), Fill<2>(problem.scale)), At(to, i, chunk));
    }
  });
}

// Rows of a tensor, each times its factor if there are such.
template <typename T>
HWY_INLINE void LoadScaledRows(const Rows<const T>& rows, std::int64_t count, std::int64_t columns,
                               const float* factors, const Panels& to) {
  if (factors == nullptr) return LoadRows(rows.data, rows.stride, count, columns, to);
  ForEachChunk(
      columns, [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
        for (std::int64_t i = 0; i < count; ++i) {
          StoreChunk(Mul(LoadChunkN(rows[i] + column, n), Fill<2>(factors[i])), At(to, i, chunk));
        }
      });
}

// Prefetches rows that will be read or written, if the call has that tensor.
template <typename T, class Tensor>
HWY_INLINE void PrefetchRows(const Tensor& tensor, const Ahead& ahead, std::int64_t index,
                             std::int64_t columns, Prefetcher& prefetcher) {
  if (tensor.data == nullptr || ahead.block.size() <= 0) return;
  constexpr std::int64_t kSize = sizeof(T);
  const auto rows = RowsOf<T>(tensor, ahead.head, index, ahead.block);
  prefetcher.Add(rows.data, rows.stride * kSize, columns * kSize, ahead.block.size());
}
// Decays, or their gradients.
template <typename T, class Tensor>
HWY_INLINE void PrefetchDecays(const Problem& problem, const Tensor& of_keys,
                               const Tensor& of_values, const Ahead& ahead,
                               Prefetcher& prefetcher) {
  const auto fetch = [&](const Tensor& tensor, bool is_float, std::int64_t columns) {
    if (is_float) {
      PrefetchRows<float>(tensor, ahead, ahead.head.head, columns, prefetcher);
    } else {
      PrefetchRows<T>(tensor, ahead, ahead.head.head, columns, prefetcher);
    }
  };
  if (problem.decay != Decay::kConstant) {
    fetch(of_keys, problem.float_decay, problem.decay == Decay::kFeature ? problem.D : 1);
  }
  fetch(of_values, problem.float_decay_v, problem.E);
}

// Rows of a matrix from `row` on, and columns from a multiple of what fits into a chunk.
HWY_INLINE Panels From(const Panels& matrix, std::int64_t row, std::int64_t column = 0) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  return {At(matrix, row, column / chunk) + column % chunk, matrix.panel};
}

// A row's chunk of a matrix times a factor, in another.
HWY_INLINE void StoreTimes(const Panels& x, const Chunk& factor, const Panels& to, std::int64_t row,
                           std::int64_t chunk, std::int64_t to_row) {
  StoreChunk(Mul(LoadChunk(At(x, row, chunk)), factor), At(to, to_row, chunk));
}

// Calls f(row, chunk, at) for each chunk of a matrix's rows, where `at` is its offset.
template <class F>
HWY_INLINE void ForEachRow(std::int64_t rows, std::int64_t columns, const F& f) {
  for (std::int64_t chunk = 0; chunk < ChunksOf(columns); ++chunk) {
    for (std::int64_t row = 0; row < rows; ++row) f(row, chunk);
  }
}

// x = w ⊙ x, or each row of x times its number, into `to`.
HWY_INLINE void MultiplyMatrix(const Panels& x, const Panels& w, std::int64_t rows,
                               std::int64_t columns, const Panels& to) {
  ForEachRow(rows, columns, [&](std::int64_t row, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    StoreChunk(Mul(LoadChunk(At(x, row, chunk)), LoadChunk(At(w, row, chunk))), At(to, row, chunk));
  });
}
HWY_INLINE void MultiplyRowsBy(const Panels& x, const float* factors, std::int64_t rows,
                               std::int64_t columns, const Panels& to) {
  ForEachRow(rows, columns, [&](std::int64_t row, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
    StoreChunk(Mul(LoadChunk(At(x, row, chunk)), Fill<2>(factors[row])), At(to, row, chunk));
  });
}

// Epilogues.

// Sums times a matrix, set or added.
struct StoreWeighted {
  Panels weights, to;
  bool add;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = At(to, row, chunk);
    const Chunk product = Mul(sums, LoadChunk(At(weights, row, chunk)));
    StoreChunk(add ? Add(product, LoadChunk(at)) : product, at);
  }
};

// Sums times the scale in rows of a tensor.
template <typename T>
struct StoreScaled {
  Rows<T> to;
  std::int64_t columns;
  float scale;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t chunk) const { return ChunkCount(columns, chunk); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t n,
                             const Chunk& sums) const {
    StoreChunkN<Payload::kAny>(Mul(sums, Fill<2>(scale)), ChunkOf(to[row], chunk), n);
  }
};

// S = λ ⊙ S ⊙ μ + the sums.
struct UpdateState {
  const Panels& matrix;
  const float *key_keep, *key_rest;
  const float *value_keep, *value_rest;  // null if μ is 1
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = At(matrix, row, chunk);
    Chunk state = LoadChunk(at);
    const Chunk keep = Fill<2>(key_keep[row]);
    const Chunk rest = Fill<2>(key_rest[row]);
    if (value_keep == nullptr) {
      return StoreChunk(MulAdd(keep, state, MulAdd(rest, state, sums)), at);
    }
    state = MulAdd(keep, state, Mul(rest, state));
    const Chunk value_kept = LoadChunk(ChunkOf(value_keep, chunk));
    const Chunk value_left = LoadChunk(ChunkOf(value_rest, chunk));
    StoreChunk(MulAdd(value_kept, state, MulAdd(value_left, state, sums)), at);
  }
};

// Advances a state with the decay work.log by the product that multiply(epilogue) computes.
template <typename T, class Product>
HWY_INLINE void UpdateWith(const Problem& problem, const Workspace& work, const Panels& state,
                           Prefetcher& prefetcher, const Product& multiply) {
  const bool on_values = problem.OnValues();
  MakeUpdateWeights(work.log.key, problem.D, work.key_keep, work.key_rest);
  if (on_values) MakeUpdateWeights(work.log.value, problem.E, work.value_keep, work.value_rest);
  const UpdateState epilogue{state,
                             work.key_keep,
                             work.key_rest,
                             on_values ? work.value_keep : nullptr,
                             on_values ? work.value_rest : nullptr,
                             prefetcher};
  multiply(epilogue);
  ZeroPadding<T>(problem.D, problem.E, state);
}
// The same by xᵀ·y, which are (block, D) and (block, E).
template <typename T>
void UpdateBy(const Problem& problem, const Panels& x, const Panels& y, std::int64_t tokens,
              const Workspace& work, const Panels& state, Prefetcher& prefetcher) {
  UpdateWith<T>(problem, work, state, prefetcher, [&](const UpdateState& epilogue) HWY_ATTR {
    Multiply<Left::kTransposed>(x, y, Padded(problem.D), tokens, ChunksOf(problem.E), epilogue);
  });
}

// The decays of a block from numbers of its tokens, and the mask if it is wanted.
template <typename T>
void LoadTokenDecays(const Problem& problem, Head head, Range block, const Workspace& work,
                     bool with_mask) {
  alignas(64) float logs[kBlockTokens];
  LoadLogDecays<T>(problem, head, block, logs);
  const float sum =
      MakeTokenDecays(logs, work.from_start, work.to_end, with_mask ? &work.mask : nullptr);
  std::fill_n(work.log.key, Padded(problem.D), sum);
}

// A number of the gradient of log_decay.
template <typename T>
void StoreDecayGradient(const Problem& problem, std::int64_t batch, std::int64_t head,
                        std::int64_t token, float value) {
  if (problem.float_decay) {
    *RowAt<float>(problem.d_log_decay, batch, head, token) = value;
  } else {
    StoreChunkN(Fill<2>(value), RowAt<T>(problem.d_log_decay, batch, head, token), 1);
  }
}
// Sums over all chunks of products of R rows of z and C others, as many as a vector has lanes.
template <int R, int C>
HWY_INLINE void DotRows(const Panels& z, std::int64_t chunks, std::int64_t row, std::int64_t column,
                        const Panels& to) {
  const DF d;
  Pack<R* C> sums = attnops::HWY_NAMESPACE::Fill<R * C>(0.0f);
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* x = At(z, row, chunk);
    const float* y = At(z, column, chunk);
    for (int half = 0; half < 2; ++half, x += hn::Lanes(d), y += hn::Lanes(d)) {
      const Pack<C> right = MakePack<C>(
          [&](int j) ATTNOPS_INLINE_LAMBDA { return hn::Load(d, y + j * ChunkSize()); });
      ForEach<R>([&](auto i) ATTNOPS_INLINE_LAMBDA {
        const VF left = hn::Load(d, x + i() * ChunkSize());
        ForEach<C>([&](auto j) ATTNOPS_INLINE_LAMBDA {
          constexpr int at = decltype(i)::value * C + decltype(j)::value;
          sums.v[at] = hn::MulAdd(left, right.v[decltype(j)::value], sums.v[at]);
        });
      });
    }
  }
  alignas(64) float scores[R * C];
  StoreLaneSums(sums, scores);
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  for (int i = 0; i < R; ++i) {
    std::copy_n(scores + i * C, C, At(to, row + i, column / chunk) + column % chunk);
  }
}

// The scores between the halves of all nodes of a level, from rows that are weighted with the
// decays from and to the middle of their node.
HWY_INLINE void ScoreLevel(const Panels& weighted, std::int64_t chunks, const Level& nodes,
                           const Panels& scores) {
  constexpr int R = std::min(kLanes, 4), C = kLanes / R;
  const Panels z = From(weighted, nodes.row);
  const std::int64_t half = nodes.half;
  for (std::int64_t left = 0; left + half < nodes.tokens; left += 2 * half) {
    const std::int64_t end = std::min(nodes.tokens, left + 2 * half);
    for (std::int64_t i = left + half; i < end; i += R) {
      for (std::int64_t j = left; j < left + half; j += C) DotRows<R, C>(z, chunks, i, j, scores);
    }
  }
}
HWY_INLINE void ScoreLevels(const Panels& weighted, std::int64_t tokens, std::int64_t chunks,
                            const Panels& scores) {
  ForEachNodeLevel(tokens, [&](const Level& nodes) ATTNOPS_INLINE_LAMBDA {
    ScoreLevel(weighted, chunks, nodes, scores);
  });
}

// The scores of each token with itself.
HWY_INLINE void ScoreDiagonal(const Panels& x, const Panels& y, std::int64_t tokens,
                              std::int64_t columns, const Panels& scores) {
  const DF d;
  const auto size = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t i = 0; i < tokens; ++i) {
    Chunk sum = Fill<2>(0.0f);
    for (std::int64_t chunk = 0; chunk < ChunksOf(columns); ++chunk) {
      sum = MulAdd(LoadChunk(At(x, i, chunk)), LoadChunk(At(y, i, chunk)), sum);
    }
    At(scores, i, i / size)[i % size] = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum.v[0], sum.v[1])));
  }
}

// Sums added to rows that decay before: all of them by one decay of features.
struct AddToDecayed {
  const SideDecay& side;
  int level;
  std::int64_t half;
  Panels to;
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = At(to, row, chunk);
    StoreChunk(MulAdd(HalfDecay(side, level, half, chunk), LoadChunk(at), sums), at);
  }
};
// What earlier tokens add to rows, which come with what the state before the block adds, without
// its decay: for second halves, from the root down,
//   to[i] = (the decay of the first half) ⊙ to[i] + Σ_j scores[i,j]·z[j], j in the first half,
// where z has rows times their decay to the middle. MixGroup then finishes a group.
HWY_INLINE void MixLevels(const Panels& scores, const Panels& weighted, const SideDecay& side,
                          std::int64_t tokens, std::int64_t chunks, const Panels& to,
                          Prefetcher& prefetcher) {
  for (int level = kLevels - 1; level >= 0; --level) {
    const Level nodes = LevelAt(level, tokens);
    for (std::int64_t left = 0; left + nodes.half < tokens; left += 2 * nodes.half) {
      const std::int64_t right = left + nodes.half;
      const AddToDecayed epilogue{side, level, left / nodes.half, From(to, right), prefetcher};
      Multiply<Left::kStraight>(From(scores, right, left), From(weighted, nodes.row + left),
                                std::min(nodes.half, tokens - right), nodes.half, chunks, epilogue);
    }
  }
}
// What later tokens add: to[j] = (the decay of the second half) ⊙ to[j] + Σ_i scores[i,j]·z[i].
HWY_INLINE void MixLevelsBack(const Panels& scores, const Panels& weighted, const SideDecay& side,
                              std::int64_t tokens, std::int64_t chunks, const Panels& to,
                              Prefetcher& prefetcher) {
  for (int level = kLevels - 1; level >= 0; --level) {
    const Level nodes = LevelAt(level, tokens);
    for (std::int64_t left = 0; left + nodes.half < tokens; left += 2 * nodes.half) {
      const std::int64_t right = left + nodes.half;
      const AddToDecayed epilogue{side, level, right / nodes.half, From(to, left), prefetcher};
      Multiply<Left::kTransposed>(From(scores, right, left), From(weighted, nodes.row + right),
                                  nodes.half, std::min(nodes.half, tokens - right), chunks,
                                  epilogue);
    }
  }
}

// Products within a group of tokens. decay has the decay of each token alone; from token j to i
// the features of a row are multiplied by those of j+1, …, i.

// The scores of token `row` with itself and the N − 1 tokens before it.
template <int N>
HWY_INLINE void ScoreRow(const Panels& x, const Panels& y, const Panels& decay, std::int64_t chunks,
                         std::int64_t row, const Panels& scores) {
  Pack<N> sums = attnops::HWY_NAMESPACE::Fill<N>(0.0f);
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    Chunk weighted = LoadChunk(At(x, row, chunk));
    ForEach<N>([&](auto s) ATTNOPS_INLINE_LAMBDA {
      constexpr int kBack = decltype(s)::value;
      VF& sum = sums.v[N - 1 - kBack];
      const Chunk right = LoadChunk(At(y, row - kBack, chunk));
      sum = hn::MulAdd(weighted.v[0], right.v[0], sum);
      sum = hn::MulAdd(weighted.v[1], right.v[1], sum);
      if constexpr (kBack + 1 < N) {
        weighted = Mul(weighted, LoadChunk(At(decay, row - kBack, chunk)));
      }
    });
  }
  alignas(64) float of_row[kGroupTokens + kLanes];
  StoreLaneSums(sums, of_row);
  const auto size = static_cast<std::int64_t>(ChunkSize());
  for (std::int64_t i = 0; i < N; ++i) {
    const std::int64_t column = row + 1 - N + i;
    At(scores, row, column / size)[column % size] = of_row[i];
  }
}
// The scores of a group, x_i with y_j for j ≤ i.
HWY_INLINE void ScoreGroup(const Panels& x, const Panels& y, const Panels& decay,
                           std::int64_t chunks, Range group, const Panels& scores) {
  ForEach<kGroupTokens>([&](auto i) ATTNOPS_INLINE_LAMBDA {
    if (i() >= group.size()) return;
    ScoreRow<decltype(i)::value + 1>(x, y, decay, chunks, group.begin + i(), scores);
  });
}

HWY_INLINE float ScoreAt(const Panels& scores, std::int64_t row, std::int64_t column) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  return At(scores, row, column / size)[column % size];
}

// A vector of the rows of a group.
HWY_INLINE Pack<kGroupTokens> LoadGroup(const Panels& from, std::int64_t first, std::int64_t chunk,
                                        std::int64_t at) {
  return MakePack<kGroupTokens>(
      [&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Load(DF(), At(from, first + i, chunk) + at); });
}
// Calls f for each group of a block.
template <class F>
HWY_INLINE void ForEachGroup(std::int64_t tokens, const F& f) {
  for (std::int64_t i = 0; i < tokens; i += kGroupTokens) {
    f(Range{i, std::min(tokens, i + kGroupTokens)});
  }
}
// to_i = (the decays of the group up to i) ⊙ to_i + Σ scores[i,j]·y_j over j ≤ i, with the decays
// from j to i.
HWY_INLINE void MixGroup(const Panels& scores, const Panels& y, const Panels& decay,
                         std::int64_t chunks, Range group, const Panels& to) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  alignas(64) float weights[kGroupTokens][kGroupTokens];
  for (int i = 0; i < kGroupTokens; ++i) {
    for (int j = 0; j <= i; ++j) weights[i][j] = ScoreAt(scores, group.begin + i, group.begin + j);
  }
  for (std::int64_t vector = 0; vector < 2 * chunks; ++vector) {
    const std::int64_t at = vector % 2 * lanes;
    Pack<kGroupTokens> sums = LoadGroup(to, group.begin, vector / 2, at);
    ForEach<kGroupTokens>([&](auto j) ATTNOPS_INLINE_LAMBDA {
      constexpr int kColumn = decltype(j)::value;
      const VF right = hn::Load(d, At(y, group.begin + kColumn, vector / 2) + at);
      const VF factor = hn::Load(d, At(decay, group.begin + kColumn, vector / 2) + at);
      ForEach<kGroupTokens>([&](auto i) ATTNOPS_INLINE_LAMBDA {
        constexpr int kRow = decltype(i)::value;
        if constexpr (kRow >= kColumn) {
          const VF term = hn::Mul(hn::Set(d, weights[kRow][kColumn]), right);
          sums.v[kRow] = hn::MulAdd(sums.v[kRow], factor, term);
        }
      });
    });
    ForEach<kGroupTokens>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      if (i() >= group.size()) return;
      hn::Store(sums.v[i()], d, At(to, group.begin + i(), vector / 2) + at);
    });
  }
}
// to_j = (the decays of the group behind j) ⊙ to_j + Σ scores[i,j]·x_i over i ≥ j, with the decays
// from j to i.
HWY_INLINE void MixGroupBack(const Panels& scores, const Panels& x, const Panels& decay,
                             std::int64_t chunks, Range group, const Panels& to) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  alignas(64) float weights[kGroupTokens][kGroupTokens];
  for (int i = 0; i < group.size(); ++i) {
    for (int j = 0; j <= i; ++j) weights[i][j] = ScoreAt(scores, group.begin + i, group.begin + j);
  }
  for (std::int64_t vector = 0; vector < 2 * chunks; ++vector) {
    const std::int64_t at = vector % 2 * lanes;
    Pack<kGroupTokens> sums = LoadGroup(to, group.begin, vector / 2, at);
    ForEach<kGroupTokens>([&](auto back) ATTNOPS_INLINE_LAMBDA {
      constexpr int kRow = kGroupTokens - 1 - decltype(back)::value;
      // Behind the block are rows of no token.
      if (kRow >= group.size()) return;
      const VF left = hn::Load(d, At(x, group.begin + kRow, vector / 2) + at);
      const VF factor = kRow + 1 < kGroupTokens
                            ? hn::Load(d, At(decay, group.begin + kRow + 1, vector / 2) + at)
                            : hn::Set(d, 1.0f);
      ForEach<kRow + 1>([&](auto j) ATTNOPS_INLINE_LAMBDA {
        sums.v[j()] =
            hn::MulAdd(sums.v[j()], factor, hn::Mul(hn::Set(d, weights[kRow][j()]), left));
      });
    });
    ForEach<kGroupTokens>([&](auto i) ATTNOPS_INLINE_LAMBDA {
      if (i() >= group.size()) return;
      hn::Store(sums.v[i()], d, At(to, group.begin + i(), vector / 2) + at);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::causal
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_LINEAR_ATTENTION_CAUSAL_BLOCK_INL_H_
