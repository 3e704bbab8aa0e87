// The softmax of a range of tokens, and merging those of two.

#if defined(ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
#undef ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
#else
#define ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
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

template <typename T>
HWY_INLINE const T* RowOf(const Input& tensor, std::int64_t batch, std::int64_t row) {
  return static_cast<const T*>(tensor.data) + batch * tensor.batch + row * tensor.row;
}

HWY_INLINE float* RowOf(const Panels& matrix, std::int64_t chunk, std::int64_t row) {
  return matrix.data + chunk * matrix.panel + row * static_cast<std::int64_t>(ChunkSize());
}

template <typename T>
void Prepare(const Problem& problem, std::int64_t batch, Range heads, const Workspace& work) {
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  // In natural order, so that products over the rank take no more steps than it has.
  for (std::int64_t h = 0; h < heads.size(); ++h) {
    const T* from = RowOf<T>(problem.aq, batch, heads.begin + h);
    for (std::int64_t r = 0; r < problem.R; ++r) {
      RowOf(work.aq, r / chunk, h)[r % chunk] = problem.score_scale * ToFloat(from[r]);
    }
  }
  LoadRows(RowOf<T>(problem.bq, batch, 0), problem.bq.row, problem.R, problem.D, work.bq);
  if (problem.through_rank) return;
  FetchAhead none;
  Multiply<Left::kStraight>(work.aq, work.bq, heads.size(), problem.R, ChunksOf(problem.D),
                            AddToMatrix{work.q, false, none});
  // An infinity in aq has made the padding NaN.
  for (std::int64_t i = problem.D; i < Padded(problem.D); ++i) {
    const auto column = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(i)));
    for (std::int64_t h = 0; h < heads.size(); ++h) {
      RowOf(work.q, column / chunk, h)[column % chunk] = 0.0f;
    }
  }
}

// Scores: sums times ak.
template <typename T>
struct StoreScores {
  const Panels& ak;
  const Panels& to;
  FetchAhead& ahead;

  HWY_INLINE void Fetch(const TilePlace&, std::int64_t, std::int64_t) const { ahead.Step(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t chunk, const Chunk& sums) const {
    const auto factors = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(row)));
    StoreChunk(Mul(sums, LoadChunk(RowOf(ak, chunk, factors))), RowOf(to, chunk, row));
  }
};

// Chunks that a step of the softmax takes: eight vectors fill the latency of exp.
constexpr int kStepChunks = 4;

template <int K>
HWY_INLINE Pack<2 * K> LoadRow(const Panels& matrix, std::int64_t chunk, std::int64_t row) {
  if constexpr (K == 1) {
    return LoadChunk(RowOf(matrix, chunk, row));
  } else {
    return Join(LoadRow<K / 2>(matrix, chunk, row), LoadRow<K / 2>(matrix, chunk + K / 2, row));
  }
}
template <int K>
HWY_INLINE void StoreRow(const Pack<2 * K>& values, const Panels& matrix, std::int64_t chunk,
                         std::int64_t row) {
  if constexpr (K == 1) {
    StoreChunk(values, RowOf(matrix, chunk, row));
  } else {
    StoreRow<K / 2>(FirstHalf(values), matrix, chunk, row);
    StoreRow<K / 2>(SecondHalf(values), matrix, chunk + K / 2, row);
  }
}

// Calls f(std::integral_constant<int, K>, chunk) for steps of K chunks that cover `chunks`.
template <class F>
HWY_INLINE void ForEachStep(std::int64_t chunks, const F& f) {
  std::int64_t chunk = 0;
  for (; chunk + kStepChunks <= chunks; chunk += kStepChunks) {
    f(std::integral_constant<int, kStepChunks>(), chunk);
  }
  for (; chunk < chunks; ++chunk) f(std::integral_constant<int, 1>(), chunk);
}

HWY_INLINE void ScaleRow(const Panels& matrix, std::int64_t chunks, std::int64_t row, VF factor) {
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    float* at = RowOf(matrix, chunk, row);
    StoreChunk(Mul(LoadChunk(at), Fill<2>(factor)), at);
  }
}

// exp(from − to), 1 where they are equal.
HWY_INLINE VF Rescaling(float from, float to) {
  const DF d;
  return ExpNoOverflow<Accuracy::kFloat32>(Pack<1>{{hn::Set(d, from - to)}}).v[0];
}

// From the scores of a block to weights p·av, with the statistics of the block added to those of
// the tokens before it, whose sums are rescaled where a maximum has grown.
template <typename T>
HWY_INLINE void Weigh(const Problem& problem, std::int64_t heads, std::int64_t count,
                      const Workspace& work, const Partial& to) {
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  const DF d;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  const std::int64_t chunks = ChunksOf(count);
  // Tokens that do not exist: exp(−Inf) is 0, and so are their av and bv.
  if (count % chunk != 0) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::fill(RowOf(work.s, chunks - 1, h) + count % chunk, RowOf(work.s, chunks - 1, h) + chunk,
                -std::numeric_limits<float>::infinity());
    }
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    VF max = hn::Set(d, to.max[h]);
    ForEachStep(chunks, [&](auto k, std::int64_t at) ATTNOPS_INLINE_LAMBDA {
      max = hn::Max(max, MaxOfVectors(LoadRow<k()>(work.s, at, h)));
    });
    const float new_max = hn::GetLane(hn::MaxOfLanes(d, max));
    if (!(new_max > to.max[h])) continue;
    if (to.max[h] != kLowest) {
      const VF factor = Rescaling(to.max[h], new_max);
      float* sum = to.sum + h * kLanes;
      hn::Store(hn::Mul(hn::Load(d, sum), factor), d, sum);
      ScaleRow(to.out, ChunksOf(problem.E), h, factor);
    }
    to.max[h] = new_max;
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    const VF max = hn::Set(d, to.max[h]);
    const auto factors = static_cast<std::int64_t>(StorageOffset<T>(static_cast<std::size_t>(h)));
    VF sum = hn::Load(d, to.sum + h * kLanes);
    ForEachStep(chunks, [&](auto k, std::int64_t at) ATTNOPS_INLINE_LAMBDA {
      constexpr int kVectors = 2 * decltype(k)::value;
      const Pack<kVectors> p =
          ExpDifference<kAccuracy>(LoadRow<k()>(work.s, at, h), Fill<kVectors>(max));
      sum = hn::Add(sum, SumOfVectors(p));
      StoreRow<k()>(Mul(p, LoadRow<k()>(work.av, at, factors)), work.s, at, h);
    });
    hn::Store(sum, d, to.sum + h * kLanes);
  }
}

// Rows that will be read.
template <typename T>
HWY_INLINE void FetchTokens(const Input& tensor, std::int64_t batch, Range tokens,
                            std::int64_t column, std::int64_t columns, FetchAhead& ahead) {
  constexpr std::int64_t kSize = sizeof(T);
  ahead.Add(RowOf<T>(tensor, batch, tokens.begin) + column, tensor.row * kSize, columns * kSize,
            tokens.size());
}

template <typename T>
void Attend(const Problem& problem, std::int64_t batch, Range heads, Range tokens,
            const Workspace& work, const Partial& to) {
  const std::int64_t H = heads.size(), D = problem.D, E = problem.E, R = problem.R;
  const auto chunk = static_cast<std::int64_t>(ChunkSize());
  std::fill_n(to.max, H, kLowest);
  std::fill_n(to.sum, H * kLanes, 0.0f);
  for (std::int64_t first = tokens.begin; first < tokens.end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, tokens.end - first);
    const std::int64_t chunks = ChunksOf(count);
    const Range next{std::min(first + kBlock, problem.M), std::min(first + 2 * kBlock, problem.M)};
    LoadTransposed(RowOf<T>(problem.bk, batch, first), problem.bk.row, count, D, work.bk);
    LoadTransposed(RowOf<T>(problem.ak, batch, first) + heads.begin, problem.ak.row, count, H,
                   work.ak);
    LoadTransposed(RowOf<T>(problem.av, batch, first) + heads.begin, problem.av.row, count, H,
                   work.av);

    FetchAhead ahead;
    FetchTokens<T>(problem.bk, batch, next, 0, D, ahead);
    FetchTokens<T>(problem.ak, batch, next, heads.begin, H, ahead);
    FetchTokens<T>(problem.av, batch, next, heads.begin, H, ahead);
    FetchTokens<T>(problem.bv, batch, next, 0, E, ahead);
    ahead.Spread(PausesOf(problem.through_rank ? R : H, Padded(D), chunks * chunk) +
                 (problem.through_rank ? PausesOf(H, R, chunks * chunk) : 0) +
                 PausesOf(H, chunks * chunk, E));

    const StoreScores<T> scores{work.ak, work.s, ahead};
    if (problem.through_rank) {
      Multiply<Left::kStraight>(work.bq, work.bk, R, Padded(D), chunks,
                                AddToMatrix{work.t, false, ahead});
      Multiply<Left::kStraight>(work.aq, work.t, H, R, chunks, scores);
    } else {
      Multiply<Left::kStraight>(work.q, work.bk, H, Padded(D), chunks, scores);
    }
    Weigh<T>(problem, H, count, work, to);

    // As many columns of bv as a tile has: converted, they are still in L1 when they are used.
    const T* bv = RowOf<T>(problem.bv, batch, first);
    for (std::int64_t column = 0; column < E; column += kTileChunks * chunk) {
      const std::int64_t columns = std::min(E - column, kTileChunks * chunk);
      LoadRows(bv + column, problem.bv.row, count, columns, work.bv);
      for (std::int64_t c = 0; c < ChunksOf(columns); ++c) {
        std::fill(RowOf(work.bv, c, count), RowOf(work.bv, c, chunks * chunk), 0.0f);
      }
      const Panels out{to.out.data + column / chunk * to.out.panel, to.out.panel};
      Multiply<Left::kStraight>(work.s, work.bv, H, chunks * chunk, ChunksOf(columns),
                                AddToMatrix{out, first != tokens.begin, ahead});
    }
  }
  const DF d;
  for (std::int64_t h = 0; h < H; ++h) {
    float* sum = to.sum + h * kLanes;
    hn::Store(hn::SumOfLanes(d, hn::Load(d, sum)), d, sum);
  }
}

inline void Merge(const Problem& problem, Range rows, const Partial& from, const Partial& to) {
  const DF d;
  for (std::int64_t h = rows.begin; h < rows.end; ++h) {
    const float max = std::max(from.max[h], to.max[h]);
    const VF from_factor = Rescaling(from.max[h], max);
    const VF to_factor = Rescaling(to.max[h], max);
    const auto merge = [&](const float* a, float* b) ATTNOPS_INLINE_LAMBDA {
      hn::Store(hn::MulAdd(hn::Load(d, b), to_factor, hn::Mul(hn::Load(d, a), from_factor)), d, b);
    };
    to.max[h] = max;
    merge(from.sum + h * kLanes, to.sum + h * kLanes);
    for (std::int64_t chunk = 0; chunk < ChunksOf(problem.E); ++chunk) {
      merge(RowOf(from.out, chunk, h), RowOf(to.out, chunk, h));
      merge(RowOf(from.out, chunk, h) + kLanes, RowOf(to.out, chunk, h) + kLanes);
    }
  }
}

inline void Copy(const Problem& problem, Range rows, const Partial& from, const Partial& to) {
  const auto size = static_cast<std::int64_t>(ChunkSize());
  std::copy(from.max + rows.begin, from.max + rows.end, to.max + rows.begin);
  std::copy(from.sum + rows.begin * kLanes, from.sum + rows.end * kLanes,
            to.sum + rows.begin * kLanes);
  for (std::int64_t chunk = 0; chunk < ChunksOf(problem.E); ++chunk) {
    std::copy_n(RowOf(from.out, chunk, rows.begin), rows.size() * size,
                RowOf(to.out, chunk, rows.begin));
  }
}

template <typename T>
void Finish(const Problem& problem, std::int64_t batch, std::int64_t first, Range rows,
            const Partial& from) {
  T* out = static_cast<T*>(problem.out.data) + batch * problem.out.batch;
  for (std::int64_t h = rows.begin; h < rows.end; ++h) {
    T* row = out + (first + h) * problem.out.row;
    const Chunk factor = Fill<2>(problem.value_scale / from.sum[h * kLanes]);
    ForEachChunk(problem.E,
                 [&](std::int64_t column, std::size_t n, std::int64_t chunk) ATTNOPS_INLINE_LAMBDA {
                   StoreChunkN(Mul(LoadChunk(RowOf(from.out, chunk, h)), factor), row + column, n);
                 });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tpa_decode
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TPA_DECODE_FORWARD_INL_H_
