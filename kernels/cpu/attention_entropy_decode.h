// Forward pass of attention for a few queries, as in generation: each goes over the keys by itself,
// in parts where rows alone would not keep the threads busy.
#pragma once

#include "kernels/cpu/attention_decode_row.h"

namespace aero::kernels::cpu {
namespace {

template <class E, class R>
class DecodePass {
 public:
  using Params = AttentionEntropyForwardParams;
  using Element = E;
  using Real = R;

  static int64_t scratch_bytes(const Params& p) {
    return 2 * round_up(p.head_dim, kL) * static_cast<int64_t>(sizeof(Real));
  }
  /// One item per row and part of its keys.
  static int64_t item_count(const Params& p) { return p.batch * p.heads * p.queries * p.key_parts; }

  static void run(const Params& p, void* memory, int64_t first, int64_t last) {
    Real* query = static_cast<Real*>(memory);
    for (int64_t item = first; item < last; ++item)
      run_part(p, item, query, query + round_up(p.head_dim, kL));
  }

  /// Puts the parts of each row together, from the first to the last.
  static void finish_parts(const Params& p) {
    const auto exp2_of = [](Real x) { return exp2(splat(x))[0]; };
    const auto* part = static_cast<const Real*>(p.partials);
    for (int64_t row = 0; row < p.batch * p.heads * p.queries; ++row) {
      OnlineSoftmax<Real> sums{kEmptyMaximum<Real>, 0, 0};
      Real out[kMaxHeadDim] = {};
      for (int64_t n = 0; n < p.key_parts; ++n, part += 3 + p.head_dim) {
        OnlineSoftmax<Real> added{part[0], part[1], part[2]};
        const Real top = added.maximum > sums.maximum ? added.maximum : sums.maximum;
        const Real factor = sums.raise_maximum(top, exp2_of);
        const Real added_factor = added.raise_maximum(top, exp2_of);
        sums.sum += added.sum;
        sums.score_sum += added.score_sum;
        for (int64_t d = 0; d < p.head_dim; ++d)
          out[d] = out[d] * factor + part[3 + d] * added_factor;
      }
      finish(p, DecodeRow<Element, Real>(p, row), sums, out);
    }
  }

 private:
  static constexpr int kL = kLanes<Real>;

  /// `query` and `out`: scratch of D elements in whole vectors.
  static void run_part(const Params& p, int64_t item, Real* query, Real* out) {
    const DecodeRow<Element, Real> row(p, item / p.key_parts);
    const int64_t part = item % p.key_parts, first = row.first / kKeyTile;
    const int64_t tiles = (p.keys + kKeyTile - 1) / kKeyTile - first;
    const int64_t begin = (first + part * tiles / p.key_parts) * kKeyTile;
    const int64_t end = smaller(row.seen, (first + (part + 1) * tiles / p.key_parts) * kKeyTile);
    copy_row(row.query, p.head_dim, query);
    for (int64_t d = 0; d < p.head_dim; d += kL) store(out + d, Vec<Real>{});
    OnlineSoftmax<Vec<Real>> state{splat(kEmptyMaximum<Real>), Vec<Real>{}, Vec<Real>{}};
    if (p.sinks && part == 0) {
      state.begin_with(splat(row.log2_sink(p)));
      for (int n = 1; n < kL; ++n) state.sum[n] = 0;
    }
    const RowDropout<Real> dropout(p, row);
    for (int64_t key = begin; key < end; key += kKeyTile) {
      const int64_t count = smaller(kKeyTile, end - key);
      alignas(64) Real weights[kKeyTile];
      row.scores(p, key, count, query, weights);
      Vec<Real> top = state.maximum;
      for (int64_t j = 0; j < count; j += kL) top = maximum(top, load(weights + j));
      Real row_maximum = top[0];
      for (int i = 1; i < kL; ++i) row_maximum = top[i] > row_maximum ? top[i] : row_maximum;
      const Vec<Real> factor =
          state.raise_maximum(splat(row_maximum), [](auto x) { return exp2(x); });
      for (int64_t j = 0; j < count; j += kL) {
        const Vec<Real> x = load(weights + j) - state.maximum;
        const Vec<Real> weight = exp2(x);
        state.add(x, weight);
        store(weights + j, dropout.weight_of(weight, key + j));
      }
      add_weighted(row.values.from(key), count, weights, factor, out, p.head_dim);
    }
    const OnlineSoftmax<Real> sums{state.maximum[0], sum_of_lanes<Real>(state.sum),
                                   sum_of_lanes<Real>(state.score_sum)};
    if (p.key_parts > 1)
      store_partial(p, item, sums, out);
    else
      finish(p, row, sums, out);
  }

  static void store_partial(const Params& p, int64_t item, const OnlineSoftmax<Real>& sums,
                            const Real* out) {
    Real* to = static_cast<Real*>(p.partials) + item * (3 + p.head_dim);
    to[0] = sums.maximum, to[1] = sums.sum, to[2] = sums.score_sum;
    for (int64_t d = 0; d < p.head_dim; d += kL)
      store_part<Real>(to + 3 + d, load(out + d), p.head_dim - d);
  }

  static void finish(const Params& p, const DecodeRow<Element, Real>& row,
                     const OnlineSoftmax<Real>& sums, const Real* out) {
    const int64_t n = (row.batch * p.heads + row.head) * p.queries + row.index;
    store_row_result<Real>(p, n, finish_row<Real>(sums, natural_log(sums.sum)),
                           [](Real* to, Real value) { *to = value; });
    Element* to = rows_at<Element>(p.out, row.batch, row.head, row.index).data;
    const Real inverse = sums.sum == 0 ? 0 : 1 / sums.sum;
    for (int64_t d = 0; d < p.head_dim; d += kL)
      store_part<Real>(to + d, load(out + d) * inverse, p.head_dim - d);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
