// Small matrix products held in registers, in which attention spends its time.
//
// All of them are  acc[r][v] += A(r, n) * B(n, v)  over n, where A is read one number at a time and
// broadcast, and B one vector at a time. The vectors hold queries where scores and dP are made, and
// head columns where outputs and gradients are.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd_elements.h"

namespace aero::kernels::cpu {
namespace {

/// Rows and vectors of the register tile. With 32 registers 4 x 4 leaves room for operands and is
/// enough to hide the latency of the FMA (8 in flight); with 16 registers 4 x 2. One vector
/// loads B and four broadcasts serve 16 or 8 FMAs, so loads never bound it.
constexpr int kRows = 4;
constexpr int kColumns = kVectorRegisters == 32 ? 4 : 2;

/// A value known at compile time, to pass to generic lambdas.
template <int N>
struct Constant {
  static constexpr int value = N;
};

/// Calls function(Constant<count>) for 1 <= count <= kColumns.
template <class Function>
AERO_INLINE void with_columns(int count, Function&& function) {
  if constexpr (kColumns == 4) {
    if (count == 4) return function(Constant<4>{});
    if (count == 3) return function(Constant<3>{});
  }
  if (count == 2) return function(Constant<2>{});
  if (count == 1) return function(Constant<1>{});
}

/// Accumulators of a register tile.
template <class Real, int R, int C>
struct Tile {
  static constexpr int kDepth = 1;  ///< operands of a row in one product
  Vec<Real> at[R][C];

  AERO_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) at[r][v] = Vec<Real>{};
  }
  /// at[r][v] += a[r * row_stride] * b[v], for vectors First and up. Operand: Real, or Pair.
  template <int First = 0, class Operand>
  AERO_INLINE void add_product(const Operand* a, int64_t row_stride, const Operand* b,
                               int64_t /*b_stride*/) {
    decltype(load_operand(b)) column[C];
#pragma GCC unroll 4
    for (int v = First; v < C; ++v) column[v] = load_operand(b + v * kLanes<Real>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto row = splat_operand(a + r * row_stride);
#pragma GCC unroll 4
      for (int v = First; v < C; ++v) at[r][v] = multiply_add<Real>(row, column[v], at[r][v]);
    }
  }
  AERO_INLINE void finish() {}
};

/// A(r, n) = a.row(r)[n * step], B(n, v) = b.row(n)[...]. Product: a Tile, or what takes its place.
template <class Product, class Operand>
AERO_INLINE void multiply_rows(Product& product, Matrix<const Operand> a, Matrix<const Operand> b,
                               int64_t count, int64_t step = 1) {
  product.clear();
  int64_t n = 0;
  for (; n <= count - Product::kDepth; n += Product::kDepth)
    product.add_product(a.data + n * step, a.stride, b.row(n), b.stride);
  if constexpr (Product::kDepth > 1)
    if (n < count) product.add_last_product(a.data + n, a.stride, b.row(n), b.stride);
  product.finish();
}

/// Calls body(Constant<kRows>, row) for full groups of rows in [begin, end), then
/// body(Constant<1>, row) for the rest. With few columns groups of 2 kRows come first: fewer
/// accumulators would wait for each other, or for what they multiply to be loaded. Before both come
/// groups of `Most` rows, if that is more.
template <int Columns, int Most, class Body>
AERO_INLINE void for_row_groups(int64_t begin, int64_t end, Body&& body) {
  int64_t row = begin;
  if constexpr (Most > kRows)
    for (; row + Most <= end; row += Most) body(Constant<Most>{}, row);
  if constexpr (2 * Columns <= kColumns)
    for (; row + 2 * kRows <= end; row += 2 * kRows) body(Constant<2 * kRows>{}, row);
  for (; row + kRows <= end; row += kRows) body(Constant<kRows>{}, row);
  for (; row < end; ++row) body(Constant<1>{}, row);
}

/// Calls body(Constant<count>, first) for groups of at most kColumns of `vectors`, as even as they
/// come: a vector left alone would cost nearly as much as two.
template <class Body>
AERO_INLINE void for_column_groups(int64_t vectors, Body&& body) {
  for (int64_t first = 0; first < vectors;) {
    const int64_t left = vectors - first, groups = (left + kColumns - 1) / kColumns;
    const int64_t count = (left + groups - 1) / groups;
    with_columns(static_cast<int>(count), [&](auto columns) { body(columns, first); });
    first += count;
  }
}

}  // namespace
}  // namespace aero::kernels::cpu
