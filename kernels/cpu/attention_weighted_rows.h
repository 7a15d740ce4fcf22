// Rows of a head summed with the weights of a tile of queries: outputs, and gradients of queries.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// Factors of the rows of a tile that change nothing.
template <class Real>
struct Ones {
  alignas(64) Real of[kQueryTile<Real>];
  Ones() {
    for (Real& x : of) x = 1;
  }
};

/// sum_j rows[j][d] weights[j][i] for the queries i of a tile, one tile of keys after the other.
///
/// Weights are operands [keys / kPack, tile], `rows` weighted rows. The sums are rows of queries; a
/// group of them takes no key that its last does not see. Where the rows are stored by columns
/// (kColumnsApart), so are the sums, [D, tile].
template <class Operands>
class WeightedRows {
 public:
  using Element = typename Operands::Element;
  using Real = typename Operands::Real;
  using Operand = typename Operands::Operand;

  /// The sums go to `tensor` (null: nothing is added); until they are whole they are kept in
  /// `sums`, `size(head_dim)` long.
  WeightedRows(const QueryTile<Real>& q, const TensorView<void>& tensor, int64_t head_dim,
               Real* sums)
      : q_(q),
        to_(tensor ? rows_at<Element>(tensor, q.batch, q.head, q.first) : Matrix<Element>{}),
        head_dim_(head_dim),
        row_(round_up(head_dim, kL)),
        sums_(sums) {}

  static int64_t size(int64_t head_dim) {
    return round_up(head_dim, kLanes<Real>) * kQueryTile<Real>;
  }

  /// Rows of the products that one tile of keys takes.
  static int64_t product_rows(int64_t head_dim, int64_t queries) {
    if (Operands::kColumnsApart) return head_dim;
    const int64_t vectors = round_up(head_dim, kL) / kL;
    return (vectors + kColumns - 1) / kColumns * round_up(queries, kRows);
  }

  /// The result of queries that see no key.
  void store_zeros() const {
    for (int64_t i = 0; i < q_.count; ++i)
      for (int64_t d = 0; d < head_dim_; d += kL) store_row(i, d, Vec<Real>{});
  }

  /// Which tile of keys it is, and what the sums are multiplied by: sums = factors * sums +
  /// products, or products alone if it is the first; after the last, last_factors * sums.
  struct Turn {
    bool is_first, is_last;
    const Real *factors, *last_factors;  ///< of each query
  };

  /// Takes in a tile of keys, the first of which is the first row of `rows`.
  void add(const Visibility<Real>& visible, Matrix<const Operand> rows, Operand* weights,
           const Turn& turn, Prefetch& prefetch) const {
    clear_unseen_weights(visible, weights);
    if constexpr (Operands::kColumnsApart)
      add_columns(visible, rows, weights, turn, prefetch);
    else
      add_rows(visible, rows, weights, turn, prefetch);
  }

 private:
  static constexpr int kL = kLanes<Real>, kTile = kQueryTile<Real>, kPack = Operands::kPack;

  /// Zeros for weights of keys that a vector sees none of, where a product takes them in: it sums
  /// whole units, and the keys that the last of its queries sees.
  void clear_unseen_weights(const Visibility<Real>& visible, Operand* weights) const {
    constexpr int64_t unit = Operands::kUnit, together = larger(1, 2 * kRows / kL);
    if constexpr (unit > kPack || together > 1)
      for (int64_t v = 0; v < q_.vectors; ++v) {
        const int64_t last = smaller(q_.vectors, round_up(v + 1, together)) - 1;
        for (int64_t j = round_up(visible.end[v], kPack); j < round_up(visible.end[last], unit);
             j += kPack)
          Operands::store_packed(weights + j / kPack * kTile + v * kL, {});
      }
  }

  void add_rows(const Visibility<Real>& visible, Matrix<const Operand> rows, const Operand* weights,
                const Turn& turn, Prefetch& prefetch) const {
    for_column_groups(row_ / kL, [&](auto columns, int64_t first) {
      constexpr int C = decltype(columns)::value;
      const int64_t end = round_up(q_.count, kRows);
      for_row_groups<C, Operands::kGroup>(0, end, [&](auto group, int64_t i) {
        constexpr int R = decltype(group)::value;
        prefetch.step(R);
        const int64_t seen = visible.seen_by(smaller(i + R, q_.count) - 1);
        typename Operands::template Product<R, C> product;
        multiply_rows(product, {weights + i, 1}, rows.from(0, first * kL),
                      round_up(seen, kPack) / kPack, kTile);
        take_turn(turn, product, i, first * kL);
      });
    });
  }

  /// Products of queries from i on and columns from d on.
  template <int R, int C>
  AERO_INLINE void take_turn(const Turn& turn, Tile<Real, R, C>& product, int64_t i,
                             int64_t d) const {
    Real* sums = sums_ + i * row_ + d;
    const auto each = [&](auto&& body) AERO_LAMBDA_INLINE {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v) body(r, v * kL, product.at[r][v]);
    };
    if (!turn.is_first)
      each([&](int r, int lane, Vec<Real>& x)
               AERO_LAMBDA_INLINE { x += load(sums + r * row_ + lane) * turn.factors[i + r]; });
    if (!turn.is_last)
      return each([&](int r, int lane, Vec<Real>& x)
                      AERO_LAMBDA_INLINE { store(sums + r * row_ + lane, x); });
    each([&](int r, int, Vec<Real>& x) AERO_LAMBDA_INLINE { x *= turn.last_factors[i + r]; });
    if (i + R <= q_.count && d + C * kL <= head_dim_)
      each([&](int r, int lane, Vec<Real>& x)
               AERO_LAMBDA_INLINE { store_elements(to_.row(i + r) + d + lane, x); });
    else
      each([&](int r, int lane, Vec<Real>& x)
               AERO_LAMBDA_INLINE { store_row(i + r, d + lane, x); });
  }

  AERO_INLINE void store_row(int64_t i, int64_t d, Vec<Real> x) const {
    if (i < q_.count) store_part<Real>(to_.row(i) + d, x, head_dim_ - d);
  }

  /// The same with columns of `rows` for rows of the product, and queries in the vectors.
  void add_columns(const Visibility<Real>& visible, Matrix<const Operand> rows,
                   const Operand* weights, const Turn& turn, Prefetch& prefetch) const {
    with_columns(q_.vectors, [&](auto columns) {
      constexpr int C = decltype(columns)::value;
      for_row_groups<kColumns, Operands::kGroup>(0, head_dim_, [&](auto group, int64_t d) {
        constexpr int R = decltype(group)::value;
        prefetch.step(R);
        typename Operands::template Product<R, C> sum;
        constexpr int depth = decltype(sum)::kDepth;
        sum.clear();
        const Operand* a = rows.row(d);
        const Operand* b = weights;
        int64_t j = 0;
        const auto add_until = [&](auto first) AERO_LAMBDA_INLINE {
          constexpr int First = decltype(first)::value;
          if constexpr (First < C)
            for (; j < visible.end[First]; j += depth * kPack, a += depth, b += depth * kTile)
              sum.template add_product<First>(a, rows.stride, b, kTile);
        };
        add_until(Constant<0>{});
        add_until(Constant<1>{});
        add_until(Constant<2>{});
        add_until(Constant<3>{});
        sum.finish();
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v)
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            Real* to = sums_ + (d + r) * kTile + v * kL;
            const Vec<Real> x = sum.at[r][v];
            store(to, turn.is_first ? x : load(to) * load(turn.factors + v * kL) + x);
          }
      });
    });
    if (turn.is_last) store_transposed(sums_, turn.last_factors, to_, q_.count, head_dim_);
  }

  const QueryTile<Real>& q_;
  const Matrix<Element> to_;
  const int64_t head_dim_, row_;
  Real* const sums_;
};

/// Rows of a matrix of weighted rows from `key` on.
template <class Operands, class Operand>
Matrix<const Operand> weighted_from(Matrix<const Operand> rows, int64_t key) {
  const int64_t n = key / Operands::kPack;
  return Operands::kColumnsApart ? rows.from(0, n) : rows.from(n);
}

}  // namespace
}  // namespace aero::kernels::cpu
