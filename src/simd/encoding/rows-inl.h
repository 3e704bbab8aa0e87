// Rows of the position encodings: loading and storing their parts, encoding them, and going
// through all of a region.

#if defined(ATTNOPS_SRC_SIMD_ENCODING_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNOPS_SRC_SIMD_ENCODING_ROWS_INL_H_
#undef ATTNOPS_SRC_SIMD_ENCODING_ROWS_INL_H_
#else
#define ATTNOPS_SRC_SIMD_ENCODING_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "src/simd/encoding/encoding.h"
#include "src/simd/io-inl.h"
#include "src/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnops {
namespace HWY_NAMESPACE {

// Rows are worked on in pieces of up to this many chunks, half as many of each of two parts. On
// AVX-512 that is eight vectors: they hide the latency of a multiply-add, four do not. Targets of
// old CPUs have small pieces, for small kernels.
#undef ATTNOPS_PIECE_CHUNKS
#if HWY_TARGET == HWY_AVX3
#define ATTNOPS_PIECE_CHUNKS 4
#elif HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
#define ATTNOPS_PIECE_CHUNKS 1
#else
#define ATTNOPS_PIECE_CHUNKS 2
#endif

// What the rows of a call have in common.
struct RowShape {
  std::size_t part;     // elements of a part
  std::size_t encoded;  // of them those with an angle
  std::size_t width;    // of a part in tables: padded to chunks
  bool stream;          // whether the output bypasses the caches; then parts are whole chunks

  RowShape(std::size_t part, std::size_t encoded, std::size_t width)
      : part(part), encoded(encoded), width(width), stream(false) {}
  RowShape(const EncodingProblem& problem, const AngleTable& table)
      : part(static_cast<std::size_t>(problem.part)),
        encoded(static_cast<std::size_t>(problem.encoded)),
        width(static_cast<std::size_t>(table.width)),
        stream(problem.stream) {}
};

// K chunks of each of kParts parts, one part after the other.
template <int kParts, int K>
using Piece = Pack<2 * kParts * K>;

// The n elements from j on of each part of a tensor's row; K > 1 only for n of whole chunks.
template <int kParts, int K, typename T>
HWY_INLINE Piece<kParts, K> LoadPiece(const RowShape& shape, const T* row, std::size_t j,
                                      std::size_t n) {
  if constexpr (kParts == 2) {
    return Join(LoadPiece<1, K>(shape, row, j, n), LoadPiece<1, K>(shape, row + shape.part, j, n));
  } else if constexpr (K == 1) {
    return LoadChunkN(row + j, n);
  } else {
    return LoadChunks<K>(row + j);
  }
}
// Results are computed from tensors of type T: see Payload.
template <int kParts, int K, typename T>
HWY_INLINE void StorePiece(const RowShape& shape, const Piece<kParts, K>& piece, T* row,
                           std::size_t j, std::size_t n) {
  if constexpr (kParts == 2) {
    StorePiece<1, K>(shape, FirstHalf(piece), row, j, n);
    StorePiece<1, K>(shape, SecondHalf(piece), row + shape.part, j, n);
  } else if constexpr (K > 1) {
    StoreChunks<K, Payload::kUpper>(piece, row + j, shape.stream);
  } else if (HWY_LIKELY(n == ChunkSize())) {
    StoreChunks<1, Payload::kUpper>(piece, row + j, shape.stream);
  } else {
    StoreChunkN<Payload::kUpper>(piece, row + j, n);
  }
}

// The same of a float32 row whose parts are padded to `width`.
template <int kParts, int K>
HWY_INLINE Piece<kParts, K> LoadTable(const RowShape& shape, const float* row, std::size_t j) {
  if constexpr (kParts == 2) {
    return Join(LoadChunks<K>(row + j), LoadChunks<K>(row + shape.width + j));
  } else {
    return LoadChunks<K>(row + j);
  }
}
template <int kParts, int K>
HWY_INLINE void StoreTable(const RowShape& shape, const Piece<kParts, K>& piece, float* row,
                           std::size_t j) {
  if constexpr (kParts == 2) {
    StoreChunks<K>(FirstHalf(piece), row + j);
    StoreChunks<K>(SecondHalf(piece), row + shape.width + j);
  } else {
    StoreChunks<K>(piece, row + j);
  }
}

// The lanes of the first n elements of each part of a piece of single chunks.
template <int kParts, typename T>
HWY_INLINE Pack<2 * kParts, MF> FirstOfParts(std::size_t n) {
  const ChunkMask mask = FirstElements<T>(n);
  if constexpr (kParts == 2) {
    return {{mask.v[0], mask.v[1], mask.v[0], mask.v[1]}};
  } else {
    return mask;
  }
}

// The cos and sin of K chunks of angles.
template <int K>
struct CosSin {
  Pack<2 * K> cos, sin;
};

// A token's angles: a row of a table,
struct TableAngles {
  const float* cos;
  std::size_t width;

  template <int K>
  HWY_INLINE CosSin<K> At(std::size_t j) const {
    return {LoadChunks<K>(cos + j), LoadChunks<K>(cos + width + j)};
  }
};
// or those of another token and a step from it. As FillTable computes them, without the memory.
struct SteppedAngles {
  TableAngles base, step;

  template <int K>
  HWY_INLINE CosSin<K> At(std::size_t j) const {
    const CosSin<K> a = base.At<K>(j), b = step.At<K>(j);
    return {NegMulAdd(a.sin, b.sin, Mul(a.cos, b.cos)), MulAdd(a.sin, b.cos, Mul(a.cos, b.sin))};
  }
};
// One row of each tensor.
template <typename T>
struct Row {
  const T* x;
  const T* d_out;
  T* out;
  const float* cos;
  const float* step;  // from there, if the table has steps
  const float* columns;
};

// The encodings; kHasPrefix where some tokens may be without a position. Encode turns a plain piece
// into an encoded one; Decode is its transpose, and its inverse for kRotate.

struct RowsWithTable {
  template <typename T>
  static HWY_INLINE TableAngles AnglesOf(const RowShape& shape, const Row<T>& row) {
    return {row.cos, shape.width};
  }
};

struct RotateRows : RowsWithTable {
  static constexpr int kPlainParts = 2;
  static constexpr int kPieceChunks = std::max(1, ATTNOPS_PIECE_CHUNKS / 2);
  static constexpr bool kHasPrefix = false;

  template <int K>
  static HWY_INLINE Piece<2, K> Encode(const Piece<2, K>& y, const CosSin<K>& angle) {
    return Join(NegMulAdd(SecondHalf(y), angle.sin, Mul(FirstHalf(y), angle.cos)),
                MulAdd(SecondHalf(y), angle.cos, Mul(FirstHalf(y), angle.sin)));
  }
  template <int K>
  static HWY_INLINE Piece<2, K> Decode(const Piece<2, K>& d, const CosSin<K>& angle) {
    return Join(MulAdd(SecondHalf(d), angle.sin, Mul(FirstHalf(d), angle.cos)),
                NegMulAdd(FirstHalf(d), angle.sin, Mul(SecondHalf(d), angle.cos)));
  }
  template <int K>
  static HWY_INLINE Piece<2, K> EncodeUnplaced(const Piece<2, K>& y) {
    return y;
  }
  template <int K>
  static HWY_INLINE Piece<2, K> DecodeUnplaced(const Piece<2, K>& d) {
    return d;
  }
};

struct CosineRows : RowsWithTable {
  static constexpr int kPlainParts = 1;
  static constexpr int kPieceChunks = ATTNOPS_PIECE_CHUNKS;
  static constexpr bool kHasPrefix = true;

  template <int K>
  static HWY_INLINE Piece<2, K> Encode(const Piece<1, K>& y, const CosSin<K>& angle) {
    return Join(Mul(y, angle.cos), Mul(y, angle.sin));
  }
  template <int K>
  static HWY_INLINE Piece<1, K> Decode(const Piece<2, K>& d, const CosSin<K>& angle) {
    return MulAdd(SecondHalf(d), angle.sin, Mul(FirstHalf(d), angle.cos));
  }
  template <int K>
  static HWY_INLINE Piece<2, K> EncodeUnplaced(const Piece<1, K>& y) {
    return Join(y, Fill<2 * K>(0.0f));
  }
  template <int K>
  static HWY_INLINE Piece<1, K> DecodeUnplaced(const Piece<2, K>& d) {
    return FirstHalf(d);
  }
};

// The encoding E of tokens without a position. They are few: small pieces, for a small kernel.
template <class E>
struct Unplaced : E {
  static constexpr int kPieceChunks = 1;

  template <int K>
  static HWY_INLINE Piece<2, K> Encode(const Piece<E::kPlainParts, K>& y, const CosSin<K>&) {
    return E::template EncodeUnplaced<K>(y);
  }
  template <int K>
  static HWY_INLINE Piece<E::kPlainParts, K> Decode(const Piece<2, K>& d, const CosSin<K>&) {
    return E::template DecodeUnplaced<K>(d);
  }
};

// The encoding E with tables that have steps.
template <class E>
struct Stepped : E {
  template <typename T>
  static HWY_INLINE SteppedAngles AnglesOf(const RowShape& shape, const Row<T>& row) {
    return {{row.cos, shape.width}, {row.step, shape.width}};
  }
};

// The n elements from j on of each part, with the angles of the row. Of a single chunk some may
// have no angle.
template <class E, int K, typename T, class RowAngles>
HWY_INLINE Piece<2, K> EncodePiece(const RowShape& shape, const Piece<E::kPlainParts, K>& y,
                                   const RowAngles& angles, std::size_t j, std::size_t n) {
  const Piece<2, K> encoded = E::template Encode<K>(y, angles.template At<K>(j));
  if constexpr (K == 1) {
    if (HWY_UNLIKELY(j + n > shape.encoded)) {
      const std::size_t placed = std::max(shape.encoded, j) - j;
      return Select(FirstOfParts<2, T>(placed), encoded, E::template EncodeUnplaced<K>(y));
    }
  }
  return encoded;
}
template <class E, int K, typename T, class RowAngles>
HWY_INLINE Piece<E::kPlainParts, K> DecodePiece(const RowShape& shape, const Piece<2, K>& d,
                                                const RowAngles& angles, std::size_t j,
                                                std::size_t n) {
  const Piece<E::kPlainParts, K> decoded = E::template Decode<K>(d, angles.template At<K>(j));
  if constexpr (K == 1) {
    if (HWY_UNLIKELY(j + n > shape.encoded)) {
      const std::size_t placed = std::max(shape.encoded, j) - j;
      return Select(FirstOfParts<E::kPlainParts, T>(placed), decoded,
                    E::template DecodeUnplaced<K>(d));
    }
  }
  return decoded;
}

// body<K>(j, n) for all pieces of a row of encoding E, large ones of elements before `whole` and
// then single chunks.
template <class E, class Body>
HWY_INLINE void ForEachPiece(const RowShape& shape, std::size_t whole, const Body& body) {
  constexpr int K = E::kPieceChunks;
  const std::size_t chunk = ChunkSize();
  std::size_t j = 0;
  if constexpr (K == 4) {
    for (; j + 4 * chunk <= whole; j += 4 * chunk) body.template operator()<4>(j, 4 * chunk);
  }
  if constexpr (K >= 2) {
    for (; j + 2 * chunk <= whole; j += 2 * chunk) body.template operator()<2>(j, 2 * chunk);
  }
  for (; j < shape.part; j += chunk) {
    body.template operator()<1>(j, std::min(chunk, shape.part - j));
  }
}

template <typename T, typename Pointer>
HWY_INLINE T* RowOf(const RowTensor<Pointer>& tensor, std::int64_t b, std::int64_t t,
                    std::int64_t h) {
  return static_cast<T*>(tensor.data) + b * tensor.batch + t * tensor.token + h * tensor.head;
}

template <typename T>
HWY_INLINE void PrefetchRow(const T* row, std::int64_t n) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < n; i += kLine) hwy::Prefetch(row + i);
}

// How far a token of all batches is fetched ahead.
constexpr std::int64_t kTokensAhead = 4;

// Runs Kernel::Run on all rows of a region, Kernel::kRowSet at a time and the last of a stretch
// singly. A stretch is rows whose distance is the same: all heads of a token or all tokens of a
// head, neighbours in memory, followed by the same of the next batch, which shares its angles;
// meanwhile that batch's rows are fetched. The hardware, which follows a stream within a page,
// does not do that. Or it is a token of all batches, followed by the next token: as many streams
// as batches, which the hardware follows at once.
template <class Kernel, typename T>
HWY_INLINE void ForEachRowSet(const EncodingProblem& problem, const EncodingRegion& region,
                              const AngleTable& table, float* scratch,
                              const EncodingColumns& columns) {
  constexpr int kRowSet = Kernel::kRowSet;
  static_assert(kRowSet <= kMaxRowSet);
  const RowShape shape(problem, table);
  const bool tokens_inner = problem.tokens_inner;
  const std::int64_t tokens = region.token_end - region.token_begin;
  const std::int64_t heads = region.head_end - region.head_begin;
  const std::int64_t batches = region.batch_end - region.batch_begin;
  const bool by_batch = problem.by_batch;
  const auto of_stretch = [&](std::int64_t head, std::int64_t token, std::int64_t batch)
                              ATTNOPS_INLINE_LAMBDA {
                                return by_batch ? batch : tokens_inner ? token : head;
                              };
  const std::int64_t outer = tokens_inner ? heads : tokens;
  const std::int64_t middle = by_batch ? tokens : batches;
  const std::int64_t inner = of_stretch(heads, tokens, batches);
  // The first row of a stretch, and the step to the next.
  const auto first_row = [&](std::int64_t o, std::int64_t m) ATTNOPS_INLINE_LAMBDA {
    const std::int64_t t = region.token_begin + (by_batch ? m : tokens_inner ? 0 : o);
    const std::int64_t h = region.head_begin + (tokens_inner ? o : 0);
    const std::int64_t b = region.batch_begin + (by_batch ? 0 : m);
    return Row<T>{RowOf<const T>(problem.x, b, t, h),
                  RowOf<const T>(problem.d_out, b, t, h),
                  RowOf<T>(problem.out, b, t, h),
                  table.Cos(t - region.token_begin, h - region.head_begin),
                  table.Step(t - region.token_begin, h - region.head_begin),
                  columns.data == nullptr ? nullptr : columns.At(b, h)};
  };
  const auto step_of = [&](const auto& tensor) ATTNOPS_INLINE_LAMBDA {
    return of_stretch(tensor.head, tensor.token, tensor.batch);
  };
  const std::int64_t x_step = step_of(problem.x);
  const std::int64_t d_out_step = step_of(problem.d_out);
  const std::int64_t out_step = step_of(problem.out);
  const std::int64_t cos_step = of_stretch(table.RowStride(), table.TokenStride(), 0);
  const std::int64_t step_step =
      table.steps == nullptr ? 0 : of_stretch(table.block * table.RowStride(), 2 * table.width, 0);
  const std::int64_t columns_step =
      columns.data == nullptr ? 0 : of_stretch(columns.size, 0, columns.heads * columns.size);
  // The first row of the stretch that is fetched meanwhile.
  const auto next_row = [&](std::int64_t o, std::int64_t m,
                            const Row<T>& row) ATTNOPS_INLINE_LAMBDA {
    if (by_batch) {
      const std::int64_t token = region.token_begin + m;
      const std::int64_t ahead = std::min(kTokensAhead, problem.N - 1 - token);
      Row<T> next = row;
      next.x += ahead * problem.x.token;
      next.d_out += ahead * problem.d_out.token;
      return next;
    }
    return m + 1 < middle ? first_row(o, m + 1) : first_row(std::min(o + 1, outer - 1), 0);
  };

  Row<T> rows[kRowSet];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t m = 0; m < middle; ++m) {
      Row<T> row = first_row(o, m);
      Row<T> next = next_row(o, m, row);
      int count = 0;
      for (std::int64_t i = 0; i < inner; ++i) {
        if constexpr (Kernel::kReadsX) {
          PrefetchRow(next.x, Kernel::kPlainParts * problem.part);
          next.x += x_step;
        }
        if constexpr (Kernel::kReadsGradient) {
          PrefetchRow(next.d_out, 2 * problem.part);
          next.d_out += d_out_step;
        }
        rows[count] = row;
        row = {row.x + x_step,     row.d_out + d_out_step, row.out + out_step,
               row.cos + cos_step, row.step + step_step,   row.columns + columns_step};
        if (++count == kRowSet) {
          Kernel::template Run<kRowSet>(shape, rows, scratch);
          count = 0;
        }
      }
      if constexpr (kRowSet > 1) {
        for (int r = 0; r < count; ++r) Kernel::template Run<1>(shape, rows + r, scratch);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnops
HWY_AFTER_NAMESPACE();

#endif  // ATTNOPS_SRC_SIMD_ENCODING_ROWS_INL_H_
