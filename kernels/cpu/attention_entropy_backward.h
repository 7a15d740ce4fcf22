// Backward pass of attention with temperature and entropy, for one instruction set.
#pragma once

#include <initializer_list>

#include "kernels/cpu/attention_backward_scratch.h"
#include "kernels/cpu/attention_key_sums.h"
#include "kernels/cpu/attention_outer_sums.h"
#include "kernels/cpu/attention_row_gradients.h"
#include "kernels/cpu/subnormals.h"

namespace aero::kernels::cpu {
namespace {

/// Operands: Single or Paired, see operands.h.
template <class Operands>
class BackwardPass {
 public:
  using Params = AttentionEntropyBackwardParams;
  using Element = typename Operands::Element;
  using Real = typename Operands::Real;

  static int64_t scratch_bytes(const Params& p) {
    return Scratch(p).total * static_cast<int64_t>(sizeof(Real));
  }

  /// One item per key head computes all gradients of it and of the heads that use it. With fewer
  /// key heads than threads, scores and dP are computed twice instead: items for dK and dV own a
  /// block of keys, items for dQ and dtemperature a tile of queries. Where the gradient of a bias
  /// is summed over batch entries, an item is a key head in all of these. Nothing is ever summed
  /// over threads, so there are no atomics and the result is the same run to run.
  static int64_t item_count(const Params& p) {
    const int64_t key_heads = p.batch * p.key_heads;
    if (has_whole_heads(p)) return item_heads(p).count();
    return key_heads * key_blocks(p) + p.batch * p.heads * query_tiles(p);
  }

  static void run(const Params& p, void* memory, int64_t first, int64_t last) {
    const int64_t key_items = p.batch * p.key_heads * key_blocks(p);
    const bool whole_heads = has_whole_heads(p);
    [[maybe_unused]] const typename Operands::Registers registers(p.head_dim);
    for (int64_t item = first; item < last; ++item) {
      if (whole_heads) {
        item_heads(p).for_each(item, [&](int64_t key_head) {
          BackwardPass(p, memory, key_head, 0, p.keys, true).all_queries(true);
        });
      } else if (item < key_items) {
        const int64_t begin = item % key_blocks(p) * kKeyBlock;
        const int64_t end = smaller(p.keys, begin + kKeyBlock);
        BackwardPass(p, memory, item / key_blocks(p), begin, end, true).all_queries(false);
      } else {
        const int64_t n = item - key_items, head = n / query_tiles(p);
        const int64_t group = p.heads / p.key_heads, tile = n % query_tiles(p);
        const TileRange<Real> q(p, head / p.heads, head % p.heads, tile);
        BackwardPass(p, memory, head / group, q.first_key(p), q.visible_keys(p), false)
            .query_tile(head % p.heads, tile, true);
      }
    }
  }

 private:
  using Operand = typename Operands::Operand;
  using Scratch = BackwardScratch<Operands>;
  static constexpr int kTile = kQueryTile<Real>;
  static constexpr int kL = kLanes<Real>;
  static constexpr int kPack = Operands::kPack;
  static constexpr int64_t kKeyBlock = 2 * kKeyTile;

  /// Keys [key_begin, key_end) of key head `key_head` (counted over the batch).
  BackwardPass(const Params& params, void* memory, int64_t key_head, int64_t key_begin,
               int64_t key_end, bool wants_keys)
      : p_(params),
        at_(params),
        memory_(static_cast<Real*>(memory)),
        batch_(key_head / params.key_heads),
        key_head_(key_head % params.key_heads),
        key_begin_(key_begin),
        key_end_(key_end),
        wants_keys_(wants_keys),
        dkeys_(sums(p_.dk, p_.head_dim, at_.dkeys)),
        dvalues_(sums(p_.dv, p_.value_dim, at_.dvalues)) {
    const auto k = key_rows<const Element>(p_.k), v = key_rows<const Element>(p_.v);
    const bool copy_keys = k.stride != p_.head_dim || p_.head_dim % kL != 0;
    const bool copy_values = v.stride != p_.value_dim;
    const int64_t count = key_end_ - key_begin_;
    keys_ = Operands::rows(k, count, p_.head_dim, copy_keys, operands(at_.keys));
    packed_keys_ = keys_;
    if (kPack > 1 && p_.dq)
      packed_keys_ =
          Operands::weighted_rows(k, count, p_.head_dim, copy_keys, operands(at_.packed_keys));
    if (p_.dout)
      values_ = Operands::rows(v, count, p_.value_dim, copy_values, operands(at_.values));
  }

  static KeyHeads item_heads(const Params& p) { return {p.batch, p.key_heads, p.bias_entries}; }
  static bool has_whole_heads(const Params& p) {
    return p.bias_entries > 1 || p.batch * p.key_heads >= p.threads;
  }
  static int64_t key_blocks(const Params& p) { return (p.keys + kKeyBlock - 1) / kKeyBlock; }
  static int64_t query_tiles(const Params& p) { return (p.queries + kTile - 1) / kTile; }

  Operand* operands(int64_t offset) const { return reinterpret_cast<Operand*>(memory_ + offset); }

  template <class T, class Tensor>
  Matrix<T> key_rows(const Tensor& tensor) const {
    return rows_at<T>(tensor, batch_, key_head_, key_begin_);
  }

  KeySums<Element, Real> sums(const TensorView<void>& tensor, int64_t columns,
                              int64_t scratch) const {
    return {tensor, key_rows<Element>(tensor), key_end_ - key_begin_, columns, memory_ + scratch};
  }

  /// All queries of all heads that use the key head, then dK and dV.
  void all_queries(bool wants_queries) {
    const int64_t group = p_.heads / p_.key_heads;
    const int64_t unseen = p_.queries == 0 ? p_.keys : tile_range(0, 0).first_key(p_);
    dkeys_.clear(unseen - key_begin_);
    dvalues_.clear((p_.dout ? unseen : p_.keys) - key_begin_);
    for (int64_t h = 0; h < group; ++h) {
      first_head_ = h == 0;
      for (int64_t tile = 0; tile < query_tiles(p_); ++tile) {
        const TileRange<Real> q = tile_range(0, tile);
        const bool sees = q.first_key(p_) < key_end_ && q.visible_keys(p_) > key_begin_;
        if (sees || wants_queries) query_tile(key_head_ * group + h, tile, wants_queries);
      }
    }
    dkeys_.finish();
    dvalues_.finish();
  }

  TileRange<Real> tile_range(int64_t head, int64_t tile) const {
    return TileRange<Real>(p_, batch_, head, tile);
  }

  /// One tile of queries against the keys [key_begin, key_end).
  void query_tile(int64_t head, int64_t tile, bool wants_queries) {
    const QueryTile<Real> q(p_, tile_range(head, tile));
    const FlushedSubnormals flushed(!q.has_tiny_scale);
    RowGradients<Element, Real> rows(p_, q);
    const Matrix<const Operand> queries =
        load_tile(q, p_.q, p_.head_dim, {at_.queries_t, at_.queries});
    Matrix<const Operand> douts{};
    if (p_.dout) douts = load_tile(q, p_.dout, p_.value_dim, {at_.douts_t, at_.douts}, &rows);
    const bool wants_dq = wants_queries && p_.dq;
    const WeightedRows<Operands> dq(q, p_.dq, p_.head_dim, memory_ + at_.dqueries);
    const TileTransform<Real> transform(p_, q,
                                        p_.softcap != 0 ? memory_ + at_.cap_slopes : nullptr);
    const TileDropout<Real> dropout(p_, q);
    const Ones<Real> ones;

    Prefetch prefetch;
    announce(q, prefetch);
    const int64_t first_key = larger(key_begin_, q.first_key(p_));
    const int64_t last_key = smaller(key_end_, q.visible_keys(p_));
    if (last_key <= first_key && wants_dq) dq.store_zeros();
    const bool wants_dbias = wants_queries && static_cast<bool>(p_.dbias);
    if (wants_dbias && !adds_dbias(p_, q.batch)) clear_unseen_dbias(p_, q);
    for (int64_t key = first_key; key < last_key; key += kKeyTile) {
      const Visibility<Real> visible(p_, q, key, last_key);
      const int64_t row = key - key_begin_;
      alignas(64) Real unused_maxima[kTile] = {};
      announce_next_bias(p_, q, key + kKeyTile, last_key, prefetch);
      compute_scores<Operands>(q, visible, static_cast<const Operand*>(operands(at_.queries_t)),
                               keys_.from(row), p_.head_dim / kPack, memory_ + at_.scores,
                               unused_maxima, prefetch);
      if (p_.transforms()) transform.apply(visible, key, memory_ + at_.scores, unused_maxima);
      if (p_.dout) compute_dweights(q, visible, key, prefetch);
      if (p_.transforms() || dropout.drops || p_.dmax_logits)
        compute_dscores<true>(q, visible, key, {transform, dropout}, rows);
      else
        compute_dscores<false>(q, visible, key, {transform, dropout}, rows);
      if (wants_dbias) store_dbias(p_, q, visible, key, memory_ + at_.dbias);
      if (wants_dq)
        dq.add(visible, weighted_from<Operands>(packed_keys_, row), operands(at_.dscores),
               {key == first_key, key + kKeyTile >= last_key, ones.of, ones.of}, prefetch);
      if (!wants_keys_) continue;
      const int64_t reached = reached_rows(q, key);
      if (p_.dv && p_.dout)
        OuterSums<Operands>{reached, at_.value_row / kL}.add(
            q, visible, {operands(at_.weight_rows), douts, dvalues_.from(row)}, prefetch);
      if (p_.dk)
        OuterSums<Operands>{reached, at_.row / kL}.add(
            q, visible, {operands(at_.dscore_rows), queries, dkeys_.from(row)}, prefetch);
    }
    if (!wants_queries) return;
    if (p_.sinks) rows.add_sinks(p_, q);
    if (p_.dslopes) rows.store_dslopes(p_, q);
    if (p_.dtemperature) rows.store_dtemperature(p_, q);
  }

  /// Keys of the tile at `key` that an earlier tile of queries reached: their sums are added to,
  /// the others begin.
  int64_t reached_rows(const TileRange<Real>& q, int64_t key) const {
    if (!first_head_) return kKeyTile;
    if (q.first == 0) return 0;
    return p_.ends() ? q.first + p_.keys - p_.queries + p_.reach() - key : kKeyTile;
  }

  /// The memory that the tile after this one reads and writes: of the same head, or else the next
  /// head's first.
  void announce(const TileRange<Real>& q, Prefetch& prefetch) const {
    const int64_t group = p_.heads / p_.key_heads;
    int64_t b = q.batch, h = q.head, first = q.first + kTile, read = q.visible_keys(p_);
    if (first >= p_.queries) {
      first = 0, read = 0, ++h;
      if (h % group == 0 && (b + 1) % p_.bias_entries != 0 && b + 1 < p_.batch)
        h -= group, ++b;  // the item goes on there
      else if (h == p_.heads)
        h = 0, b = round_up(b + 1, p_.bias_entries);
      else if (h % group == 0)
        b = b / p_.bias_entries * p_.bias_entries;
      if (b >= p_.batch) return;
    }
    const TileRange<Real> next(p_, b, h, first / kTile);
    const auto add = [&](const auto& of_queries, const auto& of_keys, int64_t columns) {
      const int64_t from = larger(read, next.first_key(p_)), keys = next.visible_keys(p_) - from;
      prefetch.add<Element>(of_queries, b, h, first, next.count, columns);
      prefetch.add<Element>(of_keys, b, h / group, from, keys, columns);
    };
    add(p_.q, p_.k, p_.head_dim);
    add(p_.dout, p_.v, p_.value_dim);
    if (p_.dout) add(p_.out, TensorView<void>{}, p_.value_dim);
    add(p_.dq, p_.dk, p_.head_dim);
    add(TensorView<void>{}, p_.dv, p_.value_dim);
    announce_bias(p_, next, prefetch);
    // Scores, dP, dK and dV, and dQ of every tile of keys.
    const int64_t seen = q.visible_keys(p_) - q.first_key(p_),
                  tiles = (seen + kKeyTile - 1) / kKeyTile;
    const auto groups = [](int64_t row) { return (row + kColumns * kL - 1) / (kColumns * kL); };
    prefetch.spread((2 + groups(at_.row) + groups(at_.value_row)) * seen +
                    tiles * WeightedRows<Operands>::product_rows(p_.head_dim, q.count));
  }

  /// Where the two go, in scratch.
  struct TileCopies {
    int64_t transposed, packed;
  };
  /// Transposes a tile of rows, and returns it also as packed rows. Of gradients, those of rows
  /// that saw no key are taken for 0, in a copy where the sums of dQ will be.
  Matrix<const Operand> load_tile(const TileRange<Real>& q, const TensorView<const void>& tensor,
                                  int64_t columns, TileCopies to,
                                  const RowGradients<Element, Real>* gradients = nullptr) const {
    auto rows = rows_at<const Element>(tensor, q.batch, q.head, q.first);
    const bool copy = gradients && gradients->has_empty_row;
    if (copy)
      rows = gradients->without_empty_rows(rows, q.count, columns,
                                           reinterpret_cast<Element*>(memory_ + at_.dqueries));
    Operands::transposed(rows, q.count, columns, operands(to.transposed));
    return Operands::packed_rows(rows, q.count, columns,
                                 copy || !is_in_place<Element, Real>(tensor, columns),
                                 operands(to.packed));
  }

  /// dP[j][i] = dO_i . v_j
  void compute_dweights(const QueryTile<Real>& q, const Visibility<Real>& visible, int64_t key,
                        Prefetch& prefetch) const {
    const Matrix<const Operand> values = values_.from(key - key_begin_);
    const Operand* douts = operands(at_.douts_t);
    Real* dweights = memory_ + at_.dweights;
    for_key_runs(q, visible, [&](auto columns, int first, int64_t begin, int64_t end) {
      constexpr int C = decltype(columns)::value;
      for_row_groups<C, Operands::kGroup>(begin, end, [&](auto group, int64_t row) {
        constexpr int R = decltype(group)::value;
        prefetch.step(R);
        typename Operands::template Product<R, C> product;
        multiply_rows(product, values.from(row), {douts + first * kL, kTile}, p_.value_dim / kPack);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int v = 0; v < C; ++v)
            store(dweights + (row + r) * kTile + (first + v) * kL, product.at[r][v]);
      });
    });
  }

  /// What stands between products and weights of a tile.
  struct Variant {
    const TileTransform<Real>& transform;
    const TileDropout<Real>& dropout;
  };

  /// From scores and dP to P and c dS: dQ = (c dS) K, dK = (c dS)^T Q.
  template <bool kVariant>
  void compute_dscores(const QueryTile<Real>& q, const Visibility<Real>& visible,
                       [[maybe_unused]] int64_t key, [[maybe_unused]] const Variant& variant,
                       RowGradients<Element, Real>& rows) const {
    for_key_runs(q, visible, [&](auto columns, int first, int64_t begin, int64_t end) {
      for (int v = first; v < first + decltype(columns)::value; ++v) {
        const int64_t lane = v * kL;
        const ScoreGradients<Real> gradients{
            load(rows.maximum + lane), load(rows.inverse_sum + lane), load(rows.offset + lane),
            load(rows.dentropy + lane), load(rows.center + lane)};
        const Vec<Real> scale = load(q.scale + lane);
        Vec<Real> dtemperature = load(rows.dtemperature + lane);
        [[maybe_unused]] Vec<Real> dslope = load(rows.dslope + lane);
        // Locals, as what is stored may be anything to the compiler.
        [[maybe_unused]] const bool has_dout = static_cast<bool>(p_.dout), caps = p_.softcap != 0,
                                    drops = variant.dropout.drops, has_largest = p_.dmax_logits,
                                    has_slopes = p_.dslopes, has_bias = static_cast<bool>(p_.dbias);
        // Few keys have a row's largest score, so most need no look at the lanes.
        [[maybe_unused]] const uint64_t largest =
            has_largest ? rows.largest_keys(lane, key) : uint64_t{0};
        const auto convert_rows = [&](auto count, int64_t j) AERO_LAMBDA_INLINE {
          Vec<Real> scaled[kPack] = {};
#pragma GCC unroll 2
          for (int n = 0; n < decltype(count)::value; ++n) {
            const int64_t at = (j + n) * kTile + lane;
            Vec<Real> dweight = has_dout ? load(memory_ + at_.dweights + at) : Vec<Real>{};
            if constexpr (kVariant)
              if (drops) dweight = variant.dropout.weight_of(dweight, lane, key + j + n);
            auto result = gradients.of(load(memory_ + at_.scores + at), dweight);
            if constexpr (kVariant)
              if ((largest >> static_cast<uint64_t>(j + n)) & 1U) {
                const Vec<Real> own = rows.of_largest(lane, key + j + n);
                dtemperature += gradients.beyond_bound(load(memory_ + at_.scores + at), own);
                result.dscore += own;
              }
            dtemperature += result.dscore * result.z;
            scaled[n] = result.dscore * scale;
            if constexpr (kVariant) {
              if (drops)
                result.weight = variant.dropout.weight_of(result.weight, lane, key + j + n);
              if (caps) scaled[n] *= load(memory_ + at_.cap_slopes + at);
              if (has_slopes)
                dslope += result.dscore * variant.transform.distance_of(lane, key + j + n);
              if (has_bias) store(memory_ + at_.dbias + at, result.dscore);
            }
            Operands::store_row(operands(at_.weight_rows), at, result.weight);
            Operands::store_row(operands(at_.dscore_rows), at, scaled[n]);
          }
          if constexpr (kPack > 1)
            Operands::store_packed(operands(at_.dscores) + j / kPack * kTile + lane, scaled);
        };
        int64_t j = begin;
        for (; j + kPack <= end; j += kPack) convert_rows(Constant<kPack>{}, j);
        if (j < end) convert_rows(Constant<1>{}, j);
        store(rows.dtemperature + lane, dtemperature);
        if constexpr (kVariant) store(rows.dslope + lane, dslope);
      }
      for (const int64_t weights : {at_.weight_rows, at_.dscore_rows})
        clear_unit_of_rows<Operands>(q, first, begin, end, operands(weights));
    });
  }

  const Params& p_;
  const Scratch at_;
  Real* const memory_;
  const int64_t batch_, key_head_, key_begin_, key_end_;
  const bool wants_keys_;
  bool first_head_ = true;
  const KeySums<Element, Real> dkeys_, dvalues_;
  Matrix<const Operand> keys_{}, packed_keys_{}, values_{};
};

}  // namespace
}  // namespace aero::kernels::cpu
