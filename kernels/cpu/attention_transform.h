// What scores pass through between the product and the softmax, and which weights are dropped;
// vectors of queries in tiles, of keys in rows of few queries.
//
// A pass of its own over a tile of products in the first cache level: the plain scores, which need
// none, lose nothing, and no kernel is compiled twice for it.
#pragma once

#include "kernels/cpu/attention_tile.h"

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
  Real cap, inverse_cap;
  Vec<Real> slope;

  Transform(const ScoreTransform& p, int64_t batch, int64_t head)
      : cap(static_cast<Real>(p.softcap)),
        inverse_cap(p.softcap == 0 ? 0 : static_cast<Real>(1 / p.softcap)),
        slope(splat(p.alibi_slopes ? of_head<Real>(p.alibi_slopes, batch, head) : Real{0})) {}

  /// Turns products into their caps, and returns the slope of those.
  AERO_INLINE Vec<Real> cap_and_slope(Vec<Real>& x) const {
    const Vec<Real> tangent = hyperbolic_tangent(x * inverse_cap);
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

/// |position - j| for the positions i + S - T of the vector's queries, or the other way round.
template <class Real>
AERO_INLINE Vec<Real> distance(int64_t from) {
  const Vec<Real> lanes = __builtin_convertvector(lane_index<Real>(), Vec<Real>);
  const Vec<Real> x = lanes + static_cast<Real>(from);
  return maximum(x, -x);
}

/// The transform of a tile of scores.
template <class Real>
class TileTransform {
 public:
  /// `tile`: the bias of a tile of keys; `cap_slopes`: null where they are not wanted. Both
  /// [keys, tile].
  TileTransform(const AttentionEntropyParams& p, const QueryTile<Real>& q, Real* tile,
                Real* cap_slopes)
      : p_(p), q_(q), tile_(tile), cap_slopes_(cap_slopes) {
    if (!p.transforms()) return;
    for (int64_t i = 0; i < kTile; ++i)
      log2_inverse_[i] = static_cast<Real>(kLog2E / static_cast<double>(q.temperature[i]));
  }

  /// Products of the keys from `key` on become scores, and raise the maxima.
  void apply(const Visibility<Real>& visible, int64_t key, Real* scores, Real* maxima) const {
    if (p_.bias) load_bias(visible, key);
    const Transform<Real> transform(p_, q_.batch, q_.head);
    // Locals, as what is stored may be anything to the compiler.
    const bool caps = p_.softcap != 0, adds = static_cast<bool>(p_.bias),
               falls = static_cast<bool>(p_.alibi_slopes);
    const Real* bias = tile_;
    Real* cap_slopes = cap_slopes_;
    for (int v = 0; v < q_.vectors; ++v) {
      const int64_t lane = v * kL, end = visible.end[v];
      const Vec<Real> log2_inverse = load(log2_inverse_ + lane);
      Vec<Real> top = load(maxima + lane);
      const auto score_rows = [&](auto may_hide, int64_t first, int64_t last) AERO_LAMBDA_INLINE {
        for (int64_t j = first; j < last; ++j) {
          const int64_t at = j * kTile + lane;
          const Vec<Real> product = load(scores + at);
          Vec<Real> x = product;
          if (caps) {
            const Vec<Real> slope = transform.cap_and_slope(x);
            if (cap_slopes) store(cap_slopes + at, slope);
          }
          if (adds) x += load(bias + at);
          if (falls) x -= transform.slope * distance_of(lane, key + j);
          if constexpr (decltype(may_hide)::value)
            x = transform.finish(product, x, log2_inverse);
          else
            x *= log2_inverse;
          top = maximum(top, x);
          store(scores + at, x);
        }
      };
      // A cap alone hides nothing.
      const int64_t shown = adds || falls ? 0 : smaller(visible.masked, end);
      score_rows(Constant<0>{}, 0, shown);
      score_rows(Constant<1>{}, shown, end);
      store(maxima + lane, top);
    }
  }

  /// Of the vector of queries from `lane` on to a key.
  AERO_INLINE Vec<Real> distance_of(int64_t lane, int64_t key) const {
    return distance<Real>(q_.first + lane + p_.keys - p_.queries - key);
  }

 private:
  static constexpr int kTile = kQueryTile<Real>;
  static constexpr int kL = kLanes<Real>;

  void load_bias(const Visibility<Real>& visible, int64_t key) const {
    with_bias_type<Real>(p_, [&](auto type) {
      using Bias = decltype(type);
      const int64_t step = p_.bias.strides.column;
      const auto rows =
          rows_at<const Bias>(p_.bias, q_.batch, q_.head, q_.first).from(0, key * step);
      if (step == 1) return load_transposed<Real, Bias>(rows, q_.count, visible.count, tile_);
      for (int64_t j = 0; j < visible.count; ++j)
        for (int64_t i = 0; i < kTile; ++i)
          tile_[j * kTile + i] = i < q_.count ? to_real<Real>(rows.row(i)[j * step]) : Real{0};
    });
  }

  const AttentionEntropyParams& p_;
  const QueryTile<Real>& q_;
  Real *const tile_, *const cap_slopes_;
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

/// A finalizer of 64 bits (splitmix64: Steele, Lea and Flood 2014).
AERO_INLINE uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30u)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27u)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31u);
}

/// 32 bits beside each lane.
template <class Real>
struct Words32 {
  typedef uint32_t Type __attribute__((vector_size(4 * kLanes<Real>)));
};

/// Which weights stay: those whose hash of 32 bits is not below p 2^32. Every row has two keys of
/// 32 bits from (seed, h, i); the hash mixes them with j (constants: Wellons' lowbias32).
/// python/aero/ops/reference.py computes the same.
template <class Real>
struct DropoutRule {
  using Words = typename Words32<Real>::Type;
  bool drops;
  uint32_t threshold;
  Real factor;  ///< of weights that stay, 1 / (1 - p)

  explicit DropoutRule(const Dropout& dropout)
      : drops(dropout.seeds != nullptr),
        threshold(static_cast<uint32_t>(dropout.probability * 4294967296.0)),
        factor(drops ? static_cast<Real>(1 / (1 - dropout.probability)) : 1) {}

  static uint64_t row_key_of(const Dropout& dropout, int64_t b, int64_t h, int64_t i) {
    const uint64_t head = mixed(static_cast<uint64_t>(dropout.seeds[b])) + static_cast<uint64_t>(h);
    return mixed(mixed(head) + static_cast<uint64_t>(i));
  }
  /// `low` and `high`: halves of the rows' keys; `key`: j.
  AERO_INLINE typename Simd<Real>::Int stays(Words low, Words high, Words key) const {
    Words x = key * 0x9e3779b9u + low;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15) ^ high) * 0x846ca68bu;
    x ^= x >> 16;
    return __builtin_convertvector(x >= Words{} + threshold, typename Simd<Real>::Int);
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
