// What scores pass through between the product and the softmax, and which weights are dropped;
// vectors of queries in tiles, of keys in rows of few queries.
//
// A pass of its own over a tile of products in the first cache level: the plain scores, which need
// none, lose nothing, and no kernel is compiled twice for it.
#pragma once

#include "kernels/cpu/attention_tile.h"
#include "kernels/dropout.h"

namespace aero::kernels::cpu {
namespace {

/// Calls body with a value of the bias's type.
template <class Real, class Body>
void with_bias_type(const AttentionEntropyParams& p, const Body& body) {
  if constexpr (sizeof(Real) == 8) {
    body(double{});
  } else {
    if (p.has_fine_bias || p.data_type == DataType::kFloat32) return body(float{});
    if (p.data_type == DataType::kBFloat16) return body(BFloat16{});
    body(Float16{});
  }
}

/// One value of [B, H].
template <class Real>
Real of_head(const TensorView<const void>& tensor, int64_t batch, int64_t head) {
  return *rows_at<const Real>(tensor, batch, head, 0).data;
}

/// A vector of products on its way: s = (cap(product) + bias - slope distance) log2(e) / t.
template <class Real>
struct Transform {
  Vec<Real> cap, slope;

  Transform(const ScoreTransform& p, int64_t batch, int64_t head)
      : cap(splat(static_cast<Real>(p.softcap))),
        slope(splat(p.alibi_slopes ? of_head<Real>(p.alibi_slopes, batch, head) : Real{0})) {}

  /// Turns shares of the cap into capped products, and returns the slope of those.
  AERO_INLINE Vec<Real> cap_and_slope(Vec<Real>& x) const {
    const Vec<Real> tangent = hyperbolic_tangent(x);
    x = tangent * cap;
    return 1 - tangent * tangent;
  }
  /// `product`: before the transform, `x` after it, both without t. -inf hides the key; a lesser
  /// number is taken for the least that a score may be, so rows of nothing else share it evenly.
  AERO_INLINE Vec<Real> finish(Vec<Real> product, Vec<Real> x, Vec<Real> log2_inverse) const {
    const Vec<Real> hidden = splat(kMaskedScore<Real>);
    const Vec<Real> score = maximum(splat(kEmptyMaximum<Real>), x * log2_inverse);
    const auto is_hidden = (product == hidden) | (x == -static_cast<Real>(__builtin_inf()));
    return is_hidden ? hidden : score;
  }
};

/// 0, 1, 2, ... per lane, as numbers.
template <class Real>
AERO_INLINE Vec<Real> lane_numbers() {
  return __builtin_convertvector(lane_index<Real>(), Vec<Real>);
}
/// |position - j| for the positions i + S - T of the vector's queries, or the other way round.
template <class Real>
AERO_INLINE Vec<Real> distance(int64_t from) {
  return absolute(lane_numbers<Real>() + static_cast<Real>(from));
}

/// The bias of the first tile of keys of a tile of queries; the tile before takes that of the
/// others.
template <class Real>
void announce_bias(const AttentionEntropyParams& p, const TileRange<Real>& next,
                   Prefetch& prefetch) {
  if (!p.bias || p.bias.strides.column != 1) return;
  with_bias_type<Real>(p, [&](auto type) {
    using Bias = decltype(type);
    TensorView<const void> from = p.bias;
    const int64_t key = next.first_key(p);
    from.data = static_cast<const Bias*>(p.bias.data) + key;
    prefetch.add<Bias>(from, next.batch, next.head, next.first, next.count,
                       smaller(kKeyTile, p.keys - key));
  });
}

/// Calls function(Constant<0>) or function(Constant<1>).
template <class Function>
void with_flag(bool flag, const Function& function) {
  flag ? function(Constant<1>{}) : function(Constant<0>{});
}

/// The transform of a tile of scores.
template <class Real>
class TileTransform {
 public:
  /// `cap_slopes`: [keys, tile], null where they are not wanted.
  TileTransform(const AttentionEntropyParams& p, const QueryTile<Real>& q, Real* cap_slopes)
      : p_(p), q_(q), cap_slopes_(cap_slopes) {
    if (!p.transforms()) return;
    Real largest = 1;
    for (int64_t i = 0; i < kTile; ++i) {
      log2_inverse_[i] = static_cast<Real>(kLog2E / static_cast<double>(q.temperature[i]));
      const Real size = log2_inverse_[i] < 0 ? -log2_inverse_[i] : log2_inverse_[i];
      largest = size <= largest ? largest : size;  // NaN too
    }
    tame_bias_ = -kTame / largest;
    if (!p.alibi_slopes) return;
    const Real slope = of_head<Real>(p.alibi_slopes, q.batch, q.head);
    tame_bias_ += (slope < 0 ? -slope : slope) * static_cast<Real>(p.keys + p.queries);
  }

  /// Products of the keys from `key` on become scores, and raise the maxima.
  void apply(const Visibility<Real>& visible, int64_t key, Real* scores, Real* maxima) const {
    with_flag(p_.softcap != 0, [&](auto caps) {
      with_flag(static_cast<bool>(p_.bias), [&](auto adds) {
        with_flag(static_cast<bool>(p_.alibi_slopes), [&](auto falls) {
          apply_parts<decltype(caps)::value, decltype(adds)::value, decltype(falls)::value>(
              visible, key, scores, maxima);
        });
      });
    });
  }

  /// Of the vector of queries from `lane` on to a key.
  AERO_INLINE Vec<Real> distance_of(int64_t lane, int64_t key) const {
    return distance<Real>(diagonal_of(lane) - key);
  }

 private:
  static constexpr int kTile = kQueryTile<Real>;
  static constexpr int kL = kLanes<Real>;
  /// What bias and slopes may take from a score, in units of log 2, and leave it a number.
  static constexpr Real kTame = Real(0x1p100);

  template <bool kCaps, bool kAdds, bool kFalls>
  void apply_parts(const Visibility<Real>& visible, int64_t key, Real* scores, Real* maxima) const {
    const Transform<Real> transform(p_, q_.batch, q_.head);
    Real* const cap_slopes = cap_slopes_;
    alignas(64) Real bias[kL * kL];
    for (int v = 0; v < q_.vectors; ++v) {
      const int64_t lane = v * kL, end = visible.end[v];
      const Vec<Real> log2_inverse = load(log2_inverse_ + lane);
      Vec<Real> top = load(maxima + lane);
      const auto score_rows = [&](auto may_hide, int64_t first, int64_t last) AERO_LAMBDA_INLINE {
        Vec<Real> behind =
            lane_numbers<Real>() + static_cast<Real>(diagonal_of(lane) - key - first);
        for (int64_t j = first; j < last; ++j) {
          const int64_t at = j * kTile + lane;
          const Vec<Real> product = load(scores + at);
          Vec<Real> x = product;
          if constexpr (kCaps) {
            const Vec<Real> slope = transform.cap_and_slope(x);
            if (cap_slopes) store(cap_slopes + at, slope);
          }
          if constexpr (kAdds) x += load(bias + (j - first) * kL);
          if constexpr (kFalls) {
            x -= transform.slope * absolute(behind);
            behind -= 1;
          }
          if constexpr (decltype(may_hide)::value)
            x = transform.finish(product, x, log2_inverse);
          else
            x *= log2_inverse;
          top = maximum(top, x);
          store(scores + at, x);
        }
      };
      for (int64_t first = 0; first < end; first += kL) {
        const int64_t last = smaller(first + kL, end);
        Real lowest = 0;
        if constexpr (kAdds) lowest = load_bias(lane, key + first, visible.count - first, bias);
        // What is tame hides nothing.
        if (last <= visible.masked && lowest >= tame_bias_)
          score_rows(Constant<0>{}, first, last);
        else
          score_rows(Constant<1>{}, first, last);
      }
      store(maxima + lane, top);
    }
  }

  /// The key that the query in lane `lane` stands at.
  int64_t diagonal_of(int64_t lane) const { return q_.first + lane + p_.keys - p_.queries; }

  /// The bias of `count` keys, at most kL, and of a vector of queries: [keys, queries]. Returns the
  /// least of it and 0.
  [[gnu::noinline]] Real load_bias(int64_t lane, int64_t key, int64_t count, Real* to) const {
    Vec<Real> block[kL];
    with_bias_type<Real>(p_, [&](auto type) AERO_LAMBDA_INLINE {
      using Bias = decltype(type);
      const int64_t step = p_.bias.strides.column, queries = q_.count - lane;
      const auto rows =
          rows_at<const Bias>(p_.bias, q_.batch, q_.head, q_.first + lane).from(0, key * step);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kL; ++i) {
        block[i] = Vec<Real>{};
        if (i >= queries) continue;
        const Bias* row = rows.row(i);
        if (step == 1) {
          block[i] = load_part<Real>(row, count);
          __builtin_prefetch(row + kKeyTile, 0, 2);  // of the next tile of keys
        } else {
          for (int64_t j = 0; j < smaller(kL, count); ++j)
            block[i][j] = to_real<Real>(row[j * step]);
        }
      }
    });
    Vec<Real> lowest{};
#pragma GCC unroll 16
    for (const Vec<Real>& row : block) lowest = minimum(lowest, row);
    transpose<Real>(block);
#pragma GCC unroll 16
    for (int64_t j = 0; j < kL; ++j) store(to + j * kL, block[j]);
    return over_lanes<Real>(lowest, [](auto a, auto b) { return minimum(a, b); });
  }

  const AttentionEntropyParams& p_;
  const QueryTile<Real>& q_;
  Real* const cap_slopes_;
  Real tame_bias_ = 0;  ///< one from here on hides nothing
  alignas(64) Real log2_inverse_[kTile];
};

/// The logits of the sinks beside a tile's scores, in units of log 2.
template <class Real>
void load_sinks(const AttentionEntropyParams& p, const QueryTile<Real>& q, Real* sinks) {
  const auto sink = static_cast<double>(of_head<Real>(p.sinks, q.batch, q.head));
  for (int64_t i = 0; i < kQueryTile<Real>; ++i)
    sinks[i] = static_cast<Real>(sink * kLog2E / static_cast<double>(q.temperature[i]));
}

// --- dropout ------------------------------------------------------------------------------------

/// 32 bits beside each lane.
template <class Real>
struct Words32 {
  typedef uint32_t Type __attribute__((vector_size(4 * kLanes<Real>)));
};

/// Which weights stay; see kernels/dropout.h.
template <class Real>
struct DropoutRule {
  using Words = typename Words32<Real>::Type;
  bool drops;
  uint32_t threshold;
  Real factor;  ///< of weights that stay, 1 / (1 - p)

  explicit DropoutRule(const Dropout& dropout)
      : drops(dropout.seeds != nullptr),
        threshold(dropout_threshold(dropout)),
        factor(dropout_factor<Real>(dropout)) {}

  static uint64_t row_key_of(const Dropout& dropout, int64_t b, int64_t h, int64_t i) {
    return dropout_row(dropout_head(dropout, b, h), i);
  }
  /// `low` and `high`: halves of the rows' keys; `key`: j.
  AERO_INLINE typename Simd<Real>::Int stays(Words low, Words high, Words key) const {
    const Words hash = dropout_hash(low, high, key);
    return __builtin_convertvector(hash >= Words{} + threshold, typename Simd<Real>::Int);
  }
};

/// The same for a tile of queries.
template <class Real>
struct TileDropout : DropoutRule<Real> {
  using Words = typename Words32<Real>::Type;
  alignas(64) uint32_t low[kQueryTile<Real>], high[kQueryTile<Real>];

  TileDropout(const AttentionEntropyParams& p, const QueryTile<Real>& q)
      : DropoutRule<Real>(p.dropout) {
    if (!this->drops) return;
    for (int64_t i = 0; i < kQueryTile<Real>; ++i) {
      const uint64_t key = DropoutRule<Real>::row_key_of(p.dropout, q.batch, q.head, q.first + i);
      low[i] = static_cast<uint32_t>(key), high[i] = static_cast<uint32_t>(key >> 32u);
    }
  }
  AERO_INLINE typename Simd<Real>::Int stays_at(int64_t lane, int64_t key) const {
    Words a, b;
    __builtin_memcpy(&a, low + lane, sizeof(a));
    __builtin_memcpy(&b, high + lane, sizeof(b));
    return this->stays(a, b, Words{} + static_cast<uint32_t>(key));
  }
  /// What is left of weights, or of their gradients.
  AERO_INLINE Vec<Real> weight_of(Vec<Real> weight, int64_t lane, int64_t key) const {
    if (!this->drops) return weight;
    return stays_at(lane, key) ? weight * this->factor : Vec<Real>{};
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
