// Attention of a block of queries to all keys of several heads, with scores through the ranks: the
// products of the heads' shared factors are computed once for all heads.

#if defined(ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_RANKS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_RANKS_INL_H_
#undef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_RANKS_INL_H_
#else
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_RANKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "src/core/assert.h"
#include "src/ops/tensor_product_attention/prefill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops::tensor_product_attention {
namespace HWY_NAMESPACE {

// Stores the products of a chunk of queries with rows of bk, a column chunk for each rank of bq, in
// the tiles of its two vectors: (keys·R_k, R_q, lanes).
struct StoreRankProducts {
  float* tiles[2];
  std::int64_t ranks;  // R_q
  Prefetcher& prefetcher;

  HWY_INLINE std::size_t Elements(std::int64_t) const { return ChunkSize(); }
  HWY_INLINE void operator()(std::int64_t row, std::int64_t r, std::size_t,
                             const Chunk& sums) const {
    const std::int64_t at = (row * ranks + r) * kLanes;
    hn::Store(sums.v[0], DF(), tiles[0] + at);
    hn::Store(sums.v[1], DF(), tiles[1] + at);
  }
};

// The scores of a vector of queries of one head with some keys.
struct RankScores {
  const float* aq;            // (R_q, lanes)
  const float* ak;            // (keys, R_k)
  const float* products;      // (keys, R_k, R_q, lanes)
  std::int64_t ranks;         // R_k
  std::int64_t keys, hidden;  // lane i sees key j if i ≥ j + hidden
  float* to;                  // a row of a chunk for each key

  // Returns the maximum of `max` and of all scores that are not NaN.
  template <int kRanks, bool kMasked>
  HWY_INLINE VF Compute(VF max, std::int64_t k_ranks) const {
    const DF d;
    const Pack<kRanks> left =
        MakePack<kRanks>([&](int r) ATTNOPS_INLINE_LAMBDA { return hn::Load(d, aq + r * kLanes); });
    const float* HWY_RESTRICT factor = ak;
    const float* HWY_RESTRICT from = products;
    float* HWY_RESTRICT row = to;
    const auto lanes = hn::Iota(DI(), static_cast<std::int32_t>(-hidden));
    const auto next = [&]() ATTNOPS_INLINE_LAMBDA {
      VF sum = hn::Mul(left.v[0], hn::Load(d, from));
      ForEach<kRanks - 1>([&](auto i) ATTNOPS_INLINE_LAMBDA {
        constexpr int r = decltype(i)::value + 1;
        sum = hn::MulAdd(left.v[r], hn::Load(d, from + r * kLanes), sum);
      });
      from += kRanks * kLanes;
      return sum;
    };
    for (std::int64_t key = 0; key < keys; ++key) {
      VF score = hn::Mul(next(), hn::Set(d, *factor++));
      for (std::int64_t s = 1; s < k_ranks; ++s) {
        score = hn::MulAdd(next(), hn::Set(d, *factor++), score);
      }
      if constexpr (kMasked) {
        const auto unseen = hn::Gt(hn::Set(DI(), static_cast<std::int32_t>(key)), lanes);
        score = hn::IfThenElse(hn::RebindMask(d, unseen),
                               hn::Set(d, -std::numeric_limits<float>::infinity()), score);
      }
      hn::Store(score, d, row);
      max = hn::Max(score, max);  // max is never a NaN
      row += ChunkSize();
    }
    return max;
  }

  template <int kRanks>
  HWY_NOINLINE VF OfRanks(VF max) const {
    const bool masked = keys - 1 + hidden > 0;
    if (masked) return Compute<kRanks, true>(max, ranks);
    return ranks == 2 ? Compute<kRanks, false>(max, 2) : Compute<kRanks, false>(max, ranks);
  }

  HWY_INLINE VF OfRanks(std::int64_t q_ranks, VF max) const {
    static_assert(kMostQueryRanks == 8);
    switch (q_ranks) {
      case 1:
        return OfRanks<1>(max);
      case 2:
        return OfRanks<2>(max);
      case 3:
        return OfRanks<3>(max);
      case 4:
        return OfRanks<4>(max);
      case 5:
        return OfRanks<5>(max);
      case 6:
        return OfRanks<6>(max);
      case 7:
        return OfRanks<7>(max);
      default:
        return OfRanks<8>(max);
    }
  }
};

// exp(s − max) of a vector of queries in the place of s, whose rows are a chunk apart; returns its
// sum over the keys. A function of its own: where it is inlined twice, the compiler may fuse the
// product in exp with the sum in one place and not in the other.
template <typename T>
HWY_NOINLINE VF ExpVectors(float* s, std::int64_t keys, VF max) {
  constexpr Accuracy kAccuracy = AccuracyFor<T>();
  const DF d;
  VF sum = hn::Zero(d);
  std::int64_t key = 0;
  // Eight vectors at a time fill the latency of exp.
  for (; key + 8 <= keys; key += 8, s += 8 * ChunkSize()) {
    const Pack<8> x =
        MakePack<8>([&](int i) ATTNOPS_INLINE_LAMBDA { return hn::Load(d, s + i * ChunkSize()); });
    const Pack<8> p = ExpDifference<kAccuracy>(x, Fill<8>(max));
    sum = hn::Add(sum, SumOfVectors(p));
    ForEach<8>([&](auto i)
                   ATTNOPS_INLINE_LAMBDA { hn::Store(p.v[i()], d, s + i() * ChunkSize()); });
  }
  for (; key < keys; ++key, s += ChunkSize()) {
    const Pack<1> p = ExpDifference<kAccuracy>(Pack<1>{{hn::Load(d, s)}}, Pack<1>{{max}});
    sum = hn::Add(sum, p.v[0]);
    hn::Store(p.v[0], d, s);
  }
  return sum;
}

// A block of queries and some heads, whose keys pass by in blocks.
template <typename T>
class RankBlock {
 public:
  RankBlock(const PrefillProblem& problem, std::int64_t batch, Range heads, Range queries,
            const PrefillWorkspace& work)
      : problem_(problem),
        batch_(batch),
        heads_(heads),
        queries_(queries),
        work_(work),
        ranks_(work.ranks) {}

  void Attend() const {
    const std::int64_t places = Padded(queries_.size()) * heads_.size();
    LoadQueries();
    std::fill_n(work_.max, places, kLowest);
    std::fill_n(work_.sum, places, 0.0f);
    const std::int64_t end = problem_.KeysOf(batch_, queries_.end - 1);
    for (std::int64_t first = 0; first < end; first += ranks_.keys) {
      const BlockPair pair(problem_, queries_, {first, std::min(end, first + ranks_.keys)});
      LoadKeys(pair.keys);
      MultiplyRanks(pair);
      for (std::int64_t head = 0; head < heads_.size(); head += kHeadsTogether) {
        const Range together{head, std::min(heads_.size(), head + kHeadsTogether)};
        Weigh(pair, together);
        for (std::int64_t h = together.begin; h < together.end; ++h) {
          AddWeightedValues(pair, h, ranks_.weights.At(h - together.begin));
        }
      }
    }
    for (std::int64_t h = 0; h < heads_.size(); ++h) {
      const std::int64_t at = h * Padded(queries_.size());
      StoreOutput<T>(problem_, batch_, heads_.begin + h, queries_, end,
                     {work_.max + at, work_.sum + at, ranks_.out.At(h)});
    }
  }

 private:
  // aq of a vector of queries of a head: (R_q, lanes).
  float* FactorsOfQueries(std::int64_t head, std::int64_t vector) const {
    const std::int64_t vectors = Padded(queries_.size()) / kLanes;
    return ranks_.aq + (head * vectors + vector) * problem_.Rq * kLanes;
  }
  float* FactorsOfKeys(std::int64_t head) const {
    return ranks_.ak + head * ranks_.keys * problem_.Rk;
  }
  float* Tile(std::int64_t vector) const { return ranks_.products + vector * ranks_.tile; }

  void LoadQueries() const {
    const auto chunk = static_cast<std::int64_t>(ChunkSize());
    const std::int64_t N = queries_.size(), Rq = problem_.Rq;
    for (std::int64_t c = 0; c < ChunksOf(N); ++c) {
      for (std::int64_t r = 0; r < Rq; ++r) {
        LoadTransposed(RowAt<T>(problem_.bq, batch_, r, queries_.begin + c * chunk),
                       problem_.bq.token, std::min(chunk, N - c * chunk), problem_.D,
                       Panels{RowOf(ranks_.bq, c * Rq + r, 0), ranks_.bq.panel});
      }
    }
    std::fill_n(ranks_.aq, heads_.size() * Padded(N) * Rq, 0.0f);
    for (std::int64_t i = 0; i < N; ++i) {
      for (std::int64_t h = 0; h < heads_.size(); ++h) {
        const T* from = RowAt<T>(problem_.aq, batch_, heads_.begin + h, queries_.begin + i);
        float* to = FactorsOfQueries(h, i / kLanes) + i % kLanes;
        for (std::int64_t r = 0; r < Rq; ++r) {
          to[r * kLanes] = problem_.score_scale * ToFloat(from[r]);
        }
      }
    }
  }

  void LoadKeys(Range keys) const {
    const std::int64_t Rk = problem_.Rk;
    for (std::int64_t j = 0; j < keys.size(); ++j) {
      for (std::int64_t s = 0; s < Rk; ++s) {
        LoadRow<false>(RowAt<T>(problem_.bk, batch_, s, keys.begin + j), problem_.D, 1.0f,
                       ranks_.bk, j * Rk + s);
      }
      for (std::int64_t h = 0; h < heads_.size(); ++h) {
        const T* from = RowAt<T>(problem_.ak, batch_, heads_.begin + h, keys.begin + j);
        float* to = FactorsOfKeys(h) + j * Rk;
        for (std::int64_t s = 0; s < Rk; ++s) to[s] = ToFloat(from[s]);
      }
    }
  }

  // ⟨bq[n,r], bk[m,s]⟩ of all queries with the keys that one of their chunk sees.
  void MultiplyRanks(const BlockPair& pair) const {
    Prefetcher nothing;
    for (std::int64_t c = pair.chunk; c < ChunksOf(queries_.size()); ++c) {
      Product<Left::kStraight>(
          work_.pairs, ranks_.bk, Panels{RowOf(ranks_.bq, c * problem_.Rq, 0), ranks_.bq.panel},
          pair.KeysOfChunk(c) * problem_.Rk, Padded(problem_.D), problem_.Rq,
          StoreRankProducts{{Tile(2 * c), Tile(2 * c + 1)}, problem_.Rq, nothing});
    }
  }

  // The weights of a few heads. A tile of products stays in L1 for them.
  void Weigh(const BlockPair& pair, Range heads) const {
    const auto chunk = static_cast<std::int64_t>(ChunkSize());
    for (std::int64_t c = pair.chunk; c < ChunksOf(queries_.size()); ++c) {
      for (std::int64_t half = 0; half < 2; ++half) {
        for (std::int64_t h = heads.begin; h < heads.end; ++h) {
          const Panels weights = ranks_.weights.At(h - heads.begin);
          WeighVector(pair, h, 2 * c + half,
                      {weights.data + c * weights.panel + half * chunk / 2, 0});
        }
      }
    }
  }

  void WeighVector(const BlockPair& pair, std::int64_t head, std::int64_t vector,
                   const Panels& to) const {
    const DF d;
    const std::int64_t lane = vector * kLanes;
    const std::int64_t place = head * Padded(queries_.size()) + lane;
    const std::int64_t keys = pair.KeysOfChunk(vector / 2);
    const RankScores scores{FactorsOfQueries(head, vector),
                            FactorsOfKeys(head),
                            Tile(vector),
                            problem_.Rk,
                            keys,
                            pair.hidden - lane,
                            to.data};
    const VF old_max = hn::Load(d, work_.max + place);
    VF max = scores.OfRanks(problem_.Rq, old_max);
    VF block_sum = ExpVectors<T>(to.data, keys, max);
    // A NaN among the scores makes their sum NaN. The weights have overwritten the scores.
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Eq(block_sum, block_sum)))) {
      scores.OfRanks(problem_.Rq, old_max);
      max = ScoresWithoutRanks(pair, head, vector, to, old_max);
      block_sum = ExpVectors<T>(to.data, keys, max);
    }
    const VF factor = ExpDifference<Accuracy::kFloat32>(Pack<1>{{old_max}}, Pack<1>{{max}}).v[0];
    hn::Store(factor, d, work_.factor + place);
    hn::Store(max, d, work_.max + place);
    hn::Store(hn::MulAdd(hn::Load(d, work_.sum + place), factor, block_sum), d, work_.sum + place);
  }

  // Puts the scores of formed queries and keys in the place of those that are NaN; returns the
  // maximum. An infinity in bq or bk meets factors of both signs in the sum over the ranks, which
  // makes a score NaN that is infinite.
  HWY_NOINLINE VF ScoresWithoutRanks(const BlockPair& pair, std::int64_t head, std::int64_t vector,
                                     const Panels& to, VF max) const {
    const DF d;
    const auto chunk = static_cast<std::int64_t>(ChunkSize());
    const std::int64_t first = vector / 2 * chunk, keys = pair.KeysOfChunk(vector / 2);
    const Range queries{queries_.begin + first,
                        std::min(queries_.end, queries_.begin + first + chunk)};
    Prefetcher nothing;
    FormQueryBlock<T>(problem_, batch_, heads_.begin + head, queries, work_);
    FormRows<T>(KeyFactors(problem_, batch_, heads_.begin + head),
                {pair.keys.begin, pair.keys.begin + keys}, work_.k);
    Product<Left::kStraight>(work_.pairs, work_.k, work_.q_transposed, keys, Padded(problem_.D), 1,
                             AddToMatrix{work_.s, false, nothing});
    BlockPair(problem_, queries, pair.keys).Mask(work_.s);
    for (std::int64_t key = 0; key < keys; ++key) {
      const VF before = hn::Load(d, to.data + key * chunk);
      const VF formed = hn::Load(d, RowOf(work_.s, 0, key) + vector % 2 * kLanes);
      const VF score = hn::IfThenElse(hn::Eq(before, before), before, formed);
      hn::Store(score, d, to.data + key * chunk);
      max = hn::Max(score, max);
    }
    return max;
  }

  void AddWeightedValues(const BlockPair& pair, std::int64_t head, const Panels& weights) const {
    FormRows<T>(ValueFactors(problem_, batch_, heads_.begin + head), pair.keys, work_.v);
    MultiplyWeights(problem_, pair, work_, weights, work_.factor + head * Padded(queries_.size()),
                    ranks_.out.At(head));
  }

  const PrefillProblem& problem_;
  const std::int64_t batch_;
  const Range heads_, queries_;
  const PrefillWorkspace& work_;
  const RanksWorkspace& ranks_;
};

template <typename T>
void AttendQueries(const PrefillProblem& problem, std::int64_t batch, Range heads, Range queries,
                   const PrefillWorkspace& work) {
  if (problem.through_ranks) return RankBlock<T>(problem, batch, heads, queries, work).Attend();
  for (std::int64_t head = heads.begin; head < heads.end; ++head) {
    AttendHead<T>(problem, batch, head, queries, work);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops::tensor_product_attention
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_PREFILL_RANKS_INL_H_
