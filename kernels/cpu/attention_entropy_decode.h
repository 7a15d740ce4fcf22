// Forward pass of attention for a few queries, as in generation: each goes over the keys by itself.
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
  static int64_t item_count(const Params& p) { return p.batch * p.heads * p.queries; }

  static void run(const Params& p, void* memory, int64_t first, int64_t last) {
    Real* query = static_cast<Real*>(memory);
    for (int64_t row = first; row < last; ++row)
      run_row(p, row, query, query + round_up(p.head_dim, kL));
  }

 private:
  static constexpr int kL = kLanes<Real>;

  /// `query` and `out`: scratch of D elements in whole vectors.
  static void run_row(const Params& p, int64_t n, Real* query, Real* out) {
    const DecodeRow<Element, Real> row(p, n);
    copy_row(row.query, p.head_dim, query);
    for (int64_t d = 0; d < p.head_dim; d += kL) store(out + d, Vec<Real>{});
    OnlineSoftmax<Vec<Real>> state{splat(static_cast<Real>(kEmptyMaximum)), Vec<Real>{},
                                   Vec<Real>{}};
    for (int64_t key = 0; key < row.seen; key += kKeyTile) {
      const int64_t count = smaller(kKeyTile, row.seen - key);
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
        store(weights + j, weight);
      }
      add_weighted(row.values + key * p.v_strides.row, p.v_strides.row, count, weights, factor, out,
                   p.head_dim);
    }
    Element* to =
        row_of(static_cast<Element*>(p.out), p.out_strides, row.batch, row.head, row.index);
    finish(p, n, state, to, out);
  }

  static void finish(const Params& p, int64_t row, const OnlineSoftmax<Vec<Real>>& state,
                     Element* to, const Real* out) {
    const Real sum = sum_of_lanes<Real>(state.sum);
    const Real score_sum = sum_of_lanes<Real>(state.score_sum);
    store_row_result<Real>(p, row,
                           finish_row<Real>(state.maximum[0], sum, score_sum, natural_log(sum)),
                           [](Real* to, Real value) { *to = value; });
    const Real inverse = sum == 0 ? 0 : 1 / sum;
    for (int64_t d = 0; d < p.head_dim; d += kL)
      store_part<Real>(to + d, load(out + d) * inverse, p.head_dim - d);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
