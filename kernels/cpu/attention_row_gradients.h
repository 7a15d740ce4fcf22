// The values of each query in attention's backward pass, one query per lane.
#pragma once

#include <limits>

#include "kernels/cpu/attention_transform.h"

namespace aero::kernels::cpu {
namespace {

/// The factors that turn scores into gradients, one row per lane; see online_softmax.h.
template <class Real>
struct ScoreGradients {
  Vec<Real> row_maximum, inverse_sum, offset;  ///< m, 1 / l (0 for a row that saw no key), w
  Vec<Real> dentropy, center;                  ///< gE, D - gL

  struct Result {
    Vec<Real> weight, z, dscore;  ///< P, ln P + entropy, dS
  };
  AERO_INLINE Result of(Vec<Real> score, Vec<Real> dweight) const {
    const Vec<Real> x = maximum(splat(kLeast), score - row_maximum);
    const Vec<Real> weight = exp2(x) * inverse_sum;
    const Vec<Real> z = x * static_cast<Real>(kLn2) + offset;
    return {weight, z, weight * (dweight - dentropy * z - center)};
  }
  /// What lacks in sum_j dS z where the largest score, to which `own` comes back, is below the
  /// bound of `of`, as it may be beside a sink.
  AERO_INLINE Vec<Real> beyond_bound(Vec<Real> score, Vec<Real> own) const {
    const Vec<Real> x = score - row_maximum;
    const Vec<Real> rest = (x - maximum(splat(kLeast), x)) * static_cast<Real>(kLn2);
    return own == 0 ? Vec<Real>{} : own * rest;
  }
  /// Of the row's sink. Where that alone has weight, logsumexp is its score and entropy is 0; `z`
  /// is then the score in nats, so that dt takes in logsumexp.
  AERO_INLINE Result of_sink(Vec<Real> score, Vec<Real> dentropy_of_row,
                             Vec<Real> dlogsumexp_of_row) const {
    const Result among = of(score, Vec<Real>{});
    const Vec<Real> one = splat(Real{1});
    const auto is_alone = (inverse_sum == 0) & (score > kEmptyMaximum<Real>);
    return {is_alone ? one : among.weight, is_alone ? score * static_cast<Real>(kLn2) : among.z,
            is_alone ? dlogsumexp_of_row - dentropy_of_row * 0 : among.dscore};
  }

  /// Below 2^-2000 P is 0 whatever z is; the bound keeps a hidden key's z finite.
  static constexpr Real kLeast = -2000;
};

/// Saved statistics and incoming gradients of the rows of a query tile; zeros beyond its last row.
/// What comes back to a row that saw no key is 0 here: inf and NaN would not vanish in products
/// with its weights, which are 0, and reach keys that other rows see.
template <class Element, class Real>
struct RowGradients {
  using Params = AttentionEntropyBackwardParams;

  alignas(64) Real maximum[kQueryTile<Real>] = {};      ///< m, inf for a row that saw no key
  alignas(64) Real inverse_sum[kQueryTile<Real>] = {};  ///< 1 / l, 0 for a row that saw no key
  alignas(64) Real offset[kQueryTile<Real>] = {};       ///< w
  alignas(64) Real dentropy[kQueryTile<Real>] = {};
  alignas(64) Real center[kQueryTile<Real>] = {};        ///< D - gL
  alignas(64) Real dtemperature[kQueryTile<Real>] = {};  ///< sum_j dS z so far
  alignas(64) Real dslope[kQueryTile<Real>] = {};        ///< sum_j dS distance so far
  alignas(64) Real dmax_logit[kQueryTile<Real>];         ///< of rows that saw a key
  alignas(64) typename Simd<Real>::Word largest_key[kQueryTile<Real>];
  bool has_empty_row = false;  ///< one that saw no key

  RowGradients(const Params& p, const QueryTile<Real>& q) {
    for (int64_t i = 0; i < q.count; i += kL) {
      const int64_t row = q.row(p, i);
      // [B, H, 3, T]
      const Real* saved = static_cast<const Real*>(p.statistics) + row +
                          (kSavedStatistics - 1) * p.queries * (q.batch * p.heads + q.head);
      const auto rows_of = [&](const void* tensor, int64_t first) {
        return load_part<Real>(static_cast<const Real*>(tensor) + first, q.count - i);
      };
      const Vec<Real> sum = rows_of(saved, p.queries);
      const auto seeing = [&](Vec<Real> x) { return sum == 0 ? Vec<Real>{} : x; };
      // Whatever its scores are, a row that saw no key has no weight; so has one beyond the last.
      store(maximum + i,
            sum == 0 ? splat(std::numeric_limits<Real>::infinity()) : rows_of(saved, 0));
      store(inverse_sum + i, seeing(1 / sum));
      store(offset + i, rows_of(saved, 2 * p.queries));
      if (p.dentropy) store(dentropy + i, seeing(rows_of(p.dentropy, row)));
      Vec<Real> dot = p.dout ? output_dots(p, q, i) : Vec<Real>{};
      if (p.dlogsumexp) dot -= rows_of(p.dlogsumexp, row);
      store_part<Real>(center + i, seeing(dot), q.count - i);
    }
    for (int64_t i = 0; i < q.count; ++i) has_empty_row |= inverse_sum[i] == 0;
    if (p.dmax_logits) load_largest(p, q);
  }

  /// What comes back to the largest score of each query, where key `key` has it.
  AERO_INLINE Vec<Real> of_largest(int64_t lane, int64_t key) const {
    typename Simd<Real>::Int own;
    __builtin_memcpy(&own, largest_key + lane, sizeof(own));
    const auto same = own == (own ^ own) + static_cast<typename Simd<Real>::Word>(key);
    return same ? load(dmax_logit + lane) : Vec<Real>{};
  }

  /// The keys from `key` on, one per bit, that have the largest score of any of a vector's queries.
  uint64_t largest_keys(int64_t lane, int64_t key) const {
    static_assert(kKeyTile == 64);
    uint64_t bits = 0;
    for (int64_t i = lane; i < lane + kL; ++i) {
      const auto at = static_cast<uint64_t>(largest_key[i] - key);
      if (at < 64) bits |= uint64_t{1} << at;
    }
    return bits;
  }

  /// The part of the sinks in dtemperature, and their gradients.
  void add_sinks(const Params& p, const QueryTile<Real>& q) {
    alignas(64) Real sinks[kQueryTile<Real>];
    load_sinks(p, q, sinks);
    for (int64_t i = 0; i < q.count; i += kL) {
      const ScoreGradients<Real> gradients{load(maximum + i), load(inverse_sum + i),
                                           load(offset + i), load(dentropy + i), load(center + i)};
      const auto rows_of = [&](const void* tensor) {
        const auto* rows = static_cast<const Real*>(tensor) + q.row(p, i);
        return tensor ? load_part<Real>(rows, q.count - i) : Vec<Real>{};
      };
      const auto sink =
          gradients.of_sink(load(sinks + i), rows_of(p.dentropy), rows_of(p.dlogsumexp));
      store(dtemperature + i, load(dtemperature + i) + sink.dscore * sink.z);
      if (p.dsinks)
        store_part<Real>(static_cast<Real*>(p.dsinks) + q.row(p, i),
                         sink.dscore / load(q.temperature + i), q.count - i);
    }
  }

  void store_dslopes(const Params& p, const QueryTile<Real>& q) const {
    for (int64_t i = 0; i < q.count; i += kL)
      store_part<Real>(static_cast<Real*>(p.dslopes) + q.row(p, i),
                       -load(dslope + i) / load(q.temperature + i), q.count - i);
  }

  /// A copy of the tile's rows of a tensor, with zeros for those that saw no key.
  Matrix<const Element> without_empty_rows(Matrix<const Element> rows, int64_t count,
                                           int64_t columns, Element* copy) const {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t d = 0; d < columns; ++d)
        copy[i * columns + d] = inverse_sum[i] == 0 ? Element{} : rows.row(i)[d];
    return {copy, columns};
  }

  /// dt = -(1/t) (sum_j dS z + (logsumexp - entropy) sum_j dS), where the latter sum is what comes
  /// back to logsumexp and max_logits.
  void store_dtemperature(const Params& p, const QueryTile<Real>& q) const {
    for (int64_t i = 0; i < q.count; i += kL) {
      const int64_t row = q.row(p, i), left = q.count - i;
      Vec<Real> sum = load(dtemperature + i);
      if (p.dlogsumexp || p.dmax_logits) {
        Vec<Real> shift = p.dmax_logits ? load(dmax_logit + i) : Vec<Real>{};
        if (p.dlogsumexp)
          shift += load_part<Real>(static_cast<const Real*>(p.dlogsumexp) + row, left);
        // logsumexp - entropy
        const Vec<Real> mean_score = static_cast<Real>(kLn2) * load(maximum + i) - load(offset + i);
        sum += load(inverse_sum + i) == 0 ? Vec<Real>{} : mean_score * shift;
      }
      store_part<Real>(static_cast<Real*>(p.dtemperature) + row, -sum / load(q.temperature + i),
                       left);
    }
  }

 private:
  static constexpr int kL = kLanes<Real>;

  void load_largest(const Params& p, const QueryTile<Real>& q) {
    for (int64_t i = 0; i < kQueryTile<Real>; ++i) {
      const int64_t key = i < q.count ? p.largest_key[q.row(p, i)] : -1;
      dmax_logit[i] = key < 0 ? 0 : static_cast<const Real*>(p.dmax_logits)[q.row(p, i)];
      largest_key[i] = static_cast<typename Simd<Real>::Word>(key);
    }
  }

  /// dO . O of a vector of rows from row i of the tile on.
  static Vec<Real> output_dots(const Params& p, const QueryTile<Real>& q, int64_t i) {
    const auto out = rows_at<const Element>(p.out, q.batch, q.head, q.first + i);
    const auto dout = rows_at<const Element>(p.dout, q.batch, q.head, q.first + i);
    constexpr int together = kRows < kL ? kRows : kL;
    Vec<Real> dots[kL];
#pragma GCC unroll 4
    for (int r = 0; r < kL; r += together) {
      const Element *outs[together], *douts[together];
      for (int n = 0; n < together; ++n) {
        // Beyond the last row of the tile it stands in.
        const int64_t row = smaller(r + n, q.count - i - 1);
        outs[n] = out.row(row);
        douts[n] = dout.row(row);
      }
      Vec<Real> sums[together] = {};
      for (int64_t d = 0; d < p.value_dim; d += kL)
#pragma GCC unroll 4
        for (int n = 0; n < together; ++n)
          sums[n] += load_part<Real>(outs[n] + d, p.value_dim - d) *
                     load_part<Real>(douts[n] + d, p.value_dim - d);
      for (int n = 0; n < together; ++n) dots[r + n] = sums[n];
    }
    return sums_of_rows<Real>(dots);
  }
};

/// Key heads whose items are one, because their gradients of the bias are.
struct KeyHeads {
  int64_t batch, key_heads, entries;

  int64_t count() const { return (batch + entries - 1) / entries * key_heads; }
  /// Calls body with each key head of an item, counted over the batch.
  template <class Body>
  void for_each(int64_t item, const Body& body) const {
    const int64_t begin = item / key_heads * entries, end = smaller(batch, begin + entries);
    for (int64_t b = begin; b < end; ++b) body(b * key_heads + item % key_heads);
  }
};

/// Whether an entry of the batch before this one has begun its part of dbias.
inline bool adds_dbias(const AttentionEntropyBackwardParams& p, int64_t batch) {
  return batch % p.bias_entries != 0;
}
template <class Real>
Matrix<Real> dbias_rows(const AttentionEntropyBackwardParams& p, int64_t batch, int64_t head,
                        int64_t row) {
  return rows_at<Real>(p.dbias, batch / p.bias_entries, head, row);
}

/// Zeros before and behind the tiles of keys that a tile of queries sees.
template <class Real>
void clear_unseen_dbias(const AttentionEntropyBackwardParams& p, const TileRange<Real>& q) {
  const auto rows = dbias_rows<Real>(p, q.batch, q.head, q.first);
  const int64_t seen = larger(0, q.visible_keys(p)), first = smaller(q.first_key(p), seen);
  constexpr size_t size = sizeof(Real);
  for (int64_t i = 0; i < q.count; ++i) {
    __builtin_memset(rows.row(i), 0, static_cast<size_t>(first) * size);
    __builtin_memset(rows.row(i) + seen, 0, static_cast<size_t>(p.keys - seen) * size);
  }
}

/// dbias = dS / t of what a tile of keys sees; `tile`: dS, [keys, tile].
template <class Real>
void store_dbias(const AttentionEntropyBackwardParams& p, const QueryTile<Real>& q,
                 const Visibility<Real>& visible, int64_t key, Real* tile) {
  constexpr int lanes = kLanes<Real>;
  alignas(64) Real inverse[kQueryTile<Real>];
  for (int v = 0; v < kColumns; ++v) {
    store(inverse + v * lanes, 1 / load(q.temperature + v * lanes));
    for (int64_t j = v < q.vectors ? visible.end[v] : 0; j < visible.count; ++j)
      store(tile + j * kQueryTile<Real> + v * lanes, Vec<Real>{});
  }
  const auto rows = dbias_rows<Real>(p, q.batch, q.head, q.first).from(0, key);
  with_flag(adds_dbias(p, q.batch), [&](auto adds) {
    store_transposed<decltype(adds)::value>(tile, inverse, rows, q.count, visible.count);
  });
}

}  // namespace
}  // namespace aero::kernels::cpu
