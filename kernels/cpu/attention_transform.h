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

  /// `product`: before the transform, `x` after it and all but `factor`. -inf hides the key; a
  /// lesser number is taken for the least that a score may be, so rows of nothing else share it
  /// evenly.
  AERO_INLINE Vec<Real> finish(Vec<Real> product, Vec<Real> x, Vec<Real> factor) const {
    const Vec<Real> hidden = splat(kMaskedScore<Real>);
    const Vec<Real> score = maximum(splat(kEmptyMaximum<Real>), x * factor);
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

/// Calls function(rows, columns) with the bias of a tile of keys, if that can be fetched.
template <class Real, class Function>
void with_bias_rows(const AttentionEntropyParams& p, const TileRange<Real>& q, int64_t key,
                    const Function& function) {
  if (!p.bias || p.bias.strides.column != 1 || key >= p.keys) return;
  with_bias_type<Real>(p, [&](auto type) {
    function(rows_at<const decltype(type)>(p.bias, q.batch, q.head, q.first).from(0, key),
             smaller(kKeyTile, p.keys - key));
  });
}
/// Fetches the bias of the first tile of keys of the next tile of queries.
template <class Real>
void announce_bias(const AttentionEntropyParams& p, const TileRange<Real>& next,
                   Prefetch& prefetch) {
  with_bias_rows(p, next, next.first_key(p),
                 [&](auto rows, int64_t columns) { prefetch.add(rows, next.count, columns); });
}
/// Fetches the bias of the tile of keys from `key` on.
template <class Real>
void announce_next_bias(const AttentionEntropyParams& p, const TileRange<Real>& q, int64_t key,
                        int64_t key_end, Prefetch& prefetch) {
  if (key >= key_end) return;
  with_bias_rows(p, q, key, [&](auto rows, int64_t columns) {
    prefetch.add_for_next_keys(rows, q.count, columns);
  });
}

/// The bias of a vector of queries and a few keys, which is turned in registers. With `kPairs`
/// neighbours of 16 bits are turned together: half the exchanges.
template <class Real, class Bias, bool kPairs>
class BiasBlock {
 public:
  static constexpr int64_t kL = kLanes<Real>, kKeys = kPairs ? 2 * kL : kL;

  /// kKeys keys of `queries` rows.
  AERO_INLINE void load(Matrix<const Bias> rows, int64_t queries) {
    using Unit = std::conditional_t<kPairs, Pair, Bias>;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kL; ++i) {
      rows_[i] = Vec<Real>{};
      if (i >= queries) continue;
      rows_[i] = load_elements(reinterpret_cast<const Unit*>(rows.row(i)));
    }
  }
  /// The first `count` keys, `step` apart; not pairs.
  AERO_INLINE void load_some(Matrix<const Bias> rows, int64_t step, int64_t queries,
                             int64_t count) {
    if (step == 1 && count >= kL) return load(rows, queries);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kL; ++i) {
      rows_[i] = Vec<Real>{};
      if (i >= queries) continue;
      const Bias* row = rows.row(i);
      if (step == 1)
        rows_[i] = load_part<Real>(row, count);
      else
        for (int64_t j = 0; j < smaller(kL, count); ++j) rows_[i][j] = to_real<Real>(row[j * step]);
    }
  }

  /// Whether all of it is at least `bound`, or NaN; pairs of a NaN with a sign may be found less.
  AERO_INLINE bool is_tame(Real bound) const {
    if constexpr (kPairs) {
      // Of numbers with a sign the larger bits are the lesser number.
      PairBits largest{};
#pragma GCC unroll 16
      for (const Vec<Real>& row : rows_) largest = maximum((PairBits)row, largest);
      return bound < 0 && are_all_at_least(PairBits{} + bfloat16_bits(bound), largest);
    } else {
      Vec<Real> lowest{};
#pragma GCC unroll 16
      for (const Vec<Real>& row : rows_) lowest = minimum(row, lowest);
      return are_all_at_least(lowest, splat(bound));
    }
  }

  /// Calls take(key, vector of queries); uses the block up.
  template <class Take>
  AERO_INLINE void for_each_key(const Take& take) {
    transpose<Real>(rows_);
#pragma GCC unroll 16
    for (int64_t j = 0; j < kL; ++j) {
      if constexpr (kPairs) {
        take(2 * j, low_of_pairs(rows_[j]));
        take(2 * j + 1, high_of_pairs(rows_[j]));
      } else {
        take(j, rows_[j]);
      }
    }
  }

 private:
  Vec<Real> rows_[kL];
};

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
    cap_joins_temperature_ = p.softcap != 0 && !p.bias && !p.alibi_slopes &&
                             static_cast<Real>(p.softcap) * largest < kTame;
    if (!p.alibi_slopes) return;
    const Real slope = of_head<Real>(p.alibi_slopes, q.batch, q.head);
    tame_bias_ += (slope < 0 ? -slope : slope) * static_cast<Real>(p.keys + p.queries);
  }

  /// Products of the keys from `key` on become scores, and raise the maxima.
  void apply(const Visibility<Real>& visible, int64_t key, Real* scores, Real* maxima) const {
    if (cap_joins_temperature_)
      return apply_parts<kJoinedCap, false, false>(visible, key, scores, maxima);
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
  static constexpr int64_t kBiasKeys = 2 * kL;  ///< of a bias that load_bias takes at once
  /// A cap that is a number apart, or one with the temperature's; 0 is none.
  static constexpr int kOwnCap = 1, kJoinedCap = 2;
  /// What bias and slopes may take from a score, in units of log 2, and leave it a number.
  static constexpr Real kTame = Real(0x1p100);

  template <int kCaps, bool kAdds, bool kFalls>
  void apply_parts(const Visibility<Real>& visible, int64_t key, Real* scores, Real* maxima) const {
    const Transform<Real> transform(p_, q_.batch, q_.head);
    Real* const cap_slopes = cap_slopes_;
    alignas(64) Real bias[kBiasKeys * kL];
    for (int v = 0; v < q_.vectors; ++v) {
      const int64_t lane = v * kL, end = visible.end[v], shown = visible.shown_to(v);
      Vec<Real> factor = load(log2_inverse_ + lane);
      if constexpr (kCaps == kJoinedCap) factor *= transform.cap;
      const auto score_rows = [&](auto may_hide, int64_t first, int64_t last) AERO_LAMBDA_INLINE {
        Vec<Real> top = load(maxima + lane);
        Vec<Real> behind =
            lane_numbers<Real>() + static_cast<Real>(diagonal_of(lane) - key - first);
        const auto score_keys = [&](auto count, int64_t j) AERO_LAMBDA_INLINE {
          constexpr int n = decltype(count)::value;
          Vec<Real> products[n], x[n];
#pragma GCC unroll 16
          for (int i = 0; i < n; ++i) x[i] = products[i] = load(scores + (j + i) * kTile + lane);
          if constexpr (kCaps != 0) take_hyperbolic_tangent(x);
#pragma GCC unroll 16
          for (int i = 0; i < n; ++i) {
            const int64_t at = (j + i) * kTile + lane;
            if constexpr (kCaps != 0)
              if (cap_slopes) store(cap_slopes + at, 1 - x[i] * x[i]);
            if constexpr (kCaps == kOwnCap) x[i] *= transform.cap;
            if constexpr (kAdds) x[i] += load(bias + (j + i - first) * kL);
            if constexpr (kFalls) {
              x[i] -= transform.slope * absolute(behind);
              behind -= 1;
            }
            if constexpr (decltype(may_hide)::value)
              x[i] = transform.finish(products[i], x[i], factor);
            else
              x[i] *= factor;
            top = maximum(top, x[i]);
            store(scores + at, x[i]);
          }
        };
        int64_t j = first;
        constexpr bool in_fours = kCaps != 0 && sizeof(Real) == 4;  // of one test for large ones
        for (; in_fours && j + 4 <= last; j += 4) score_keys(Constant<4>{}, j);
        for (; j < last; ++j) score_keys(Constant<1>{}, j);
        store(maxima + lane, top);
      };
      for (int64_t first = 0, last = 0; first < end; first = last) {
        if constexpr (kAdds && kCaps == 0 && !kFalls) {
          const int64_t at = first * kTile + lane;
          last = first + add_bias(lane, key + first, shown - first, scores + at, maxima + lane);
          if (last > first) continue;
        }
        bool is_tame = true;
        if constexpr (kAdds) {
          last = smaller(first + kBiasKeys, end);
          is_tame = load_bias(lane, key + first, visible.count - first, bias);
        } else {
          last = first < shown ? shown : end;
        }
        // What is tame hides nothing.
        if (last <= shown && is_tame)
          score_rows(Constant<0>{}, first, last);
        else
          score_rows(Constant<1>{}, first, last);
      }
    }
  }

  /// The key that the query in lane `lane` stands at.
  int64_t diagonal_of(int64_t lane) const { return q_.first + lane + p_.keys - p_.queries; }

  /// The rows of the bias beside the queries from `lane` on, from a key on.
  template <class Bias>
  AERO_INLINE Matrix<const Bias> bias_rows(int64_t lane, int64_t key) const {
    return rows_at<const Bias>(p_.bias, q_.batch, q_.head, q_.first + lane)
        .from(0, key * p_.bias.strides.column);
  }

  /// The bias of `count` keys, at most kBiasKeys, and of a vector of queries: [keys, queries].
  /// Returns whether all of it is tame.
  [[gnu::noinline]] bool load_bias(int64_t lane, int64_t key, int64_t count, Real* to) const {
    bool is_tame = true;
    with_bias_type<Real>(p_, [&](auto type) AERO_LAMBDA_INLINE {
      using Bias = decltype(type);
      const int64_t step = p_.bias.strides.column;
      for (int64_t j = 0; j < smaller(kBiasKeys, count); j += kL) {
        BiasBlock<Real, Bias, false> block;
        block.load_some(bias_rows<Bias>(lane, key + j), step, q_.count - lane, count - j);
        is_tame &= block.is_tame(tame_bias_);
        block.for_each_key([&](int64_t n, Vec<Real> x)
                               AERO_LAMBDA_INLINE { store(to + (j + n) * kL, x); });
      }
    });
    return is_tame;
  }

  /// A bias may be added without a copy where nothing else happens to the products, none of the
  /// `count` keys is hidden and the bias is tame. Returns to how many keys it was added.
  [[gnu::noinline]] int64_t add_bias(int64_t lane, int64_t key, int64_t count, Real* scores,
                                     Real* maxima) const {
    int64_t added = 0;
    if (p_.bias.strides.column != 1 || count < kL) return added;
    with_bias_type<Real>(p_, [&](auto type) AERO_LAMBDA_INLINE {
      using Bias = decltype(type);
      const auto add = [&](auto block) AERO_LAMBDA_INLINE {
        block.load(bias_rows<Bias>(lane, key), q_.count - lane);
        if (!block.is_tame(tame_bias_)) return;
        const Vec<Real> log2_inverse = load(log2_inverse_ + lane);
        Vec<Real> top = load(maxima);
        block.for_each_key([&](int64_t n, Vec<Real> x) AERO_LAMBDA_INLINE {
          const Vec<Real> score = (load(scores + n * kTile) + x) * log2_inverse;
          top = maximum(top, score);
          store(scores + n * kTile, score);
        });
        store(maxima, top);
        added = block.kKeys;
      };
      constexpr bool has_pairs = std::is_same_v<Bias, BFloat16>;
      if (has_pairs && count >= 2 * kL)
        add(BiasBlock<Real, Bias, has_pairs>{});
      else
        add(BiasBlock<Real, Bias, false>{});
    });
    return added;
  }

  const AttentionEntropyParams& p_;
  const QueryTile<Real>& q_;
  Real* const cap_slopes_;
  Real tame_bias_ = 0;  ///< one from here on hides nothing
  bool cap_joins_temperature_ = false;
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
