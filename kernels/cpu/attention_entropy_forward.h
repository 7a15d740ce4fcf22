// Forward pass of attention with temperature and entropy, for one instruction set.
#pragma once

#include "kernels/cpu/attention_largest_key.h"
#include "kernels/cpu/attention_transform.h"
#include "kernels/cpu/attention_weighted_rows.h"

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
      outputs = take(WeightedRows<Operands>::size(p.value_dim));
      scores = take(kKeyTile * kTile);
      weights = kPack == 1 ? scores : take(kKeyTile / kPack * kTile);
      keys = take(p.keys * row);
      values = take(Operands::weighted_size(p.keys, p.value_dim));
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

  /// The memory that the next tile reads and writes and this one does not.
  void announce(const TileRange<Real>& q, const TileRange<Real>& next, Prefetch& prefetch) const {
    const int64_t group = p_.heads / p_.key_heads, b = next.batch, h = next.head, g = h / group;
    const bool same_keys = b == q.batch && g == q.head / group;
    const int64_t from = larger(same_keys ? q.visible_keys(p_) : 0, next.first_key(p_));
    const int64_t keys = next.visible_keys(p_) - from;
    prefetch.add<Element>(p_.q, b, h, next.first, next.count, p_.head_dim);
    prefetch.add<Element>(p_.k, b, g, from, keys, p_.head_dim);
    prefetch.add<Element>(p_.v, b, g, from, keys, p_.value_dim);
    prefetch.add<Element>(p_.out, b, h, next.first, next.count, p_.value_dim);
    announce_bias(p_, next, prefetch);
    // Scores, and outputs of every tile of keys.
    const int64_t seen = q.visible_keys(p_) - q.first_key(p_),
                  tiles = (seen + kKeyTile - 1) / kKeyTile;
    prefetch.spread(seen + tiles * WeightedRows<Operands>::product_rows(p_.value_dim, q.count));
  }

  /// Prepares the keys and values of the tile's head, once for all its tiles. They are used where
  /// they are if they need no conversion and follow each other.
  void use_keys_of(const QueryTile<Real>& q) {
    const int64_t g = q.head / (p_.heads / p_.key_heads), head = q.batch * p_.key_heads + g;
    if (head == loaded_head_) return;
    loaded_head_ = head;
    const auto k = rows_at<const Element>(p_.k, q.batch, g, 0);
    const auto v = rows_at<const Element>(p_.v, q.batch, g, 0);
    const bool copy_keys = k.stride != p_.head_dim;
    const bool copy_values = v.stride != p_.value_dim || p_.value_dim % kL != 0;
    keys_ = Operands::rows(k, p_.keys, p_.head_dim, copy_keys, operands(at_.keys));
    values_ = Operands::weighted_rows(v, p_.keys, p_.value_dim, copy_values, operands(at_.values));
  }

  void run_tile(const QueryTile<Real>& q, Prefetch& prefetch) const {
    OnlineSoftmax<Vec<Real>> state[kColumns];
    begin_rows(q, state);
    const TileTransform<Real> transform(p_, q, nullptr);
    const TileDropout<Real> dropout(p_, q);
    Operands::transposed(rows_at<const Element>(p_.q, q.batch, q.head, q.first), q.count,
                         p_.head_dim, operands(at_.queries));
    const WeightedRows<Operands> outputs(q, p_.out, p_.value_dim, memory_ + at_.outputs);
    LargestKeys<Real> largest(p_);

    const int64_t first_key = q.first_key(p_), key_end = q.visible_keys(p_);
    alignas(64) Real inverse_sums[kTile] = {};
    if (key_end == 0) {
      store_statistics(q, state, largest, inverse_sums, dropout.factor);
      if (p_.largest_key) largest.write(p_, q, state);
      outputs.store_zeros();
    }
    for (int64_t key = first_key; key < key_end; key += kKeyTile) {
      const Visibility<Real> visible(p_, q, key, key_end);
      alignas(64) Real maxima[kTile], factors[kTile];
      begin_maxima(state, largest, maxima);
      announce_next_bias(p_, q, key + kKeyTile, key_end, prefetch);
      compute_scores<Operands>(q, visible, static_cast<const Operand*>(operands(at_.queries)),
                               keys_.from(key), p_.head_dim / kPack, memory_ + at_.scores, maxima,
                               prefetch);
      if (p_.transforms()) {
        begin_maxima(state, largest, maxima);  // those of products mean nothing
        transform.apply(visible, key, memory_ + at_.scores, maxima);
      }
      if (p_.largest_key) {
        largest.take(q, visible, key, memory_ + at_.scores, maxima);
        largest.join(state, maxima);
      }
      for (int v = 0; v < kColumns; ++v)
        store(factors + v * kL,
              state[v].raise_maximum(load(maxima + v * kL), [](auto x) { return exp2(x); }));
      if (dropout.drops)
        add_weights<true>(q, visible, key, dropout, state);
      else
        add_weights<false>(q, visible, key, dropout, state);
      const bool is_last = key + kKeyTile >= key_end;
      if (is_last) store_statistics(q, state, largest, inverse_sums, dropout.factor);
      if (is_last && p_.largest_key) largest.write(p_, q, state);
      outputs.add(visible, weighted_from<Operands>(values_, key), operands(at_.weights),
                  {key == first_key, is_last, factors, inverse_sums}, prefetch);
    }
  }

  /// What a tile's scores are to exceed: of the rows, or of their keys alone.
  void begin_maxima(const OnlineSoftmax<Vec<Real>> (&state)[kColumns],
                    const LargestKeys<Real>& largest, Real* maxima) const {
    for (int v = 0; v < kColumns; ++v)
      store(maxima + v * kL, p_.largest_key ? largest.score_of(v) : state[v].maximum);
  }

  /// A row that has seen nothing but its sink.
  void begin_rows(const QueryTile<Real>& q, OnlineSoftmax<Vec<Real>> (&state)[kColumns]) const {
    for (int v = 0; v < kColumns; ++v)
      state[v] = {splat(kEmptyMaximum<Real>), Vec<Real>{}, Vec<Real>{}};
    if (!p_.sinks) return;
    alignas(64) Real sinks[kTile];
    load_sinks(p_, q, sinks);
    for (int v = 0; v < kColumns; ++v) state[v].begin_with(load(sinks + v * kL));
  }

  /// Scores become weights 2^(score - maximum), which the running sums take in.
  template <bool kDrops>
  void add_weights(const QueryTile<Real>& q, const Visibility<Real>& visible,
                   [[maybe_unused]] int64_t key, [[maybe_unused]] const TileDropout<Real>& dropout,
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
            if constexpr (kDrops)
              weight[n] = dropout.stays_at((first + v) * kL, key + j + n) ? weight[n] : Vec<Real>{};
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

  /// Stores what is kept of the rows beside their outputs, and returns what those are multiplied
  /// by: `factor` over their sums.
  void store_statistics(const QueryTile<Real>& q, const OnlineSoftmax<Vec<Real>> (&state)[kColumns],
                        const LargestKeys<Real>& largest, Real* inverse_sums, Real factor) const {
    alignas(64) Real sinks[kTile];
    if (p_.sinks) load_sinks(p_, q, sinks);
    for (int v = 0; v < q.vectors; ++v) {
      const Vec<Real> sum = state[v].sum;
      store(inverse_sums + v * kL, sum == 0 ? Vec<Real>{} : factor / sum);
      RowResult<Vec<Real>> result = finish_row<Real>(state[v], natural_log(sum));
      if (p_.sinks) {
        auto is_alone = state[v].is_only(load(sinks + v * kL));
        if (p_.largest_key) is_alone &= largest.is_none(v);
        result.saved_sum = is_alone ? Vec<Real>{} : sum;
      }
      store_row_result<Real>(p_, q.row(p_, v * kL), result, [&](Real* to, Vec<Real> value) {
        store_part<Real>(to, value, q.count - v * kL);
      });
    }
  }

  const Params& p_;
  const Scratch at_;
  Real* const memory_;
  int64_t loaded_head_ = -1;
  Matrix<const Operand> keys_{}, values_{};
};

}  // namespace
}  // namespace aero::kernels::cpu
