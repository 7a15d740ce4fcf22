// Backward pass of attention with temperature and entropy, for one instruction set.
#pragma once

#include <initializer_list>

#include "kernels/cpu/attention_backward_scratch.h"
#include "kernels/cpu/attention_row_gradients.h"

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
  /// block of keys, items for dQ and dtemperature a tile of queries. Nothing is ever summed over
  /// threads, so there are no atomics and the result is the same run to run.
  static int64_t item_count(const Params& p) {
    const int64_t key_heads = p.batch * p.key_heads;
    if (has_whole_heads(p)) return key_heads;
    return key_heads * key_blocks(p) + p.batch * p.heads * query_tiles(p);
  }

  static void run(const Params& p, void* memory, int64_t first, int64_t last) {
    const int64_t key_heads = p.batch * p.key_heads;
    const bool whole_heads = has_whole_heads(p);
    const int64_t key_items = key_heads * key_blocks(p);
    [[maybe_unused]] const typename Operands::Registers registers(p.head_dim);
    for (int64_t item = first; item < last; ++item) {
      if (whole_heads) {
        BackwardPass(p, memory, item, 0, p.keys, true).all_queries(true);
      } else if (item < key_items) {
        const int64_t begin = item % key_blocks(p) * kKeyBlock;
        const int64_t end = smaller(p.keys, begin + kKeyBlock);
        BackwardPass(p, memory, item / key_blocks(p), begin, end, true).all_queries(false);
      } else {
        const int64_t n = item - key_items, head = n / query_tiles(p);
        const int64_t group = p.heads / p.key_heads;
        BackwardPass(p, memory, head / group, 0, p.keys, false)
            .query_tile(head % p.heads, n % query_tiles(p), true);
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
        wants_keys_(wants_keys) {
    const auto k = key_rows<const Element>(p_.k), v = key_rows<const Element>(p_.v);
    const bool copy = k.stride != p_.head_dim || v.stride != p_.head_dim;
    const bool copy_keys = copy || p_.head_dim % kL != 0;
    const int64_t count = key_end_ - key_begin_;
    keys_ = Operands::rows(k, count, p_.head_dim, copy_keys, operands(at_.keys));
    packed_keys_ = keys_;
    if (kPack > 1 && p_.dq)
      packed_keys_ =
          Operands::weighted_rows(k, count, p_.head_dim, copy_keys, operands(at_.packed_keys));
    if (p_.dout) values_ = Operands::rows(v, count, p_.head_dim, copy, operands(at_.values));
    dkeys_ = sums(p_.dk, at_.dkeys);
    dvalues_ = sums(p_.dv, at_.dvalues);
  }

  static bool has_whole_heads(const Params& p) { return p.batch * p.key_heads >= p.threads; }
  static int64_t key_blocks(const Params& p) { return (p.keys + kKeyBlock - 1) / kKeyBlock; }
  static int64_t query_tiles(const Params& p) { return (p.queries + kTile - 1) / kTile; }

  Operand* operands(int64_t offset) const { return reinterpret_cast<Operand*>(memory_ + offset); }

  template <class T, class Tensor>
  Matrix<T> key_rows(const Tensor& tensor) const {
    return rows_at<T>(tensor, batch_, key_head_, key_begin_);
  }

  /// Rows are used in place where they are of type Real, whole vectors, and follow each other. Far
  /// apart, as in [B, T, H, D], they fall into few sets of the cache.
  static constexpr bool kSameType = sizeof(Element) == sizeof(Real);
  template <class Tensor>
  bool in_place(const Tensor& tensor) const {
    return kSameType && p_.head_dim % kL == 0 && tensor.strides.row == p_.head_dim;
  }

  Matrix<Real> sums(const TensorView<void>& tensor, int64_t scratch) const {
    if constexpr (kSameType)
      if (tensor && in_place(tensor)) return key_rows<Real>(tensor);
    return {memory_ + scratch, at_.row};
  }

  /// All queries of all heads that use the key head, then dK and dV.
  void all_queries(bool wants_queries) {
    const int64_t group = p_.heads / p_.key_heads;
    if (p_.queries == 0) clear(dkeys_);
    if (p_.queries == 0 || !p_.dout) clear(dvalues_);
    for (int64_t h = 0; h < group; ++h) {
      first_head_ = h == 0;
      for (int64_t tile = 0; tile < query_tiles(p_); ++tile)
        query_tile(key_head_ * group + h, tile, wants_queries);
    }
    finish(dkeys_, p_.dk);
    finish(dvalues_, p_.dv);
  }

  void clear(Matrix<Real> sum) const {
    for (int64_t j = 0; j < key_end_ - key_begin_; ++j)
      for (int64_t d = 0; d < p_.head_dim; ++d) sum.row(j)[d] = 0;
  }

  /// Sums that were not made in place go to their tensor.
  void finish(Matrix<Real> sum, const TensorView<void>& tensor) const {
    if (!tensor || in_place(tensor)) return;
    const auto to = key_rows<Element>(tensor);
    for (int64_t j = 0; j < key_end_ - key_begin_; ++j)
      for (int64_t d = 0; d < p_.head_dim; d += kL)
        store_part<Real>(to.row(j) + d, load(sum.row(j) + d), p_.head_dim - d);
  }

  /// One tile of queries against the keys [key_begin, key_end).
  void query_tile(int64_t head, int64_t tile, bool wants_queries) {
    const QueryTile<Real> q(p_, TileRange<Real>(p_, batch_, head, tile));
    RowGradients<Element, Real> rows(p_, q);
    const Matrix<const Operand> queries = load_tile(q, p_.q, at_.queries_t, at_.queries);
    Matrix<const Operand> douts{};
    if (p_.dout) douts = load_tile(q, p_.dout, at_.douts_t, at_.douts, &rows);
    const bool wants_dq = wants_queries && p_.dq;
    const WeightedRows<Operands> dq(q, p_.dq, p_.head_dim, memory_ + at_.dqueries);
    const Ones<Real> ones;

    Prefetch prefetch;
    announce(q, prefetch);
    const int64_t last_key = smaller(key_end_, q.visible_keys(p_));
    if (last_key <= key_begin_ && wants_dq) dq.store_zeros();
    for (int64_t key = key_begin_; key < last_key; key += kKeyTile) {
      const Visibility<Real> visible(p_, q, key, last_key);
      const int64_t row = key - key_begin_;
      alignas(64) Real unused_maxima[kTile] = {};
      compute_scores<Operands>(q, visible, static_cast<const Operand*>(operands(at_.queries_t)),
                               keys_.from(row), p_.head_dim / kPack, memory_ + at_.scores,
                               unused_maxima, prefetch);
      if (p_.dout) compute_dweights(q, visible, key, prefetch);
      compute_dscores(q, visible, rows);
      if (wants_dq)
        dq.add(visible, weighted_from<Operands>(packed_keys_, row), operands(at_.dscores),
               {row == 0, key + kKeyTile >= last_key, ones.of, ones.of}, prefetch);
      if (!wants_keys_) continue;
      const int64_t reached = reached_rows(q, key);
      if (p_.dv && p_.dout)
        add_outer(q, visible, operands(at_.weight_rows), douts, key, reached, dvalues_, prefetch);
      if (p_.dk)
        add_outer(q, visible, operands(at_.dscore_rows), queries, key, reached, dkeys_, prefetch);
    }
    if (wants_queries && p_.dtemperature) rows.store_dtemperature(p_, q);
  }

  /// Keys of the tile at `key` that an earlier tile of queries reached: their sums are added to,
  /// the others begin.
  int64_t reached_rows(const TileRange<Real>& q, int64_t key) const {
    if (!first_head_) return kKeyTile;
    if (q.first == 0) return 0;
    return p_.is_causal ? q.first + p_.keys - p_.queries - key : kKeyTile;
  }

  /// The memory that the tile after this one reads and writes: of the same head, or else the next
  /// head's first.
  void announce(const TileRange<Real>& q, Prefetch& prefetch) const {
    const int64_t group = p_.heads / p_.key_heads;
    int64_t b = q.batch, h = q.head, first = q.first + kTile, from = q.visible_keys(p_);
    if (first >= p_.queries) {
      first = 0, from = 0;
      if (++h == p_.heads) h = 0, ++b;
      if (b == p_.batch) return;
    }
    const TileRange<Real> next(p_, b, h, first / kTile);
    const auto add = [&](const auto& tensor, int64_t head, int64_t row, int64_t rows) {
      prefetch.add<Element>(tensor, b, head, row, rows, p_.head_dim);
    };
    const int64_t keys = next.visible_keys(p_) - from;
    add(p_.q, h, first, next.count);
    if (p_.dout) {
      add(p_.dout, h, first, next.count);
      add(p_.out, h, first, next.count);
    }
    add(p_.k, h / group, from, keys);
    add(p_.v, h / group, from, keys);
    add(p_.dq, h, first, next.count);
    add(p_.dv, h / group, from, keys);
    add(p_.dk, h / group, from, keys);
    // Scores, dP, dK and dV, and dQ of every tile of keys.
    const int64_t seen = q.visible_keys(p_), tiles = (seen + kKeyTile - 1) / kKeyTile;
    const int64_t column_groups = (at_.row + kColumns * kL - 1) / (kColumns * kL);
    prefetch.spread(2 * (1 + column_groups) * seen +
                    tiles * WeightedRows<Operands>::product_rows(p_.head_dim, q.count));
  }

  /// Transposes a tile of rows, and returns it also as packed rows. Of gradients, those of rows
  /// that saw no key are taken for 0, in a copy where the sums of dQ will be.
  Matrix<const Operand> load_tile(const TileRange<Real>& q, const TensorView<const void>& tensor,
                                  int64_t transposed, int64_t packed,
                                  const RowGradients<Element, Real>* gradients = nullptr) const {
    auto rows = rows_at<const Element>(tensor, q.batch, q.head, q.first);
    const bool copy = gradients && gradients->has_empty_row;
    if (copy)
      rows = gradients->without_empty_rows(rows, q.count, p_.head_dim,
                                           reinterpret_cast<Element*>(memory_ + at_.dqueries));
    Operands::transposed(rows, q.count, p_.head_dim, operands(transposed));
    return Operands::packed_rows(rows, q.count, p_.head_dim, copy || !in_place(tensor),
                                 operands(packed));
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
        multiply_rows(product, values.from(row), {douts + first * kL, kTile}, p_.head_dim / kPack);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int v = 0; v < C; ++v)
            store(dweights + (row + r) * kTile + (first + v) * kL, product.at[r][v]);
      });
    });
  }

  /// From scores and dP to P and c dS: dQ = (c dS) K, dK = (c dS)^T Q.
  void compute_dscores(const QueryTile<Real>& q, const Visibility<Real>& visible,
                       RowGradients<Element, Real>& rows) const {
    for_key_runs(q, visible, [&](auto columns, int first, int64_t begin, int64_t end) {
      for (int v = first; v < first + decltype(columns)::value; ++v) {
        const int64_t lane = v * kL;
        const ScoreGradients<Real> gradients{
            load(rows.maximum + lane), load(rows.inverse_sum + lane), load(rows.offset + lane),
            load(rows.dentropy + lane), load(rows.center + lane)};
        const Vec<Real> scale = load(q.scale + lane);
        Vec<Real> dtemperature = load(rows.dtemperature + lane);
        const auto convert_rows = [&](auto count, int64_t j) AERO_LAMBDA_INLINE {
          Vec<Real> scaled[kPack] = {};
#pragma GCC unroll 2
          for (int n = 0; n < decltype(count)::value; ++n) {
            const int64_t at = (j + n) * kTile + lane;
            const Vec<Real> dweight = p_.dout ? load(memory_ + at_.dweights + at) : Vec<Real>{};
            const auto result = gradients.of(load(memory_ + at_.scores + at), dweight);
            dtemperature += result.dscore * result.z;
            scaled[n] = result.dscore * scale;
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
      }
      for (const int64_t weights : {at_.weight_rows, at_.dscore_rows})
        clear_unit_of_rows<Operands>(q, first, begin, end, operands(weights));
    });
  }

  /// sum[j][d] (+)= sum_i weights[j][i] rows[i][d] for the keys of the tile that starts at `key`.
  /// Rows of `sum` from `reached` on hold nothing yet.
  void add_outer(const QueryTile<Real>& q, const Visibility<Real>& visible, const Operand* weights,
                 Matrix<const Operand> rows, int64_t key, int64_t reached, Matrix<Real> sum,
                 Prefetch& prefetch) const {
    const Matrix<Real> base = sum.from(key - key_begin_);
    for_key_runs(q, visible, [&](auto, int run_first, int64_t begin, int64_t end) {
      for_column_groups(at_.row / kL, [&](auto columns, int64_t first) {
        constexpr int C = decltype(columns)::value;
        for_row_groups<C, Operands::kGroup>(begin, end, [&](auto group, int64_t row) {
          constexpr int R = decltype(group)::value;
          prefetch.step(R);
          const int64_t query =
              larger(run_first * kL, visible.first_query(row)) / Operands::kUnit * Operands::kUnit;
          typename Operands::template Product<R, C> product;
          multiply_rows(product, {weights + (row * kTile + query) / kPack, kTile / kPack},
                        rows.from(query / kPack, first * kL),
                        (round_up(q.count, Operands::kUnit) - query) / kPack);
          store_sums<0>(product.at, row, reached, base.from(row, first * kL));
        });
      });
    });
  }

  /// What was reached is reached in whole groups of kRows, of which a product may hold more.
  template <int First, int R, int C>
  static AERO_INLINE void store_sums(const Vec<Real> (&sums)[R][C], int64_t row, int64_t reached,
                                     Matrix<Real> to) {
    constexpr int count = R < kRows ? R : kRows;
    const bool adds = row + First < reached;
#pragma GCC unroll 4
    for (int r = 0; r < count; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) {
        const Vec<Real> sum = sums[First + r][v];
        Real* cell = to.row(First + r) + v * kL;
        store(cell, adds ? load(cell) + sum : sum);
      }
    if constexpr (First + kRows < R) store_sums<First + kRows>(sums, row, reached, to);
  }

  const Params& p_;
  const Scratch at_;
  Real* const memory_;
  const int64_t batch_, key_head_, key_begin_, key_end_;
  const bool wants_keys_;
  bool first_head_ = true;
  Matrix<const Operand> keys_{}, packed_keys_{}, values_{};
  Matrix<Real> dkeys_{}, dvalues_{};
};

}  // namespace
}  // namespace aero::kernels::cpu
