// One query of few, as in generation, against its keys: head columns in the vector lanes.
//
// With fewer queries than lanes a tile of queries would leave most lanes idle. Here each query goes
// over the keys by itself, reading keys and values in place, whatever their type and strides:
// memory bandwidth bounds it. Dot products are summed in all lanes, then in a tree, so that their
// rounding stays at that of the matrix-vector products of other libraries. A tile takes as long for
// one query as for a vector of them, a query here a quarter of that with 16 lanes: hence
// kFewQueries.
#pragma once

#include "kernels/cpu/attention_transform.h"

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
  int64_t first, seen;  ///< causal rule and window show keys [first, seen)
  Real temperature, scale;
  Matrix<const Element> query, keys, values;

  /// `row` counts over [B, H, T].
  DecodeRow(const AttentionEntropyParams& p, int64_t row)
      : batch(row / p.queries / p.heads),
        head(row / p.queries % p.heads),
        index(row % p.queries),
        first(p.window_left < 0 ? 0 : bounded(p, index + p.keys - p.queries - p.window_left)),
        seen(p.ends() ? bounded(p, index + p.keys - p.queries + p.reach() + 1) : p.keys),
        temperature(p.temperature ? *rows_at<const Real>(p.temperature, batch, head, index).data
                                  : 1),
        scale(static_cast<Real>(p.scale / static_cast<double>(temperature))) {
    const int64_t g = head / (p.heads / p.key_heads);
    query = rows_at<const Element>(p.q, batch, head, index);
    keys = rows_at<const Element>(p.k, batch, g, 0);
    values = rows_at<const Element>(p.v, batch, g, 0);
  }

  static int64_t bounded(const AttentionEntropyParams& p, int64_t key) {
    return larger(0, smaller(p.keys, key));
  }

  /// The logit of the sink, in units of log 2.
  Real log2_sink(const AttentionEntropyParams& p) const {
    const auto sink = static_cast<double>(of_head<Real>(p.sinks, batch, head));
    return static_cast<Real>(sink * kLog2E / static_cast<double>(temperature));
  }

  /// scores[j] of keys [key, key + count), kMaskedScore where they are hidden and up to the end of
  /// a vector. `query_copy`: the query as whole vectors. Forward and backward both come here, so
  /// that both see the same bits. `cap_slopes`: those of the soft cap, null where not wanted.
  void scores(const AttentionEntropyParams& p, int64_t key, int64_t count, const Real* query_copy,
              Real* scores, Real* cap_slopes = nullptr) const {
    constexpr int lanes = kLanes<Real>;
    const double product_scale =
        p.transforms() ? p.product_scale() : p.scale / static_cast<double>(temperature) * kLog2E;
    for (int64_t j = 0; j < count; j += lanes)
      store(scores + j, dots_of_rows(keys.from(key + j), count - j, query_copy, p.head_dim) *
                            static_cast<Real>(product_scale));
    if (p.transforms()) transform(p, key, count, scores, cap_slopes);
    for (int64_t j = 0; j < smaller(count, first - key); ++j) scores[j] = kMaskedScore<Real>;
    if (p.mask) {
      const bool* mask = rows_at<const bool>(p.mask, batch, head, index).data;
      for (int64_t j = 0; j < count; ++j)
        if (!mask[(key + j) * p.mask.strides.column]) scores[j] = kMaskedScore<Real>;
    }
    for (int64_t j = count; j < round_up(count, lanes); ++j) scores[j] = kMaskedScore<Real>;
  }

  /// |i + S - T - j| of the keys from `key` on.
  AERO_INLINE Vec<Real> distance_to(const AttentionEntropyParams& p, int64_t key) const {
    return distance<Real>(key - (index + p.keys - p.queries));
  }

 private:
  void transform(const AttentionEntropyParams& p, int64_t key, int64_t count, Real* scores,
                 Real* cap_slopes) const {
    const Transform<Real> transform(p, batch, head);
    const Vec<Real> log2_inverse =
        splat(static_cast<Real>(kLog2E / static_cast<double>(temperature)));
    for (int64_t j = 0; j < count; j += kLanes<Real>) {
      const Vec<Real> product = load(scores + j);
      Vec<Real> x = product;
      if (p.softcap != 0) {
        Vec<Real> tangent[] = {x};
        take_hyperbolic_tangent(tangent);
        if (cap_slopes) store(cap_slopes + j, 1 - tangent[0] * tangent[0]);
        x = tangent[0] * transform.cap;
      }
      if (p.bias)
        with_bias_type<Real>(p, [&](auto type) {
          using Bias = decltype(type);
          const int64_t step = p.bias.strides.column;
          const Bias* row = rows_at<const Bias>(p.bias, batch, head, index).data + (key + j) * step;
          if (step == 1)
            x += load_part<Real>(row, count - j);
          else
            for (int n = 0; n < smaller(kLanes<Real>, count - j); ++n)
              x[n] += to_real<Real>(row[n * step]);
        });
      if (p.alibi_slopes) x -= transform.slope * distance_to(p, key + j);
      store(scores + j, transform.finish(product, x, log2_inverse));
    }
  }
};

/// Which weights of a row stay.
template <class Real>
struct RowDropout : DropoutRule<Real> {
  using Words = typename Words32<Real>::Type;
  uint64_t row_key = 0;

  template <class Element>
  RowDropout(const AttentionEntropyParams& p, const DecodeRow<Element, Real>& row)
      : DropoutRule<Real>(p.dropout) {
    if (this->drops) row_key = this->row_key_of(p.dropout, row.batch, row.head, row.index);
  }
  /// What is left of the weights of the keys from `key` on, or of their gradients.
  AERO_INLINE Vec<Real> weight_of(Vec<Real> weight, int64_t key) const {
    if (!this->drops) return weight;
    Words keys;
    for (int n = 0; n < kLanes<Real>; ++n) keys[n] = static_cast<uint32_t>(key + n);
    const Words low = Words{} + static_cast<uint32_t>(row_key);
    const Words high = Words{} + static_cast<uint32_t>(row_key >> 32u);
    return this->stays(low, high, keys) ? weight * this->factor : Vec<Real>{};
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
