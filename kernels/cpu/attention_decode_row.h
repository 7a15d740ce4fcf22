// One query of few, as in generation, against its keys: head columns in the vector lanes.
//
// With fewer queries than lanes a tile of queries would leave most lanes idle. Here each query goes
// over the keys by itself, reading keys and values in place, whatever their type and strides:
// memory bandwidth bounds it. Dot products are summed in all lanes, then in a tree, so that their
// rounding stays at that of the matrix-vector products of other libraries. A tile takes as long for
// one query as for a vector of them, a query here a quarter of that with 16 lanes: hence
// kFewQueries.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// vector . rows[r] for kLanes rows, of which the first `count` exist.
template <class Real, class Element>
Vec<Real> dots_of_rows(Matrix<const Element> rows, int64_t count, const Real* vector,
                       int64_t columns) {
  constexpr int lanes = kLanes<Real>;
  Vec<Real> products[lanes];
  for (int r = 0; r < lanes; ++r) {
    products[r] = Vec<Real>{};
    if (r >= count) continue;
    const Element* row = rows.row(r);
    for (int64_t d = 0; d < columns; d += lanes)
      products[r] += load_part<Real>(row + d, columns - d) * load(vector + d);
  }
  return sums_of_rows_in_a_tree<Real>(products);
}

/// sum = sum * factor + sum_j weights[j] rows[j]
template <class Real, class Element>
void add_weighted(Matrix<const Element> rows, int64_t count, const Real* weights, Vec<Real> factor,
                  Real* sum, int64_t columns) {
  constexpr int lanes = kLanes<Real>, kBlock = 4;
  int64_t d = 0;
  for (; d + kBlock * lanes <= columns; d += kBlock * lanes) {
    Vec<Real> block[kBlock] = {};
    for (int64_t j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int n = 0; n < kBlock; ++n)
        block[n] += weights[j] * load_elements(rows.row(j) + d + n * lanes);
#pragma GCC unroll 4
    for (int n = 0; n < kBlock; ++n) {
      Real* to = sum + d + n * lanes;
      store(to, load(to) * factor + block[n]);
    }
  }
  for (; d < columns; d += lanes) {
    Vec<Real> part{};
    for (int64_t j = 0; j < count; ++j)
      part += weights[j] * load_part<Real>(rows.row(j) + d, columns - d);
    store(sum + d, load(sum + d) * factor + part);
  }
}

/// Row `index` of a head, and where its keys and values are.
template <class Element, class Real>
struct DecodeRow {
  int64_t batch, head, index;
  int64_t seen;  ///< the causal rule shows keys [0, seen)
  Real temperature, scale;
  Matrix<const Element> query, keys, values;

  /// `row` counts over [B, H, T].
  DecodeRow(const AttentionEntropyParams& p, int64_t row)
      : batch(row / p.queries / p.heads),
        head(row / p.queries % p.heads),
        index(row % p.queries),
        seen(p.is_causal ? larger(0, smaller(p.keys, index + p.keys - p.queries + 1)) : p.keys),
        temperature(p.temperature ? *rows_at<const Real>(p.temperature, batch, head, index).data
                                  : 1),
        scale(static_cast<Real>(p.scale / static_cast<double>(temperature))) {
    const int64_t g = head / (p.heads / p.key_heads);
    query = rows_at<const Element>(p.q, batch, head, index);
    keys = rows_at<const Element>(p.k, batch, g, 0);
    values = rows_at<const Element>(p.v, batch, g, 0);
  }

  /// scores[j] of keys [key, key + count), kMaskedScore where they are hidden and up to the end of
  /// a vector. `query_copy`: the query as whole vectors. Forward and backward both come here, so
  /// that both see the same bits.
  void scores(const AttentionEntropyParams& p, int64_t key, int64_t count, const Real* query_copy,
              Real* scores) const {
    constexpr int lanes = kLanes<Real>;
    const auto log2_scale = static_cast<Real>(p.scale / static_cast<double>(temperature) * kLog2E);
    for (int64_t j = 0; j < count; j += lanes)
      store(scores + j,
            dots_of_rows(keys.from(key + j), count - j, query_copy, p.head_dim) * log2_scale);
    if (p.mask) {
      const bool* mask = rows_at<const bool>(p.mask, batch, head, index).data;
      for (int64_t j = 0; j < count; ++j)
        if (!mask[(key + j) * p.mask.strides.column]) scores[j] = kMaskedScore<Real>;
    }
    for (int64_t j = count; j < round_up(count, lanes); ++j) scores[j] = kMaskedScore<Real>;
  }
};

/// The first row as whole vectors of Real, zeros after it.
template <class Real, class Element>
void copy_row(Matrix<const Element> from, int64_t columns, Real* to) {
  for (int64_t d = 0; d < columns; d += kLanes<Real>)
    store(to + d, load_part<Real>(from.data + d, columns - d));
}

}  // namespace
}  // namespace aero::kernels::cpu
