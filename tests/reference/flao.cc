#include "tests/reference/flao.h"

namespace attnops::reference {
namespace {

using Values = Flao::Values;

// For each of `count` matrices: c (rows, columns) = a·b, where element (i, k) of a is at
// i·a_row + k·a_column and (k, j) of b at k·b_row + j·b_column, both of the given sizes.
struct Operand {
  const Values& values;
  std::int64_t size, row, column;
};
Values Product(std::int64_t count, std::int64_t rows, std::int64_t depth, std::int64_t columns,
               const Operand& a, const Operand& b) {
  Values c(count * rows * columns);
  for (std::int64_t h = 0; h < count; ++h) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < depth; ++k) {
        const double left = a.values[h * a.size + i * a.row + k * a.column];
        for (std::int64_t j = 0; j < columns; ++j) {
          c[(h * rows + i) * columns + j] += left * b.values[h * b.size + k * b.row + j * b.column];
        }
      }
    }
  }
  return c;
}

Operand Straight(const Values& values, std::int64_t rows, std::int64_t columns) {
  return {values, rows * columns, columns, 1};
}
Operand Transposed(const Values& values, std::int64_t rows, std::int64_t columns) {
  return {values, rows * columns, 1, columns};
}

Values Times(const Values& a, const Values& b) {
  Values c(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) c[i] = a[i] * b[i];
  return c;
}

}  // namespace

Flao::Forward Flao::Run(const Values& q, const Values& k, const Values& v, const Values& g) const {
  const std::int64_t count = batch * heads;
  Forward result;
  result.kv = Product(count, d, m, e, Transposed(k, m, d), Straight(v, m, e));
  result.qkv = Product(count, n, d, e, Straight(q, n, d), Straight(result.kv, d, e));
  result.out = Times(g, result.qkv);
  return result;
}

Flao::Backward Flao::RunBackward(const Values& q, const Values& k, const Values& v, const Values& g,
                                 const Values& d_out) const {
  const std::int64_t count = batch * heads;
  const Forward forward = Run(q, k, v, g);
  const Values d_qkv = Times(d_out, g);
  Backward result;
  result.dg = Times(d_out, forward.qkv);
  result.dq = Product(count, n, e, d, Straight(d_qkv, n, e), Transposed(forward.kv, d, e));
  result.dkv = Product(count, d, n, e, Transposed(q, n, d), Straight(d_qkv, n, e));
  result.dk = Product(count, m, e, d, Straight(v, m, e), Transposed(result.dkv, d, e));
  result.dv = Product(count, m, d, e, Straight(k, m, d), Straight(result.dkv, d, e));
  return result;
}

}  // namespace attnops::reference
