// Gradients of keys and values: weights of a tile, turned over, times rows of its queries.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// The sums of a tile of keys. Rows from `reached` on hold nothing yet; a row has `vectors`.
template <class Operands>
struct OuterSums {
  using Real = typename Operands::Real;
  using Operand = typename Operands::Operand;
  int64_t reached, vectors;

  struct Factors {
    const Operand* weights;  ///< [keys, tile]
    Matrix<const Operand> rows;
    Matrix<Real> sum;
  };

  /// sum[j][d] (+)= sum_i weights[j][i] rows[i][d]
  void add(const QueryTile<Real>& q, const Visibility<Real>& visible, const Factors& of,
           Prefetch& prefetch) const {
    for_key_runs(q, visible, [&](auto, int run_first, int64_t begin, int64_t end) {
      for_column_groups(vectors, [&](auto columns, int64_t first) {
        constexpr int C = decltype(columns)::value;
        for_row_groups<C, Operands::kGroup>(begin, end, [&](auto group, int64_t row) {
          constexpr int R = decltype(group)::value;
          prefetch.step(R);
          const int64_t query =
              larger(run_first * kL, visible.first_query(row)) / Operands::kUnit * Operands::kUnit;
          typename Operands::template Product<R, C> product;
          multiply_rows(product, {of.weights + (row * kTile + query) / kPack, kTile / kPack},
                        of.rows.from(query / kPack, first * kL),
                        (round_up(q.count, Operands::kUnit) - query) / kPack);
          store_sums<0>(product.at, row, of.sum.from(row, first * kL));
        });
      });
    });
  }

 private:
  static constexpr int kTile = kQueryTile<Real>, kL = kLanes<Real>, kPack = Operands::kPack;

  /// What was reached is reached in whole groups of kRows, of which a product may hold more.
  template <int First, int R, int C>
  AERO_INLINE void store_sums(const Vec<Real> (&sums)[R][C], int64_t row, Matrix<Real> to) const {
    constexpr int count = R < kRows ? R : kRows;
    const bool adds = row + First < reached;
#pragma GCC unroll 4
    for (int r = 0; r < count; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) {
        const Vec<Real> sum = sums[First + r][v];
        Real* cell = to.row(First + r) + v * kL;
        store(cell, adds ? load(cell) + sum : sum);
      }
    if constexpr (First + kRows < R) store_sums<First + kRows>(sums, row, to);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
