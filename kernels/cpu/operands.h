// The operands of the register tiles: rows of the tensors as numbers of the type computed with, or
// as pairs of bfloat16; in place, copied, packed or transposed.
#pragma once

#include <type_traits>

#include "kernels/cpu/tile_registers.h"

namespace aero::kernels::cpu {
namespace {

/// Queries per tile: one register tile wide.
template <class Real>
constexpr int kQueryTile = kColumns * kLanes<Real>;

/// Rows of the largest product.
#if defined(__AMX_BF16__)
constexpr int kMostRows = kTileRows;
#else
constexpr int kMostRows = 2 * kRows;
#endif

AERO_INLINE constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
AERO_INLINE constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
AERO_INLINE constexpr int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// out[d][i] = rows[i][d] for d < columns and i < kQueryTile; zero for i >= count. Unit is what is
/// moved, an Element or a pair of them.
template <class Real, class Unit, class Element>
void load_transposed(Matrix<const Element> rows, int64_t count, int64_t columns, Real* out) {
  constexpr int lanes = kLanes<Real>;
  for (int64_t i = 0; i < count; i += lanes)
    for (int64_t d = 0; d < columns; d += lanes) {
      Vec<Real> block[lanes];
#pragma GCC unroll 16
      for (int r = 0; r < lanes; ++r) {
        const Unit* from = reinterpret_cast<const Unit*>(rows.row(i + r)) + d;
        block[r] = i + r < count ? load_part<Real>(from, columns - d) : Vec<Real>{};
      }
      transpose<Real>(block);
#pragma GCC unroll 16
      for (int r = 0; r < lanes; ++r)
        if (d + r < columns) store(out + (d + r) * kQueryTile<Real> + i, block[r]);
    }
}

/// rows[i][d] = in[d][i] * factors[i] for i < count; with `kAdds`, added to what is there.
template <bool kAdds = false, class Real, class Element>
void store_transposed(const Real* in, const Real* factors, Matrix<Element> rows, int64_t count,
                      int64_t columns) {
  constexpr int lanes = kLanes<Real>;
  for (int64_t i = 0; i < count; i += lanes) {
    const Vec<Real> factor = load(factors + i);
    for (int64_t d = 0; d < columns; d += lanes) {
      Vec<Real> block[lanes];
#pragma GCC unroll 16
      for (int r = 0; r < lanes; ++r)
        block[r] =
            d + r < columns ? load(in + (d + r) * kQueryTile<Real> + i) * factor : Vec<Real>{};
      transpose<Real>(block);
#pragma GCC unroll 16
      for (int r = 0; r < lanes; ++r) {
        if (i + r >= count) continue;
        Element* const to = rows.row(i + r) + d;
        if constexpr (kAdds) block[r] += load_part<Real>(to, columns - d);
        store_part<Real>(to, block[r], columns - d);
      }
    }
  }
}

/// Vector registers need no preparation.
struct NoRegisters {
  explicit NoRegisters(int64_t /*head_dim*/) {}
};

/// Operands are numbers of type R, in place where the tensor holds those already.
template <class E, class R>
struct Single {
  using Element = E;
  using Real = R;
  using Operand = R;
  static constexpr int kPack = 1;               ///< elements per operand
  static constexpr int kUnit = 1;               ///< sums go over multiples of it, zeros at the end
  static constexpr int kGroup = kRows;          ///< rows of the largest product
  static constexpr bool kColumnsApart = false;  ///< see weighted_rows
  template <int Rows, int Columns>
  using Product = Tile<Real, Rows, Columns>;
  using Registers = NoRegisters;  ///< one lives in a thread while it makes products

  /// `count` rows of operands, contiguous along a row. Where `copy` is set or the type differs they
  /// are copied to `buffer`, as rows of whole vectors.
  static Matrix<const Operand> rows(Matrix<const Element> from, int64_t count, int64_t columns,
                                    bool copy, Operand* buffer) {
    if constexpr (sizeof(Element) == sizeof(Real)) {
      if (!copy) return from;
    }
    const Matrix<Operand> to{buffer, round_up(columns, kLanes<Real>)};
    for (int64_t i = 0; i < count; ++i)
      for (int64_t d = 0; d < columns; d += kLanes<Real>)
        store(to.row(i) + d, load_part<Real>(from.row(i) + d, columns - d));
    return {to.data, to.stride};
  }
  /// The same with kPack rows in one: operand d of row n holds element d of rows kPack * n and up.
  static Matrix<const Operand> packed_rows(Matrix<const Element> from, int64_t count,
                                           int64_t columns, bool copy, Operand* buffer) {
    return rows(from, count, columns, copy, buffer);
  }
  /// What a product sums with weights: packed rows. Where kColumnsApart is set, operand d of packed
  /// row n is at d * stride + n, not n * stride + d.
  static Matrix<const Operand> weighted_rows(Matrix<const Element> from, int64_t count,
                                             int64_t columns, bool copy, Operand* buffer) {
    return rows(from, count, columns, copy, buffer);
  }
  /// Operands that its buffer must hold.
  static int64_t weighted_size(int64_t count, int64_t columns) {
    return count * round_up(columns, kLanes<Real>);
  }
  /// out[d][i] = operand d of row i.
  static void transposed(Matrix<const Element> rows, int64_t count, int64_t columns, Operand* out) {
    load_transposed<Real, Element>(rows, count, columns, out);
  }
  /// One vector for each of the kPack rows, packed.
  static AERO_INLINE void store_packed(Operand* to, const Vec<Real> (&x)[kPack]) {
    store(to, x[0]);
  }
  /// One vector, contiguous along a row; `at` counts elements.
  static AERO_INLINE void store_row(Operand* rows, int64_t at, Vec<Real> x) { store(rows + at, x); }
};

#if defined(AERO_MULTIPLIES_PAIRS)
/// Operands are pairs of bfloat16; takes even head widths.
struct Paired {
  using Element = BFloat16;
  using Real = float;
  using Operand = Pair;
  static constexpr int kPack = 2, kUnit = 2, kGroup = kRows;
  static constexpr bool kColumnsApart = false;
  template <int Rows, int Columns>
  using Product = Tile<float, Rows, Columns>;
  using Registers = NoRegisters;

  static Matrix<const Pair> rows(Matrix<const BFloat16> from, int64_t count, int64_t columns,
                                 bool copy, Pair* buffer) {
    if (!copy && from.stride % 2 == 0)
      return {reinterpret_cast<const Pair*>(from.data), from.stride / 2};
    const int64_t pairs = columns / 2;
    for (int64_t i = 0; i < count; ++i)
      __builtin_memcpy(buffer + i * pairs, from.row(i),
                       static_cast<size_t>(columns) * sizeof(BFloat16));
    return {buffer, pairs};
  }
  static Matrix<const Pair> packed_rows(Matrix<const BFloat16> from, int64_t count, int64_t columns,
                                        bool, Pair* buffer) {
    constexpr int lanes = kLanes<float>;
    const int64_t stride = round_up(columns, lanes);
    for (int64_t i = 0; i < count; i += 2) {
      const BFloat16* low = from.row(i);
      const BFloat16* high = i + 1 < count ? low + from.stride : nullptr;
      Pair* to = buffer + i / 2 * stride;
      for (int64_t d = 0; d < columns; d += lanes) {
        BFloat16 some[2][lanes];
        const BFloat16 *a = low + d, *b = high + d;
        if (!high || columns - d < lanes) {
          for (int64_t n = 0; n < lanes; ++n) {
            some[0][n] = d + n < columns ? low[d + n] : BFloat16{0};
            some[1][n] = high && d + n < columns ? high[d + n] : BFloat16{0};
          }
          a = some[0], b = some[1];
        }
        store_interleaved(to + d, a, b);
      }
    }
    return {buffer, stride};
  }
  static Matrix<const Pair> weighted_rows(Matrix<const BFloat16> from, int64_t count,
                                          int64_t columns, bool copy, Pair* buffer) {
    return packed_rows(from, count, columns, copy, buffer);
  }
  static int64_t weighted_size(int64_t count, int64_t columns) {
    return count * round_up(columns, kLanes<float>);
  }
  static void transposed(Matrix<const BFloat16> rows, int64_t count, int64_t columns, Pair* out) {
    load_transposed<float, Pair>(rows, count, columns / 2, reinterpret_cast<float*>(out));
  }
  static AERO_INLINE void store_packed(Pair* to, const Vec<float> (&x)[2]) {
    store_pairs(to, x[0], x[1]);
  }
  static AERO_INLINE void store_row(Pair* rows, int64_t at, Vec<float> x) {
    store_elements(reinterpret_cast<BFloat16*>(rows) + at, x);
  }
};
#endif

#if defined(__AMX_BF16__)
/// Pairs for the tile registers, which take weighted rows from rows of columns.
struct Tiled : Paired {
  static constexpr int kUnit = 2 * kTilePairs, kGroup = kTileRows;
  static constexpr bool kColumnsApart = true;
  template <int Rows, int Columns>
  using Product =
      std::conditional_t<Rows == kTileRows, TileOfRegisters<Columns>, Tile<float, Rows, Columns>>;
  using Registers = TileRegisters;

  static Matrix<const Pair> packed_rows(Matrix<const BFloat16> from, int64_t count, int64_t columns,
                                        bool copy, Pair* buffer) {
    const auto packed = Paired::packed_rows(from, count, columns, copy, buffer);
    const int64_t end = round_up(count, kUnit) / 2 * packed.stride;
    for (int64_t n = (count + 1) / 2 * packed.stride; n < end; n += kLanes<float>)
      store_packed(buffer + n, {});
    return packed;
  }
  static Matrix<const Pair> weighted_rows(Matrix<const BFloat16> from, int64_t count,
                                          int64_t columns, bool, Pair* buffer) {
    const int64_t stride = weighted_stride(count);
    for (int64_t n = 0; n < (count + 1) / 2; n += kTilePairs)
      for (int64_t d = 0; d < columns; d += kLanes<float>) {
        const auto part_of = [&](int64_t row) {
          return row < count ? load_part<float>(from.row(row) + d, columns - d) : Vec<float>{};
        };
        Vec<float> block[kTilePairs];
        for (int r = 0; r < kTilePairs; ++r)
          block[r] = pairs_of(part_of(2 * (n + r)), part_of(2 * (n + r) + 1));
        transpose<float>(block);
        for (int r = 0; r < kTilePairs && d + r < columns; ++r)
          store(reinterpret_cast<float*>(buffer) + (d + r) * stride + n, block[r]);
      }
    return {buffer, stride};
  }
  static int64_t weighted_size(int64_t count, int64_t columns) {
    return columns * weighted_stride(count);
  }

 private:
  /// An odd number of cache lines, so that sixteen rows do not fall into few sets of the cache.
  static int64_t weighted_stride(int64_t count) {
    const int64_t lines = round_up(count, kUnit) / kUnit;
    return (lines + (lines + 1) % 2) * kTilePairs;
  }
};
#endif

}  // namespace
}  // namespace aero::kernels::cpu
