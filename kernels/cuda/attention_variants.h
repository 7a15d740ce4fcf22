// What attention computes beside the plain form: windows, soft caps, sinks, dropout and largest
// scores. The params say so while a kernel runs; kernels of plain shapes are compiled without any
// of it.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_geometry.h"
#include "kernels/dropout.h"

namespace aero::kernels::cuda {

/// A shape whose passes look for variants.
template <class Shape>
struct Varied : Shape {
  static constexpr bool kVaries = true;
};

/// Whether a call needs them.
inline bool varies(const AttentionEntropyParams& p) {
  return p.window_left >= 0 || p.window_right >= 0 || p.softcap != 0 || p.sinks || p.dropout.seeds;
}
inline bool varies(const AttentionEntropyForwardParams& p) {
  return varies(static_cast<const AttentionEntropyParams&>(p)) || p.largest_key;
}
inline bool varies(const AttentionEntropyBackwardParams& p) {
  return varies(static_cast<const AttentionEntropyParams&>(p)) || p.dmax_logits;
}

/// The same where there is one, or may be.
struct WindowedKeys : CausalKeys {
  int start;  ///< query i sees keys j >= i + start

  AERO_DEVICE WindowedKeys(const AttentionEntropyParams& p, int64_t batch, int64_t head)
      : CausalKeys(p, batch, head) {
    // A reach of T and a width of S are no bounds.
    const int64_t reach = p.reach() < p.queries ? p.reach() : p.queries;
    if (p.ends()) diagonal = static_cast<int>(p.keys - p.queries + reach);
    const bool begins = p.window_left >= 0 && p.window_left < p.keys;
    start = static_cast<int>(begins ? p.keys - p.window_left - p.queries : -p.queries);
  }

  AERO_DEVICE bool sees_all(int query, int last_query, int first_key, int key) const {
    return show_all(query, key) && last_query + start <= first_key;
  }
  AERO_DEVICE int begin(int query) const { return at_least_zero(query + start); }
  /// Of a key beyond the last one that of the last: S + T is the most that an int holds.
  AERO_DEVICE int end_of_queries(int key) const {
    return smaller(queries, smaller(key, keys - 1) - start + 1);
  }
  AERO_DEVICE bool starts_after(int query, int key) const { return query + start > key; }
};

template <class Shape>
using KeysOf = std::conditional_t<Shape::kVaries, WindowedKeys, VisibleKeys>;

/// Soft caps. Products become their tanh, which the cap then scales as the scale does the others.
struct SoftCap {
  bool bends;
  float inner;  ///< scale / softcap

  AERO_DEVICE explicit SoftCap(const AttentionEntropyParams& p) : bends(p.softcap != 0), inner(0) {
    if (bends) inner = static_cast<float>(p.scale) / static_cast<float>(p.softcap);
  }

  template <int kRowTiles, int kBlocks, class Lane>
  AERO_DEVICE void apply(const Lane&, float (&products)[kRowTiles][kBlocks][4]) const {
    if (!bends) return;
    AERO_UNROLL
    for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
    for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
    for (int n = 0; n < 4; ++n) products[r][block][n] = Lane::tanh(products[r][block][n] * inner);
  }
  /// The cap's derivative, from what `apply` made of the product; finite for a hidden one.
  AERO_DEVICE float slope(float bent) const { return bends && bent >= -1 ? 1 - bent * bent : 1.0f; }
};

/// The factor of all scores, before the temperature.
template <bool kVaries>
AERO_DEVICE float score_scale(const AttentionEntropyParams& p) {
  if constexpr (kVaries)
    if (p.softcap != 0) return static_cast<float>(p.softcap * kLog2E);
  return score_scale(p);
}

/// The score of a head's sink in a row.
template <class Int>
AERO_DEVICE float sink_score(const AttentionEntropyParams& p, const Head<Int>& h,
                             float temperature) {
  const Strides& s = p.sinks.strides;
  const float sink = static_cast<const float*>(p.sinks.data)[h.batch * s.batch + h.head * s.head];
  return row_scale(sink * static_cast<float>(kLog2E), temperature);
}

/// Which weights of a head stay, where any are dropped.
struct HeadDropout {
  bool drops;
  uint32_t threshold = 0;
  float factor = 1;  ///< of weights that stay
  uint64_t head = 0;

  template <class Int>
  AERO_DEVICE HeadDropout(const AttentionEntropyParams& p, const Head<Int>& h)
      : drops(p.dropout.seeds != nullptr) {
    if (!drops) return;
    threshold = dropout_threshold(p.dropout);
    factor = dropout_factor<float>(p.dropout);
    head = dropout_head(p.dropout, h.batch, h.head);
  }

  /// A row's key.
  AERO_DEVICE uint64_t row(int query) const { return drops ? dropout_row(head, query) : 0; }
  /// What is left of a weight, or of its gradient, but for the factor.
  AERO_DEVICE float kept(float weight, uint64_t row, int key) const {
    if (!drops) return weight;
    const uint32_t hash = dropout_hash(static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                                       static_cast<uint32_t>(key));
    return hash >= threshold ? weight : 0.0f;
  }
};

/// The largest score of a row, in units of log 2, and the first key of it. Kept from tile to tile
/// where the results will be: in registers it would drive others out of them.
struct LargestKey {
  float score = 1.5f * kEmptyMaximum<float>;  ///< above a hidden score, below all others
  int key = -1;

  /// That of all lanes that hold the row.
  template <class Lane>
  AERO_DEVICE void join(Lane& lane) {
    AERO_UNROLL
    for (int distance = 1; distance <= 2; distance *= 2) {
      const float other = lane.exchange(score, distance);
      const float its_key = lane.exchange(__builtin_bit_cast(float, key), distance);
      const int other_key = __builtin_bit_cast(int, its_key);
      if (other > score || (other == score && other_key < key)) score = other, key = other_key;
    }
  }
  /// Replaces what the keys before left of row `row`.
  AERO_DEVICE void put(const AttentionEntropyForwardParams& p, int64_t row) const {
    static_cast<float*>(p.max_logits)[row] = score;
    p.largest_key[row] = key;
  }
  AERO_DEVICE void raise(const AttentionEntropyForwardParams& p, int64_t row) const {
    if (score > static_cast<const float*>(p.max_logits)[row]) put(p, row);
  }
  /// Of a row whose weights sum to `sum`, in nats.
  AERO_DEVICE static void finish(const AttentionEntropyForwardParams& p, int64_t row, float sum) {
    float& logits = static_cast<float*>(p.max_logits)[row];
    logits = p.largest_key[row] < 0 ? -__builtin_inff() : static_cast<float>(kLn2) * logits;
    if (!(sum == sum)) logits = sum, p.largest_key[row] = -1;
  }
};

}  // namespace aero::kernels::cuda
