// Forward pass of attention with temperature and entropy, for one instruction set.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// Scratch of one thread, in elements of Real.
template <class Real>
struct ForwardScratch {
  int64_t queries, outputs, scores, keys, values, total;

  ForwardScratch(const AttentionEntropyParams& p, bool copies) {
    const int64_t row = round_up(p.head_dim, kLanes<Real>);
    int64_t next = 0;
    const auto take = [&next](int64_t count) {
      const int64_t at = next;
      next += round_up(count, 64);
      return at;
    };
    queries = take(row * kQueryTile<Real>);
    outputs = take(row * kQueryTile<Real>);
    scores = take(kKeyTile * kQueryTile<Real>);
    keys = take(copies ? p.keys * row : 0);
    values = take(copies ? p.keys * row : 0);
    total = next;
  }
};

template <class Element, class Real>
struct AttentionEntropyForward {
  using Params = AttentionEntropyForwardParams;

  /// Keys and values are used where they are if they need no conversion and follow each other.
  static bool copies(const AttentionEntropyParams& p) {
    return sizeof(Element) != sizeof(Real) || p.k_strides.row != p.head_dim ||
           p.v_strides.row != p.head_dim;
  }
  static int64_t scratch_bytes(const Params& p) {
    return ForwardScratch<Real>(p, copies(p)).total * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t tiles(const Params& p) {
    return (p.queries + kQueryTile<Real> - 1) / kQueryTile<Real>;
  }
  static int64_t item_count(const Params& p) { return p.batch * p.heads * tiles(p); }

  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    Real* memory = static_cast<Real*>(scratch);
    const ForwardScratch<Real> at(p, copies(p));
    const int64_t group = p.key_heads ? p.heads / p.key_heads : 1;
    Matrix<const Real> keys{}, values{};
    int64_t loaded = -1;
    for (int64_t item = first; item < last; ++item) {
      const QueryTile<Real> q(p, tile_of(p, item));
      const int64_t b = q.batch, g = q.head / group;
      if (loaded != b * p.key_heads + g) {
        loaded = b * p.key_heads + g;
        keys = as_real<Real>(row_of(static_cast<const Element*>(p.k), p.k_strides, b, g, 0),
                             p.k_strides.row, p.keys, p.head_dim, copies(p), memory + at.keys);
        values = as_real<Real>(row_of(static_cast<const Element*>(p.v), p.v_strides, b, g, 0),
                               p.v_strides.row, p.keys, p.head_dim, copies(p), memory + at.values);
      }
      Prefetch prefetch;
      if (item + 1 < last) announce(p, q, tile_of(p, item + 1), prefetch);
      run_tile(p, q, keys, values, memory + at.queries, memory + at.outputs, memory + at.scores,
               prefetch);
    }
  }

 private:
  static constexpr int kTile = kQueryTile<Real>;

  static TileRange<Real> tile_of(const Params& p, int64_t item) {
    const int64_t head = item / tiles(p), n = item % tiles(p);
    // Tiles from both ends in turn: with the causal rule equal ranges of items are equal work.
    const int64_t tile = n % 2 ? tiles(p) - 1 - n / 2 : n / 2;
    return TileRange<Real>(p, head / p.heads, head % p.heads, tile);
  }

  /// What the next tile reads and writes and this one does not.
  static void announce(const Params& p, const TileRange<Real>& q, const TileRange<Real>& next,
                       Prefetch& prefetch) {
    const int64_t group = p.heads / p.key_heads, b = next.batch, h = next.head, g = h / group;
    const bool same_keys = b == q.batch && g == q.head / group;
    const int64_t from = same_keys ? q.visible_keys(p) : 0, keys = next.visible_keys(p) - from;
    const auto add = [&](const void* tensor, const Strides& s, int64_t head, int64_t row,
                         int64_t rows) {
      prefetch.add(static_cast<const Element*>(tensor), s, b, head, row, rows, p.head_dim);
    };
    add(p.q, p.q_strides, h, next.first, next.count);
    add(p.out, p.out_strides, h, next.first, next.count);
    add(p.k, p.k_strides, g, from, keys);
    add(p.v, p.v_strides, g, from, keys);
    // One step per group of rows that the two products go through.
    const int64_t seen = q.visible_keys(p);
    prefetch.spread(seen / kRows + (seen + kKeyTile - 1) / kKeyTile * (p.head_dim / kRows));
  }

  static void run_tile(const Params& p, const QueryTile<Real>& q, Matrix<const Real> keys,
                       Matrix<const Real> values, Real* queries, Real* outputs, Real* scores,
                       Prefetch& prefetch) {
    OnlineSoftmax<Vec<Real>> state[kColumns];
    for (int v = 0; v < kColumns; ++v)
      state[v] = {splat(static_cast<Real>(kEmptyMaximum)), Vec<Real>{}, Vec<Real>{}};
    load_transposed(row_of(static_cast<const Element*>(p.q), p.q_strides, q.batch, q.head, q.first),
                    p.q_strides.row, q.count, p.head_dim, queries);
    for (int64_t n = 0; n < p.head_dim * kTile; n += kLanes<Real>) store(outputs + n, Vec<Real>{});

    const int64_t key_end = q.visible_keys(p);
    for (int64_t key = 0; key < key_end; key += kKeyTile) {
      const Visibility<Real> visible(p, q, key, key_end);
      alignas(64) Real maxima[kTile], factors[kTile];
      for (int v = 0; v < kColumns; ++v) store(maxima + v * kLanes<Real>, state[v].maximum);
      compute_scores(q, visible, queries, {keys.data + key * keys.stride, keys.stride}, p.head_dim,
                     scores, maxima, prefetch);
      for (int v = 0; v < kColumns; ++v)
        store(factors + v * kLanes<Real>, state[v].raise_maximum(load(maxima + v * kLanes<Real>),
                                                                 [](auto x) { return exp2(x); }));
      add_weights(q, visible, scores, state);
      add_weighted_rows(q, visible, {values.data + key * values.stride, values.stride}, scores,
                        p.head_dim, factors, outputs, prefetch);
    }
    finish(p, q, state, outputs);
  }

  /// Scores become weights 2^(score - maximum), which the running sums take in.
  static void add_weights(const QueryTile<Real>& q, const Visibility<Real>& visible, Real* scores,
                          OnlineSoftmax<Vec<Real>> (&state)[kColumns]) {
    for_key_runs(q, visible, [&](auto columns, int first, int64_t begin, int64_t end) {
      constexpr int C = decltype(columns)::value;
      OnlineSoftmax<Vec<Real>> local[C];
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) local[v] = state[first + v];
      Real* row = scores + begin * kTile + first * kLanes<Real>;
      for (int64_t j = begin; j < end; ++j, row += kTile)
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v) {
          const Vec<Real> x = load(row + v * kLanes<Real>) - local[v].maximum;
          const Vec<Real> weight = exp2(x);
          local[v].add(x, weight);
          store(row + v * kLanes<Real>, weight);
        }
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) state[first + v] = local[v];
    });
  }

  static void finish(const Params& p, const QueryTile<Real>& q,
                     const OnlineSoftmax<Vec<Real>> (&state)[kColumns], Real* outputs) {
    alignas(64) Real inverse[kTile] = {};
    for (int64_t i = 0; i < q.count; ++i) {
      const auto& row_state = state[i / kLanes<Real>];
      const int64_t lane = i % kLanes<Real>, row = q.row(p, i);
      const Real sum = row_state.sum[lane];
      const RowResult<Real> result = finish_row<Real>(row_state.maximum[lane], sum,
                                                      row_state.score_sum[lane], natural_log(sum));
      inverse[i] = sum == 0 ? 0 : 1 / sum;
      static_cast<Real*>(p.entropy)[row] = result.entropy;
      static_cast<Real*>(p.logsumexp)[row] = result.logsumexp;
      if (p.statistics) {
        // [B, H, 3, T]
        Real* saved = static_cast<Real*>(p.statistics) + row +
                      (kSavedStatistics - 1) * p.queries * (q.batch * p.heads + q.head);
        saved[0] = result.saved_maximum;
        saved[p.queries] = result.saved_sum;
        saved[2 * p.queries] = result.saved_offset;
      }
    }
    for (int64_t d = 0; d < p.head_dim; ++d)
      for (int v = 0; v < q.vectors; ++v) {
        Real* at = outputs + d * kTile + v * kLanes<Real>;
        store(at, load(at) * load(inverse + v * kLanes<Real>));
      }
    store_transposed(outputs,
                     row_of(static_cast<Element*>(p.out), p.out_strides, q.batch, q.head, q.first),
                     p.out_strides.row, q.count, p.head_dim);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
