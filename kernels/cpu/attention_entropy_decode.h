// Forward pass of attention for a few queries, as in generation: each goes over the keys by itself,
// in parts where rows alone would not keep the threads busy.
#pragma once

#include "kernels/cpu/attention_decode_row.h"
#include "kernels/cpu/attention_largest_key.h"

namespace aero::kernels::cpu {
namespace {

template <class E, class R>
class DecodePass {
 public:
  using Params = AttentionEntropyForwardParams;
  using Element = E;
  using Real = R;

  static int64_t scratch_bytes(const Params& p) {
    return (round_up(p.head_dim, kL) + round_up(p.value_dim, kL)) *
           static_cast<int64_t>(sizeof(Real));
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
      LargestKey largest;
      Real out[kMaxHeadDim] = {};
      for (int64_t n = 0; n < p.key_parts; ++n, part += kPartialStatistics + p.value_dim) {
        OnlineSoftmax<Real> added{part[0], part[1], part[2]};
        if (part[3] > largest.score) {
          largest.score = part[3];
          __builtin_memcpy(&largest.key, part + 4, sizeof(largest.key));
        }
        const Real top = added.maximum > sums.maximum ? added.maximum : sums.maximum;
        const Real factor = sums.raise_maximum(top, exp2_of);
        const Real added_factor = added.raise_maximum(top, exp2_of);
        sums.sum += added.sum;
        sums.score_sum += added.score_sum;
        for (int64_t d = 0; d < p.value_dim; ++d)
          out[d] = out[d] * factor + part[kPartialStatistics + d] * added_factor;
      }
      finish(p, DecodeRow<Element, Real>(p, row), {sums, largest}, out);
    }
  }

 private:
  static constexpr int kL = kLanes<Real>;

  /// The largest score of a row, in units of log 2, and the key that has it.
  struct LargestKey {
    Real score = kNoScore<Real>;
    typename Simd<Real>::Word key = -1;

    /// Takes in `count` scores of the keys from `first` on, the largest of which is `top`.
    void take(Real top, const Real* scores, int64_t first, int64_t count) {
      if (!(top > score)) return;
      score = top;
      for (int64_t j = count - 1; j >= 0; --j)
        if (scores[j] == top) key = static_cast<typename Simd<Real>::Word>(first + j);
    }
  };
  /// What is known of a row beside its output.
  struct Found {
    OnlineSoftmax<Real> sums;
    LargestKey largest;
  };

  /// `query` and `out`: scratch of D and Dv elements in whole vectors.
  static void run_part(const Params& p, int64_t item, Real* query, Real* out) {
    const DecodeRow<Element, Real> row(p, item / p.key_parts);
    const int64_t part = item % p.key_parts, first = row.first / kKeyTile;
    const int64_t tiles = (p.keys + kKeyTile - 1) / kKeyTile - first;
    const int64_t begin = (first + part * tiles / p.key_parts) * kKeyTile;
    const int64_t end = smaller(row.seen, (first + (part + 1) * tiles / p.key_parts) * kKeyTile);
    copy_row(row.query, p.head_dim, query);
    for (int64_t d = 0; d < p.value_dim; d += kL) store(out + d, Vec<Real>{});
    OnlineSoftmax<Vec<Real>> state{splat(kEmptyMaximum<Real>), Vec<Real>{}, Vec<Real>{}};
    if (p.sinks && part == 0) {
      state.begin_with(splat(row.log2_sink(p)));
      for (int n = 1; n < kL; ++n) state.sum[n] = 0;
    }
    LargestKey largest;
    const RowDropout<Real> dropout(p, row);
    for (int64_t key = begin; key < end; key += kKeyTile) {
      const int64_t count = smaller(kKeyTile, end - key);
      alignas(64) Real weights[kKeyTile];
      row.scores(p, key, count, query, weights);
      Vec<Real> top = p.largest_key ? splat(largest.score) : state.maximum;
      for (int64_t j = 0; j < count; j += kL) top = maximum(top, load(weights + j));
      Real row_maximum = top[0];
      for (int i = 1; i < kL; ++i) row_maximum = top[i] > row_maximum ? top[i] : row_maximum;
      if (p.largest_key) {
        largest.take(row_maximum, weights, key, count);
        row_maximum = state.maximum[0] > row_maximum ? state.maximum[0] : row_maximum;
      }
      const Vec<Real> factor =
          state.raise_maximum(splat(row_maximum), [](auto x) { return exp2(x); });
      for (int64_t j = 0; j < count; j += kL) {
        const Vec<Real> x = load(weights + j) - state.maximum;
        const Vec<Real> weight = exp2(x);
        state.add(x, weight);
        store(weights + j, dropout.weight_of(weight, key + j));
      }
      add_weighted(row.values.from(key), count, weights, factor, out, p.value_dim);
    }
    const Found found{
        {state.maximum[0], sum_of_lanes<Real>(state.sum), sum_of_lanes<Real>(state.score_sum)},
        largest};
    if (p.key_parts > 1)
      store_partial(p, item, found, out);
    else
      finish(p, row, found, out);
  }

  static void store_partial(const Params& p, int64_t item, const Found& found, const Real* out) {
    Real* to = static_cast<Real*>(p.partials) + item * (kPartialStatistics + p.value_dim);
    const OnlineSoftmax<Real>& sums = found.sums;
    to[0] = sums.maximum, to[1] = sums.sum, to[2] = sums.score_sum, to[3] = found.largest.score;
    __builtin_memcpy(to + 4, &found.largest.key, sizeof(Real));
    to += kPartialStatistics;
    for (int64_t d = 0; d < p.value_dim; d += kL)
      store_part<Real>(to + d, load(out + d), p.value_dim - d);
  }

  static void finish(const Params& p, const DecodeRow<Element, Real>& row, const Found& found,
                     const Real* out) {
    const OnlineSoftmax<Real>& sums = found.sums;
    const int64_t n = (row.batch * p.heads + row.head) * p.queries + row.index;
    if (p.largest_key) store_largest(p, n, found);
    RowResult<Real> result = finish_row<Real>(sums, natural_log(sums.sum));
    if (p.sinks && found.largest.key < 0 && sums.is_only(row.log2_sink(p))) result.saved_sum = 0;
    store_row_result<Real>(p, n, result, [](Real* to, Real value) { *to = value; });
    Element* to = rows_at<Element>(p.out, row.batch, row.head, row.index).data;
    const Real inverse = sums.sum == 0 ? 0 : 1 / sums.sum;
    for (int64_t d = 0; d < p.value_dim; d += kL)
      store_part<Real>(to + d, load(out + d) * inverse, p.value_dim - d);
  }

  /// See LargestKeys::write.
  static void store_largest(const Params& p, int64_t row, const Found& found) {
    const Real sum = found.sums.sum;
    const bool is_number = sum == sum;
    const Real logit = found.largest.key < 0 ? -static_cast<Real>(__builtin_inf())
                                             : static_cast<Real>(kLn2) * found.largest.score;
    static_cast<Real*>(p.max_logits)[row] = is_number ? logit : sum;
    p.largest_key[row] = is_number ? found.largest.key : -1;
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
