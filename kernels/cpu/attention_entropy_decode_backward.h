// Backward pass of attention for a few queries: each goes over the keys by itself.
#pragma once

#include "kernels/cpu/attention_decode_row.h"
#include "kernels/cpu/attention_row_gradients.h"

namespace aero::kernels::cpu {
namespace {

/// One item per key head: all gradients of it and of the heads that use it. Keys come in blocks, so
/// that keys and values are read and their gradients written once, however many rows share them.
/// Where the gradient of a bias is summed over batch entries, an item is a key head in all of
/// these.
template <class E, class R>
class DecodeBackwardPass {
 public:
  using Params = AttentionEntropyBackwardParams;
  using Element = E;
  using Real = R;

  static int64_t scratch_bytes(const Params& p) {
    const int64_t rows = p.heads / larger(1, p.key_heads) * p.queries;
    return (kKeyTile * (width(p) + value_width(p)) + rows * row_stride(p)) *
           static_cast<int64_t>(sizeof(Real));
  }
  static int64_t item_count(const Params& p) { return item_heads(p).count(); }

  static void run(const Params& p, void* memory, int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item)
      item_heads(p).for_each(item, [&](int64_t key_head) {
        DecodeBackwardPass(p, static_cast<Real*>(memory), key_head).run_key_head();
      });
  }

 private:
  static constexpr int kL = kLanes<Real>;

  static KeyHeads item_heads(const Params& p) { return {p.batch, p.key_heads, p.bias_entries}; }

  /// D and Dv in whole vectors.
  static int64_t width(const Params& p) { return round_up(p.head_dim, kL); }
  static int64_t value_width(const Params& p) { return round_up(p.value_dim, kL); }
  static int64_t row_stride(const Params& p) { return 2 * width(p) + value_width(p) + 3 * kL; }

  /// A row's values from one block of keys to the next: vectors of D, of Dv, then of lanes.
  struct Kept {
    Real *query, *dquery, *dout, *dtemperature, *center, *dslope;
  };

  DecodeBackwardPass(const Params& params, Real* memory, int64_t key_head)
      : p_(params),
        row_(width(params)),
        value_row_(value_width(params)),
        dkeys_(memory),
        dvalues_(memory + kKeyTile * row_),
        kept_(dvalues_ + kKeyTile * value_row_),
        batch_(key_head / params.key_heads),
        key_head_(key_head % params.key_heads),
        rows_(params.heads / params.key_heads * params.queries),
        first_row_(key_head * rows_) {}

  Kept kept(int64_t n) const {
    Real* at = kept_ + n * row_stride(p_);
    Real* lanes = at + 2 * row_ + value_row_;
    return {at, at + row_, at + 2 * row_, lanes, lanes + kL, lanes + 2 * kL};
  }

  void run_key_head() const {
    for (int64_t n = 0; n < rows_; ++n) begin_row(n);
    for (int64_t key = 0; key < p_.keys; key += kKeyTile) {
      const int64_t count = smaller(kKeyTile, p_.keys - key);
      for (Real* at = dkeys_; at < kept_; at += kL) store(at, Vec<Real>{});
      for (int64_t n = 0; n < rows_; ++n) add_row(n, key);
      store_rows(dkeys_, p_.dk, p_.head_dim, key, count);
      store_rows(dvalues_, p_.dv, p_.value_dim, key, count);
    }
    for (int64_t n = 0; n < rows_; ++n) end_row(n);
  }

  void begin_row(int64_t n) const {
    const DecodeRow<Element, Real> row(p_, first_row_ + n);
    const Kept own = kept(n);
    copy_row(row.query, p_.head_dim, own.query);
    for (int64_t d = 0; d < row_; d += kL) store(own.dquery + d, Vec<Real>{});
    store(own.dtemperature, Vec<Real>{});
    store(own.dslope, Vec<Real>{});
    Vec<Real> center{};
    if (p_.dout) {
      const auto row_of = [&](const TensorView<const void>& tensor) {
        return rows_at<const Element>(tensor, row.batch, row.head, row.index);
      };
      copy_row(row_of(p_.dout), p_.value_dim, own.dout);
      center = dots_of_rows(row_of(p_.out), 1, own.dout, p_.value_dim);
    }
    store(own.center, splat(center[0] - value_of(p_.dlogsumexp, n)));
    if (p_.dbias && !adds_dbias(p_, batch_))
      __builtin_memset(dbias_of(row), 0, static_cast<size_t>(p_.keys) * sizeof(Real));
  }

  Real* dbias_of(const DecodeRow<Element, Real>& row) const {
    return dbias_rows<Real>(p_, row.batch, row.head, row.index).data;
  }

  /// Element n of [B, H, T] counted from this key head's first row; 0 if there is no such gradient.
  Real value_of(const void* tensor, int64_t n) const {
    return tensor ? static_cast<const Real*>(tensor)[first_row_ + n] : 0;
  }
  /// 0 for a row that saw no key.
  Real dmax_logit(int64_t n) const {
    return p_.dmax_logits && p_.largest_key[first_row_ + n] >= 0 ? value_of(p_.dmax_logits, n) : 0;
  }
  /// m, l and w of a row, from [B, H, 3, T].
  const Real* statistics(int64_t n) const {
    const int64_t at = first_row_ + n, head = at / p_.queries;
    return static_cast<const Real*>(p_.statistics) +
           (head * kSavedStatistics * p_.queries + at % p_.queries);
  }

  ScoreGradients<Real> gradients_of(int64_t n) const {
    const Real* saved = statistics(n);
    const Real sum = saved[p_.queries];
    return {splat(saved[0]), splat(sum == 0 ? Real{0} : 1 / sum), splat(saved[2 * p_.queries]),
            splat(value_of(p_.dentropy, n)), load(kept(n).center)};
  }

  /// One row against the keys of the block that starts at `key`.
  void add_row(int64_t n, int64_t key) const {
    const DecodeRow<Element, Real> row(p_, first_row_ + n);
    const int64_t count = smaller(kKeyTile, row.seen - key);
    const Real* saved = statistics(n);
    const Real sum = saved[p_.queries];
    // Where the row saw no key, 0 times what comes back to it need not be 0.
    if (count <= 0 || key + kKeyTile <= row.first || sum == 0) return;
    const Kept own = kept(n);
    const ScoreGradients<Real> gradients = gradients_of(n);
    const RowDropout<Real> dropout(p_, row);
    const int64_t largest = p_.dmax_logits ? p_.largest_key[first_row_ + n] - key : -1;
    alignas(64) Real weights[kKeyTile], dscores[kKeyTile], cap_slopes[kKeyTile];
    row.scores(p_, key, count, own.query, weights, cap_slopes);
    Vec<Real> dtemperature = load(own.dtemperature), dslope = load(own.dslope);
    for (int64_t j = 0; j < count; j += kL) {
      const Vec<Real> dweight =
          p_.dout ? dots_of_rows(row.values.from(key + j), count - j, own.dout, p_.value_dim)
                  : Vec<Real>{};
      auto result = gradients.of(load(weights + j), dropout.weight_of(dweight, key + j));
      if (largest >= j && largest < j + kL) {
        Vec<Real> dlargest{};
        dlargest[largest - j] = dmax_logit(n);
        dtemperature += gradients.beyond_bound(load(weights + j), dlargest);
        result.dscore += dlargest;
      }
      dtemperature += result.dscore * result.z;
      Vec<Real> scaled = result.dscore * row.scale;
      if (p_.softcap != 0) scaled *= load(cap_slopes + j);
      if (p_.dslopes) dslope += result.dscore * row.distance_to(p_, key + j);
      if (p_.dbias) {
        Real* const to = dbias_of(row) + key + j;
        store_part<Real>(to, load_part<Real>(to, count - j) + result.dscore / row.temperature,
                         count - j);
      }
      store(weights + j, dropout.weight_of(result.weight, key + j));
      store(dscores + j, scaled);
    }
    store(own.dtemperature, dtemperature);
    store(own.dslope, dslope);
    if (p_.dq)
      add_weighted(row.keys.from(key), count, dscores, splat(Real{1}), own.dquery, p_.head_dim);
    if (p_.dk) add_outer(dscores, count, {own.query, row_}, dkeys_);
    if (p_.dv && p_.dout) add_outer(weights, count, {own.dout, value_row_}, dvalues_);
  }

  /// sum[j] += weights[j] vector; its stride is its length, and that of the sums.
  void add_outer(const Real* weights, int64_t count, Matrix<const Real> vector, Real* sum) const {
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = 0; d < vector.stride; d += kL) {
        Real* to = sum + j * vector.stride + d;
        store(to, load(to) + weights[j] * load(vector.data + d));
      }
  }

  /// `count` rows of a block go to their tensor.
  void store_rows(const Real* from, const TensorView<void>& tensor, int64_t columns, int64_t key,
                  int64_t count) const {
    if (!tensor) return;
    const auto to = rows_at<Element>(tensor, batch_, key_head_, key);
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = 0; d < columns; d += kL)
        store_part<Real>(to.row(j) + d, load(from + j * round_up(columns, kL) + d), columns - d);
  }

  void end_row(int64_t n) const {
    const DecodeRow<Element, Real> row(p_, first_row_ + n);
    const Kept own = kept(n);
    if (p_.dq) {
      Element* to = rows_at<Element>(p_.dq, row.batch, row.head, row.index).data;
      for (int64_t d = 0; d < p_.head_dim; d += kL)
        store_part<Real>(to + d, load(own.dquery + d), p_.head_dim - d);
    }
    if (p_.dslopes)
      static_cast<Real*>(p_.dslopes)[first_row_ + n] =
          -sum_of_lanes<Real>(load(own.dslope)) / row.temperature;
    Real sum = sum_of_lanes<Real>(load(own.dtemperature));
    if (p_.sinks) {
      const auto sink =
          gradients_of(n).of_sink(splat(row.log2_sink(p_)), splat(value_of(p_.dentropy, n)),
                                  splat(value_of(p_.dlogsumexp, n)));
      sum += sink.dscore[0] * sink.z[0];
      if (p_.dsinks)
        static_cast<Real*>(p_.dsinks)[first_row_ + n] = sink.dscore[0] / row.temperature;
    }
    if (!p_.dtemperature) return;
    const Real* saved = statistics(n);
    // logsumexp - entropy
    const Real mean_score = static_cast<Real>(kLn2) * saved[0] - saved[2 * p_.queries];
    if (saved[p_.queries] != 0) sum += mean_score * (value_of(p_.dlogsumexp, n) + dmax_logit(n));
    static_cast<Real*>(p_.dtemperature)[first_row_ + n] = -sum / row.temperature;
  }

  const Params& p_;
  const int64_t row_, value_row_;  ///< D and Dv in whole vectors
  Real *const dkeys_, *const dvalues_, *const kept_;
  const int64_t batch_, key_head_, rows_, first_row_;
};

}  // namespace
}  // namespace aero::kernels::cpu
