// Forward pass of attention with temperature and entropy, for one instruction set.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// Operands: Single or Paired, see operands.h.
template <class Operands>
class ForwardPass {
 public:
  using Params = AttentionEntropyForwardParams;
  using Element = typename Operands::Element;
  using Real = typename Operands::Real;

  static int64_t scratch_bytes(const Params& p) {
    return Scratch(p).total * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t tiles(const Params& p) {
    return (p.queries + kQueryTile<Real> - 1) / kQueryTile<Real>;
  }
  static int64_t item_count(const Params& p) { return p.batch * p.heads * tiles(p); }

  static void run(const Params& p, void* memory, int64_t first, int64_t last) {
    [[maybe_unused]] const typename Operands::Registers registers(p.head_dim);
    ForwardPass pass(p, static_cast<Real*>(memory));
    for (int64_t item = first; item < last; ++item) {
      const QueryTile<Real> q(p, tile_of(p, item));
      Prefetch prefetch;
      if (item + 1 < last) pass.announce(q, tile_of(p, item + 1), prefetch);
      pass.use_keys_of(q);
      pass.run_tile(q, prefetch);
    }
  }

 private:
  using Operand = typename Operands::Operand;
  static constexpr int kTile = kQueryTile<Real>;
  static constexpr int kL = kLanes<Real>;
  static constexpr int kPack = Operands::kPack;

  /// Scratch of one thread, as offsets in elements of Real (an operand takes no more).
  struct Scratch {
    int64_t queries, outputs, scores, weights, keys, values, total = 0;

    explicit Scratch(const Params& p) {
      const int64_t row = round_up(p.head_dim, kL);
      queries = take(row * kTile);
      outputs = take(row * kTile);
      scores = take(kKeyTile * kTile);
      weights = kPack == 1 ? scores : take(kKeyTile / kPack * kTile);
      keys = take(p.keys * row);
      values = take(Operands::weighted_size(p.keys, p.head_dim));
    }
    int64_t take(int64_t count) {
      const int64_t at = total;
      total += round_up(count, 64);
      return at;
    }
  };

  ForwardPass(const Params& params, Real* memory) : p_(params), at_(params), memory_(memory) {}

  static TileRange<Real> tile_of(const Params& p, int64_t item) {
    const int64_t head = item / tiles(p), n = item % tiles(p);
    // Tiles from both ends in turn: with the causal rule equal ranges of items are equal work.
    const int64_t tile = n % 2 ? tiles(p) - 1 - n / 2 : n / 2;
    return TileRange<Real>(p, head / p.heads, head % p.heads, tile);
  }

  Operand* operands(int64_t offset) const { return reinterpret_cast<Operand*>(memory_ + offset); }

  /// What the next tile reads and writes and this one does not.
  void announce(const TileRange<Real>& q, const TileRange<Real>& next, Prefetch& prefetch) const {
    const int64_t group = p_.heads / p_.key_heads, b = next.batch, h = next.head, g = h / group;
    const bool same_keys = b == q.batch && g == q.head / group;
    const int64_t from = same_keys ? q.visible_keys(p_) : 0, keys = next.visible_keys(p_) - from;
    const auto add = [&](const void* tensor, const Strides& s, int64_t head, int64_t row,
                         int64_t rows) {
      prefetch.add(static_cast<const Element*>(tensor), s, b, head, row, rows, p_.head_dim);
    };
    add(p_.q, p_.q_strides, h, next.first, next.count);
    add(p_.out, p_.out_strides, h, next.first, next.count);
    add(p_.k, p_.k_strides, g, from, keys);
    add(p_.v, p_.v_strides, g, from, keys);
    // One step per group of rows that the two products go through.
    const int64_t seen = q.visible_keys(p_);
    constexpr int group_rows = Operands::kGroup;
    prefetch.spread(seen / group_rows +
                    (seen + kKeyTile - 1) / kKeyTile * (p_.head_dim / group_rows));
  }

  /// Prepares the keys and values of the tile's head, once for all its tiles. They are used where
  /// they are if they need no conversion and follow each other.
  void use_keys_of(const QueryTile<Real>& q) {
    const int64_t g = q.head / (p_.heads / p_.key_heads), head = q.batch * p_.key_heads + g;
    if (head == loaded_head_) return;
    loaded_head_ = head;
    const bool copy = p_.k_strides.row != p_.head_dim || p_.v_strides.row != p_.head_dim;
    const auto* k = static_cast<const Element*>(p_.k);
    const auto* v = static_cast<const Element*>(p_.v);
    keys_ = Operands::rows(row_of(k, p_.k_strides, q.batch, g, 0), p_.k_strides.row, p_.keys,
                           p_.head_dim, copy, operands(at_.keys));
    values_ = Operands::weighted_rows(row_of(v, p_.v_strides, q.batch, g, 0), p_.v_strides.row,
                                      p_.keys, p_.head_dim, copy, operands(at_.values));
  }

  void run_tile(const QueryTile<Real>& q, Prefetch& prefetch) const {
    OnlineSoftmax<Vec<Real>> state[kColumns];
    for (int v = 0; v < kColumns; ++v)
      state[v] = {splat(static_cast<Real>(kEmptyMaximum)), Vec<Real>{}, Vec<Real>{}};
    const auto* queries = static_cast<const Element*>(p_.q);
    Operands::transposed(row_of(queries, p_.q_strides, q.batch, q.head, q.first), p_.q_strides.row,
                         q.count, p_.head_dim, operands(at_.queries));
    Real* outputs = memory_ + at_.outputs;

    const int64_t key_end = q.visible_keys(p_);
    if (key_end == 0)
      for (int64_t n = 0; n < p_.head_dim * kTile; n += kL) store(outputs + n, Vec<Real>{});
    for (int64_t key = 0; key < key_end; key += kKeyTile) {
      const Visibility<Real> visible(p_, q, key, key_end);
      const Matrix<const Operand> keys{keys_.data + key * keys_.stride, keys_.stride};
      const auto values = weighted_from<Operands>(values_, key);
      alignas(64) Real maxima[kTile], factors[kTile];
      for (int v = 0; v < kColumns; ++v) store(maxima + v * kL, state[v].maximum);
      compute_scores<Operands>(q, visible, static_cast<const Operand*>(operands(at_.queries)), keys,
                               p_.head_dim / kPack, memory_ + at_.scores, maxima, prefetch);
      for (int v = 0; v < kColumns; ++v)
        store(factors + v * kL,
              state[v].raise_maximum(load(maxima + v * kL), [](auto x) { return exp2(x); }));
      add_weights(q, visible, state);
      clear_unseen_weights<Operands>(q, visible, operands(at_.weights));
      add_weighted_rows<Operands>(
          q, visible, values, static_cast<const Operand*>(operands(at_.weights)), p_.head_dim,
          prefetch, [&](int64_t n, int64_t lane, Vec<Real> sum) AERO_LAMBDA_INLINE {
            Real* to = outputs + n;
            store(to, key == 0 ? sum : load(to) * load(factors + lane) + sum);
          });
    }
    finish(q, state, outputs);
  }

  /// Scores become weights 2^(score - maximum), which the running sums take in.
  void add_weights(const QueryTile<Real>& q, const Visibility<Real>& visible,
                   OnlineSoftmax<Vec<Real>> (&state)[kColumns]) const {
    for_key_runs(q, visible, [&](auto columns, int first, int64_t begin, int64_t end) {
      constexpr int C = decltype(columns)::value;
      OnlineSoftmax<Vec<Real>> local[C];
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) local[v] = state[first + v];
      const Real* scores = memory_ + at_.scores + first * kL;
      Operand* weights = operands(at_.weights) + first * kL;
      const auto add_rows = [&](auto rows, int64_t j) AERO_LAMBDA_INLINE {
#pragma GCC unroll 4
        for (int v = 0; v < C; ++v) {
          Vec<Real> weight[kPack] = {};
#pragma GCC unroll 2
          for (int n = 0; n < decltype(rows)::value; ++n) {
            const Vec<Real> x = load(scores + (j + n) * kTile + v * kL) - local[v].maximum;
            weight[n] = exp2(x);
            local[v].add(x, weight[n]);
          }
          Operands::store_packed(weights + j / kPack * kTile + v * kL, weight);
        }
      };
      int64_t j = begin;
      for (; j + kPack <= end; j += kPack) add_rows(Constant<kPack>{}, j);
      if (j < end) add_rows(Constant<1>{}, j);
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) state[first + v] = local[v];
    });
  }

  void finish(const QueryTile<Real>& q, const OnlineSoftmax<Vec<Real>> (&state)[kColumns],
              Real* outputs) const {
    alignas(64) Real inverse[kTile];
    for (int v = 0; v < q.vectors; ++v) {
      const Vec<Real> sum = state[v].sum;
      store(inverse + v * kL, sum == 0 ? Vec<Real>{} : 1 / sum);
      store_row_result<Real>(
          p_, q.row(p_, v * kL),
          finish_row<Real>(state[v].maximum, sum, state[v].score_sum, natural_log(sum)),
          [&](Real* to, Vec<Real> value) { store_part<Real>(to, value, q.count - v * kL); });
    }
    auto* out = static_cast<Element*>(p_.out);
    store_transposed(outputs, inverse, row_of(out, p_.out_strides, q.batch, q.head, q.first),
                     p_.out_strides.row, q.count, p_.head_dim);
  }

  const Params& p_;
  const Scratch at_;
  Real* const memory_;
  int64_t loaded_head_ = -1;
  Matrix<const Operand> keys_{}, values_{};
};

}  // namespace
}  // namespace aero::kernels::cpu
