// Forward pass of attention for a few queries, as in generation: head columns in the vector lanes.
//
// With fewer queries than lanes a tile of queries would leave most lanes idle. Here each query goes
// over the keys by itself, reading keys and values once, in place, whatever their type and strides:
// memory bandwidth bounds it.
#pragma once

#include "kernels/cpu/attention_tile.h"

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
  static void run_row(const Params& p, int64_t row, Real* query, Real* out) {
    const int64_t b = row / p.queries / p.heads, h = row / p.queries % p.heads, i = row % p.queries;
    const int64_t g = h / (p.heads / p.key_heads);
    const Element* q = row_of(static_cast<const Element*>(p.q), p.q_strides, b, h, i);
    const Element* keys = row_of(static_cast<const Element*>(p.k), p.k_strides, b, g, 0);
    const Element* values = row_of(static_cast<const Element*>(p.v), p.v_strides, b, g, 0);
    for (int64_t d = 0; d < p.head_dim; d += kL) {
      store(query + d, load_part<Real>(q + d, p.head_dim - d));
      store(out + d, Vec<Real>{});
    }
    const Real temperature = p.temperature ? *row_of(static_cast<const Real*>(p.temperature),
                                                     p.temperature_strides, b, h, i)
                                           : 1;
    const auto scale = static_cast<Real>(p.scale / static_cast<double>(temperature) * kLog2E);
    const int64_t seen = p.is_causal ? smaller(p.keys, i + p.keys - p.queries + 1) : p.keys;

    OnlineSoftmax<Vec<Real>> state{splat(static_cast<Real>(kEmptyMaximum)), Vec<Real>{},
                                   Vec<Real>{}};
    for (int64_t key = 0; key < seen; key += kKeyTile) {
      const int64_t count = smaller(kKeyTile, seen - key);
      alignas(64) Real weights[kKeyTile];
      for (int64_t j = 0; j < count; j += kL)
        store(weights + j, scores(p, keys + (key + j) * p.k_strides.row, count - j, query) * scale);
      if (p.mask != nullptr) hide_masked(p, b, h, i, key, count, weights);
      for (int64_t j = count; j < round_up(count, kL); ++j)
        weights[j] = static_cast<Real>(kMaskedScore);

      Vec<Real> top = state.maximum;
      for (int64_t j = 0; j < count; j += kL) top = maximum(top, load(weights + j));
      Real row_maximum = top[0];
      for (int n = 1; n < kL; ++n) row_maximum = top[n] > row_maximum ? top[n] : row_maximum;
      const Vec<Real> factor =
          state.raise_maximum(splat(row_maximum), [](auto x) { return exp2(x); });
      for (int64_t j = 0; j < count; j += kL) {
        const Vec<Real> x = load(weights + j) - state.maximum;
        const Vec<Real> weight = exp2(x);
        state.add(x, weight);
        store(weights + j, weight);
      }
      add_values(p, values + key * p.v_strides.row, count, weights, factor, out);
    }
    finish(p, row, state, row_of(static_cast<Element*>(p.out), p.out_strides, b, h, i), out);
  }

  /// q . k_j for kL keys, of which the first `count` exist.
  static Vec<Real> scores(const Params& p, const Element* keys, int64_t count, const Real* query) {
    Vec<Real> products[kL];
    for (int r = 0; r < kL; ++r) {
      products[r] = Vec<Real>{};
      if (r >= count) continue;
      const Element* key = keys + r * p.k_strides.row;
      for (int64_t d = 0; d < p.head_dim; d += kL)
        products[r] += load_part<Real>(key + d, p.head_dim - d) * load(query + d);
    }
    return sums_of_rows<Real>(products);
  }

  static void hide_masked(const Params& p, int64_t b, int64_t h, int64_t i, int64_t key,
                          int64_t count, Real* scores) {
    const MaskStrides& s = p.mask_strides;
    const bool* mask = p.mask + b * s.batch + h * s.head + i * s.query + key * s.key;
    for (int64_t j = 0; j < count; ++j)
      if (!mask[j * s.key]) scores[j] = static_cast<Real>(kMaskedScore);
  }

  /// out = out * factor + sum_j weights[j] v_j
  static void add_values(const Params& p, const Element* values, int64_t count, const Real* weights,
                         Vec<Real> factor, Real* out) {
    constexpr int kBlock = 4;
    int64_t d = 0;
    for (; d + kBlock * kL <= p.head_dim; d += kBlock * kL) {
      Vec<Real> sum[kBlock];
#pragma GCC unroll 4
      for (int n = 0; n < kBlock; ++n) sum[n] = load(out + d + n * kL) * factor;
      for (int64_t j = 0; j < count; ++j)
#pragma GCC unroll 4
        for (int n = 0; n < kBlock; ++n)
          sum[n] += weights[j] * load_elements(values + j * p.v_strides.row + d + n * kL);
#pragma GCC unroll 4
      for (int n = 0; n < kBlock; ++n) store(out + d + n * kL, sum[n]);
    }
    for (; d < p.head_dim; d += kL) {
      Vec<Real> sum = load(out + d) * factor;
      for (int64_t j = 0; j < count; ++j)
        sum += weights[j] * load_part<Real>(values + j * p.v_strides.row + d, p.head_dim - d);
      store(out + d, sum);
    }
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
