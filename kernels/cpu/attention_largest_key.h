// The largest score of each query of a tile, and the key that has it.
//
// Scores lie in memory between product and softmax. A tile of keys in which no query's maximum
// rises is not read again; in the others one comparison and one selection per score find the key.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// What max_logits and largest_key begin with: above a hidden score, below all others.
template <class Real>
inline constexpr Real kNoScore = Real(1.5) * kEmptyMaximum<Real>;

/// Of a tile of queries, in units of log 2. Holds nothing where none is asked for.
template <class Real>
class LargestKeys {
 public:
  explicit LargestKeys(const AttentionEntropyForwardParams& p) {
    if (!p.largest_key) return;
    for (int i = 0; i < kTile; ++i) score_[i] = kNoScore<Real>, key_[i] = -1;
  }
  AERO_INLINE Vec<Real> score_of(int v) const { return load(score_ + v * kL); }
  AERO_INLINE auto is_none(int v) const { return key_of(v) < 0; }

  /// Takes in a tile of keys, the first of which is `key`. `maxima`: what came before and them.
  void take(const QueryTile<Real>& q, const Visibility<Real>& visible, int64_t key,
            const Real* scores, const Real* maxima) {
    for (int v = 0; v < q.vectors; ++v) {
      const Vec<Real> before = score_of(v), top = load(maxima + v * kL);
      const auto rises = top > before;
      const Vec<Real> ones = rises ? splat(Real{1}) : Vec<Real>{};
      if (over_lanes<Real>(ones, [](auto a, auto b) { return maximum(a, b); }) == 0) continue;
      Int first{};
      for (int64_t j = visible.end[v] - 1; j >= 0; --j)
        first = load(scores + j * kTile + v * kL) == top ? Int{} + static_cast<Word>(j) : first;
      set_key(v, rises ? first + static_cast<Word>(key) : key_of(v));
      store(score_ + v * kL, rises ? top : before);
    }
  }
  /// The rows' maxima with those of the tile, which a sink may exceed.
  template <int N>
  static void join(const OnlineSoftmax<Vec<Real>> (&state)[N], Real* maxima) {
    for (int v = 0; v < N; ++v)
      store(maxima + v * kL, maximum(state[v].maximum, load(maxima + v * kL)));
  }
  /// -inf and -1 where a row saw no key; NaN and -1 where its sum is NaN.
  template <int N>
  void write(const AttentionEntropyForwardParams& p, const QueryTile<Real>& q,
             const OnlineSoftmax<Vec<Real>> (&state)[N]) {
    for (int v = 0; v < q.vectors; ++v) {
      const Vec<Real> sum = state[v].sum;
      const Int none = is_none(v);
      const Vec<Real> nats = score_of(v) * static_cast<Real>(kLn2);
      const Vec<Real> logits = none ? splat(-static_cast<Real>(__builtin_inf())) : nats;
      store_part<Real>(static_cast<Real*>(p.max_logits) + q.row(p, v * kL),
                       sum == sum ? logits : sum, q.count - v * kL);
      set_key(v, sum == sum ? key_of(v) : Int{} - 1);
    }
    int64_t* to = p.largest_key + q.row(p, 0);
    for (int64_t i = 0; i < q.count; ++i) to[i] = key_[i];
  }

 private:
  using Word = typename Simd<Real>::Word;
  using Int = typename Simd<Real>::Int;
  static constexpr int kTile = kQueryTile<Real>, kL = kLanes<Real>;

  AERO_INLINE Int key_of(int v) const {
    Int keys;
    __builtin_memcpy(&keys, key_ + v * kL, sizeof(keys));
    return keys;
  }
  AERO_INLINE void set_key(int v, Int keys) {
    __builtin_memcpy(key_ + v * kL, &keys, sizeof(keys));
  }

  alignas(64) Real score_[kTile];
  alignas(64) Word key_[kTile];
};

}  // namespace
}  // namespace aero::kernels::cpu
