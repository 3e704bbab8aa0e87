// The softmax of a range of tokens, and merging those of two.

#if defined(ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/ops/tpa_decode/kernels.h"
#include "src/simd/fetch_ahead.h"
#include "src/simd/matmul-inl.h"
#include "src/simd/panels-inl.h"
#include "src/simd/softmax-inl.h"
#include "src/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tpa_decode {
namespace HWY_NAMESPACE {

using namespace attnops::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// Rows of a tile of tokens and two vectors of heads: with 32 registers 16 sums, with fewer 8.
#if HWY_TARGET == HWY_AVX3
constexpr int kTokenRows = 8;
#else
constexpr int kTokenRows = std::min<int>(4, kMaxChunk);
#endif

template <typename T>
HWY_INLINE const T* RowOf(const Input& tensor, std::int64_t batch, std::int64_t row) {
  return static_cast<const T*>(tensor.data) + batch * tensor.batch + row * tensor.row;
}
HWY_INLINE float* RowOf(const Panels& matrix, std::int64_t chunk, std::int64_t row) {
  return matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
}

// f(first, count) for the places of `heads` heads in T's storage order: whole chunks, then the
// beginning of each vector of the last.
template <typename T, class F>
HWY_INLINE void ForEachPlaces(std::int64_t heads, const F& f) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t whole = heads / chunk * chunk;
  const std::int64_t n = heads - whole;
  const std::int64_t lower = IsInterleaved<T>::kValue ? (n + 1) / 2 : std::min(n, chunk / 2);
  if (whole > 0) f(0, whole);
  if (n > 0) f(whole, lower);
  if (n > lower) f(whole + chunk / 2, n - lower);
}

// Rows of a matrix from `first` on, and columns from `first` on within their panel.
HWY_INLINE Panels RowsFrom(const Panels& matrix, std::int64_t first) {
  return {RowOf(matrix, 0, first), matrix.panel};
}
HWY_INLINE Panels ColumnsFrom(const Panels& matrix, std::int64_t first) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  return {RowOf(matrix, first / chunk, 0) + first % chunk, matrix.panel};
}

template <typename T>
void Prepare(const Problem& problem, std::int64_t batch, Range heads, const Workspace& work) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t places = Padded(heads.size());
  // The rank in natural order, so that products over it take no more steps than it has.
  const auto place_of = [&](std::int64_t place, std::int64_t r) {
    return problem.through_rank ? RowOf(work.aq, place / chunk, r) + place % chunk
                                : RowOf(work.aq, r / chunk, place) + r % chunk;
  };
  for (std::int64_t place = 0; place < places; ++place) {
    const auto h = static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(place)));
    const T* from = h < heads.size() ? RowOf<T>(problem.aq, batch, heads.begin + h) : nullptr;
    for (std::int64_t r = 0; r < problem.R; ++r) {
      *place_of(place, r) = from == nullptr ? 0.0f : problem.score_scale * ToFloat(from[r]);
    }
  }
  LoadRows(RowOf<T>(problem.bq, batch, 0), problem.bq.row, problem.R, problem.D, work.bq);
  if (problem.through_rank) return;
  FetchAhead nothing;
  Multiply<Left::kStraight>(work.aq, work.bq, places, problem.R, ChunksOf(problem.D),
                            AddToMatrix{work.q, false, nothing});
  // An infinity in aq has made the padding NaN.
  for (std::int64_t i = problem.D; i < Padded(problem.D); ++i) {
    const auto column = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    for (std::int64_t place = 0; place < places; ++place) {
      RowOf(work.q, column / chunk, place)[column % chunk] = 0.0f;
    }
  }
}

// A block of tokens of some heads.
template <typename T>
struct Block {
  const Problem& problem;
  std::int64_t batch;
  Range heads, tokens;
  const Workspace& work;

  // Elements of ak or av of a token's heads, chunk c of them.
  HWY_INLINE Chunk LoadFactors(const Input& tensor, std::int64_t token, std::int64_t c) const {
    const auto chunk = static_cast<std::int64_t>(ChunkSize());
    const std::int64_t first = c * chunk;
    return LoadChunkN(RowOf<T>(tensor, batch, tokens.begin + token) + heads.begin + first,
                      static_cast<std::size_t>(std::min(chunk, heads.size() - first)));
  }
};

// t = bq·bkᵀ or q·bkᵀ, as many tokens as a tile has and some features at a time: transposed, they
// are still in L1 when they are used.
template <typename T>
HWY_INLINE void MultiplyKeys(const Block<T>& block, FetchAhead& ahead) {
  // Not a structured binding, which clang before 16 does not capture.
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  const std::int64_t batch = block.batch;
  const Range heads = block.heads, tokens = block.tokens;
  constexpr std::int64_t kTokens = kTileChunks * kMaxChunk;
  for (std::int64_t first = 0; first < tokens.size(); first += kTokens) {
    const std::int64_t count = std::min(kTokens, tokens.size() - first);
    const Panels t{RowOf(work.t, ChunksOf(first), 0), work.t.panel};
    for (std::int64_t feature = 0; feature < problem.D; feature += kFeatures) {
      const std::int64_t features = std::min(kFeatures, problem.D - feature);
      LoadTransposed(RowOf<T>(problem.bk, batch, tokens.begin + first) + feature, problem.bk.row,
                     count, features, work.right);
      const auto multiply = [&](const Panels& left, const Panels& to, std::int64_t rows) HWY_ATTR {
        Multiply<Left::kStraight>(ColumnsFrom(left, feature), work.right, rows, Padded(features),
                                  ChunksOf(count), AddToMatrix{to, feature > 0, ahead});
      };
      if (problem.through_rank) {
        multiply(work.bq, t, problem.R);
      } else {
        ForEachPlaces<T>(heads.size(), [&](std::int64_t place, std::int64_t n) HWY_ATTR {
          multiply(RowsFrom(work.q, place), RowsFrom(t, place), n);
        });
      }
    }
  }
}

// s = tᵀ·aqᵀ for chunk c of the heads, times ak. Returns the largest, or `max`.
template <typename T>
HWY_INLINE Chunk ScoresThroughRank(const Block<T>& block, std::int64_t c, Chunk max) {
  const Problem& problem = block.problem;
  const Range tokens = block.tokens;
  const Workspace& work = block.work;
  const float* HWY_RESTRICT aq = RowOf(work.aq, c, 0);
  for (std::int64_t first = 0; first < tokens.size(); first += kTokenRows) {
    const Pack<2 * kTokenRows> sums = AddSteps<kTokenRows, 1>(
        ColumnsFrom(work.t, first).data,
        [](auto row) ATTNOPS_INLINE_LAMBDA { return static_cast<std::size_t>(row()); }, ChunkSize(),
        static_cast<std::size_t>(problem.R),
        [&](std::size_t r) ATTNOPS_INLINE_LAMBDA { return LoadChunk(aq + r * ChunkSize()); },
        Fill<2 * kTokenRows>(0.0f));
    ForEach<kTokenRows>([&](auto row) ATTNOPS_INLINE_LAMBDA {
      constexpr int r = decltype(row)::value;
      if (first + r >= tokens.size()) return;
      const Chunk scores = Mul(Chunk{{sums.v[2 * r], sums.v[2 * r + 1]}},
                               block.LoadFactors(problem.ak, first + r, c));
      StoreChunk(scores, RowOf(work.s, c, first + r));
      max = Max(scores, max);  // not a NaN
    });
  }
  return max;
}

// Scores through the rank may be NaN where (aq·bq)·bkᵀ is not: an infinity in bk makes infinities
// of different signs in t, whose sum is NaN, where q·bk is infinite. Computes the NaNs of chunk c in
// that order, and returns the largest score, or `max`.
template <typename T>
HWY_NOINLINE Chunk ScoresWithoutRank(const Block<T>& block, std::int64_t c, Chunk max) {
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const auto bq_at = [&](std::int64_t r, std::int64_t d) {
    const auto column = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(d)));
    return RowOf(work.bq, column / chunk, r)[column % chunk];
  };
  for (std::int64_t place = 0; place < chunk; ++place) {
    const auto h = static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(place)));
    if (c * chunk + h >= block.heads.size()) continue;
    std::int64_t tokens[kBlock];
    float sums[kBlock];
    std::int64_t count = 0;
    for (std::int64_t token = 0; token < block.tokens.size(); ++token) {
      if (!std::isnan(RowOf(work.s, c, token)[place])) continue;
      sums[count] = 0;
      tokens[count++] = token;
    }
    if (count == 0) continue;
    for (std::int64_t d = 0; d < problem.D; ++d) {
      float q = 0;
      for (std::int64_t r = 0; r < problem.R; ++r) q += RowOf(work.aq, c, r)[place] * bq_at(r, d);
      for (std::int64_t i = 0; i < count; ++i) {
        sums[i] += q * ToFloat(RowOf<T>(problem.bk, block.batch, block.tokens.begin + tokens[i])[d]);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const T* ak = RowOf<T>(problem.ak, block.batch, block.tokens.begin + tokens[i]);
      RowOf(work.s, c, tokens[i])[place] = sums[i] * ToFloat(ak[block.heads.begin + c * chunk + h]);
    }
  }
  for (std::int64_t token = 0; token < block.tokens.size(); ++token) {
    max = Max(LoadChunk(RowOf(work.s, c, token)), max);
  }
  return max;
}

// The same from t = q·bkᵀ.
template <typename T>
HWY_INLINE Chunk ScoresOfQueries(const Block<T>& block, std::int64_t c, Chunk max) {
  const auto& [problem, batch, heads, tokens, work] = block;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const DU d;
  for (std::int64_t first = 0; first < Padded(tokens.size()); first += kLanes) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const float* from = RowOf(work.t, first / chunk, c * chunk + half * kLanes) + first % chunk;
      float* to = RowOf(work.s, c, first) + half * kLanes;
      Square square;
      HWY_UNROLL(16)
      for (int i = 0; i < kLanes; ++i) {
        square.v[i] = hn::Load(d, reinterpret_cast<const std::uint32_t*>(from + i * chunk));
      }
      square = TransposeSquare(square);
      HWY_UNROLL(16)
      for (int i = 0; i < kLanes; ++i) {
        hn::Store(square.v[i], d, reinterpret_cast<std::uint32_t*>(to + i * chunk));
      }
    }
  }
  for (std::int64_t token = 0; token < tokens.size(); ++token) {
    float* row = RowOf(work.s, c, token);
    const Chunk scores = Mul(LoadChunk(row), block.LoadFactors(problem.ak, token, c));
    StoreChunk(scores, row);
    max = Max(scores, max);
  }
  return max;
}

// From the scores of chunk c of the heads to weights p·av, which take their place. Returns Σp.
template <typename T>
HWY_INLINE Chunk Weigh(const Block<T>& block, std::int64_t c, const Chunk& max) {
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  const auto& [problem, batch, heads, tokens, work] = block;
  Chunk sum = Fill<2>(0.0f);
  std::int64_t token = 0;
  // Eight vectors at a time fill the latency of exp.
  for (; token + 4 <= tokens.size(); token += 4) {
    float* row = RowOf(work.s, c, token);
    const Pack<8> p =
        ExpDifference<kAccuracy>(LoadChunks<4>(row), Join(Join(max, max), Join(max, max)));
    const Pack<4> half = Add(FirstHalf(p), SecondHalf(p));
    sum = Add(sum, Add(FirstHalf(half), SecondHalf(half)));
    const Pack<4> av01 =
        Join(block.LoadFactors(problem.av, token, c), block.LoadFactors(problem.av, token + 1, c));
    const Pack<4> av23 = Join(block.LoadFactors(problem.av, token + 2, c),
                              block.LoadFactors(problem.av, token + 3, c));
    StoreChunks<4>(Mul(p, Join(av01, av23)), row);
  }
  for (; token < tokens.size(); ++token) {
    float* row = RowOf(work.s, c, token);
    const Chunk p = ExpDifference<kAccuracy>(LoadChunk(row), max);
    sum = Add(sum, p);
    StoreChunk(Mul(p, block.LoadFactors(problem.av, token, c)), row);
  }
  return sum;
}

// out = factor·out + sums, or without the first term if nothing was added before.
struct AddValues {
  Panels out;
  const float* factors;
  bool before;
  FetchAhead& ahead;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, std::size_t,
                             const Chunk& sums) const {
    float* at = RowOf(out, chunk, row);
    const Chunk factor = Fill<2>(factors[row]);
    StoreChunk(before ? MulAdd(LoadChunk(at), factor, sums) : sums, at);
  }
};

// Adds weights·bv.
template <typename T>
HWY_INLINE void MultiplyValues(const Block<T>& block, bool before, const Panels& out,
                               FetchAhead& ahead) {
  const Problem& problem = block.problem;
  const Workspace& work = block.work;
  const std::int64_t batch = block.batch;
  const Range heads = block.heads, tokens = block.tokens;
  ForEachPlaces<T>(heads.size(), [&](std::int64_t place, std::int64_t n) HWY_ATTR {
    MultiplyRows<Left::kTransposed>(
        ColumnsFrom(work.s, place), RowOf<T>(problem.bv, batch, tokens.begin), problem.bv.row,
        work.right, n, tokens.size(), problem.E,
        AddValues{RowsFrom(out, place), work.factor + place, before, ahead});
  });
}

// What the block from token `first` on, if there is one, will read.
template <typename T>
HWY_INLINE void FetchBlock(const Problem& problem, std::int64_t batch, Range heads,
                           std::int64_t first, FetchAhead& ahead) {
  if (first >= problem.M) return;
  constexpr std::int64_t kSize = sizeof(T);
  const auto fetch = [&](const Input& tensor, std::int64_t column, std::int64_t columns) {
    ahead.Add(RowOf<T>(tensor, batch, first) + column, tensor.row * kSize, columns * kSize,
              std::min(kBlock, problem.M - first));
  };
  fetch(problem.bk, 0, problem.D);
  fetch(problem.ak, heads.begin, heads.size());
  fetch(problem.av, heads.begin, heads.size());
  fetch(problem.bv, 0, problem.E);
}

template <typename T>
void Attend(const Problem& problem, std::int64_t batch, Range heads, Range tokens,
            const Workspace& work, const Partial& to) {
  const std::int64_t H = heads.size(), D = problem.D, E = problem.E;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  std::fill_n(to.max, Padded(H), kLowest);
  std::fill_n(to.sum, Padded(H), 0.0f);
  if (!problem.through_rank) {
    // Places without a head are not computed.
    for (std::int64_t c = 0; c < ChunksOf(kBlock); ++c) {
      std::fill_n(RowOf(work.t, c, 0), Padded(H) * chunk, 0.0f);
    }
  }
  for (std::int64_t first = tokens.begin; first < tokens.end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, tokens.end - first);
    const Block<T> block{problem, batch, heads, {first, first + count}, work};
    FetchAhead ahead;
    FetchBlock<T>(problem, batch, heads, first + kBlock, ahead);
    ahead.Spread(PausesOf(problem.through_rank ? problem.R : H, Padded(D), count) +
                 PausesOf(H, count, E));

    MultiplyKeys(block, ahead);
    for (std::int64_t c = 0; c < ChunksOf(H); ++c) {
      float* max = to.max + c * chunk;
      float* sum = to.sum + c * chunk;
      const Chunk old_max = LoadChunk(max);
      Chunk new_max = problem.through_rank ? ScoresThroughRank(block, c, old_max)
                                           : ScoresOfQueries(block, c, old_max);
      Chunk weight = Weigh(block, c, new_max);
      // A NaN among the scores is one in their sum.
      if (problem.through_rank && HWY_UNLIKELY(!AllAtMost(weight, weight))) {
        ScoresThroughRank(block, c, old_max);
        new_max = ScoresWithoutRank(block, c, old_max);
        weight = Weigh(block, c, new_max);
      }
      const Chunk factor = ExpDifference<Accuracy::kFloat32>(old_max, new_max);
      StoreChunk(factor, work.factor + c * chunk);
      StoreChunk(new_max, max);
      StoreChunk(MulAdd(LoadChunk(sum), factor, weight), sum);
    }

    MultiplyValues(block, first != tokens.begin, to.out, ahead);
  }
}

// exp(from − to), 1 where they are equal.
HWY_INLINE VF Rescaling(float from, float to) {
  const DF d;
  return ExpNoOverflow<Accuracy::kFloat32>(Pack<1>{{hn::Set(d, from - to)}}).v[0];
}

template <typename T>
void Merge(const Problem& problem, std::int64_t heads, Range rows, const Partial& from,
           const Partial& to) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(row))) >= heads) continue;
    const float max = std::max(from.max[row], to.max[row]);
    const VF from_factor = Rescaling(from.max[row], max);
    const VF to_factor = Rescaling(to.max[row], max);
    to.max[row] = max;
    to.sum[row] = from.sum[row] * hn::GetLane(from_factor) + to.sum[row] * hn::GetLane(to_factor);
    for (std::int64_t chunk = 0; chunk < ChunksOf(problem.E); ++chunk) {
      float* at = RowOf(to.out, chunk, row);
      StoreChunk(MulAdd(LoadChunk(at), Fill<2>(to_factor),
                        Mul(LoadChunk(RowOf(from.out, chunk, row)), Fill<2>(from_factor))),
                 at);
    }
  }
}

inline void Copy(const Problem& problem, Range rows, const Partial& from, const Partial& to) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  std::copy(from.max + rows.begin, from.max + rows.end, to.max + rows.begin);
  std::copy(from.sum + rows.begin, from.sum + rows.end, to.sum + rows.begin);
  for (std::int64_t chunk = 0; chunk < ChunksOf(problem.E); ++chunk) {
    std::copy_n(RowOf(from.out, chunk, rows.begin), rows.size() * size,
                RowOf(to.out, chunk, rows.begin));
  }
}

template <typename T>
void Finish(const Problem& problem, std::int64_t batch, Range heads, Range rows,
            const Partial& from) {
  T* out = static_cast<T*>(problem.out.data) + batch * problem.out.batch;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const auto h = static_cast<std::int64_t>(ElementAt<T>(static_cast<std::size_t>(row)));
    if (h >= heads.size()) continue;
    T* to = out + (heads.begin + h) * problem.out.row;
    const Chunk factor = Fill<2>(problem.value_scale / from.sum[row]);
    ForEachChunk(problem.E,
                 [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                   StoreChunkN(Mul(LoadChunk(RowOf(from.out, chunk, row)), factor), to + column, n);
                 });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tpa_decode
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
