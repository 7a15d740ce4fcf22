// Which of attention's weights dropout keeps, the same on every device and in both directions.
// Every row has a key of 64 bits from (seed, h, i); a hash of 32 bits mixes its halves with j, and
// a weight is dropped where that is below p 2^32. python/aero/ops/_scores.py computes the same.
#pragma once

#include <cstdint>

#include "kernels/attention_entropy.h"

namespace aero::kernels {
namespace {  // as in online_softmax.h

/// A finalizer of 64 bits (splitmix64: Steele, Lea and Flood 2014).
[[gnu::always_inline]] constexpr uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30u)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27u)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31u);
}

/// What the keys of a head's rows are made of.
[[gnu::always_inline]] constexpr uint64_t dropout_head(const Dropout& dropout, int64_t b,
                                                       int64_t h) {
  return mixed(mixed(static_cast<uint64_t>(dropout.seeds[b])) + static_cast<uint64_t>(h));
}
[[gnu::always_inline]] constexpr uint64_t dropout_row(uint64_t head, int64_t i) {
  return mixed(head + static_cast<uint64_t>(i));
}

/// `low` and `high`: halves of the rows' keys; `key`: j. Words of 32 bits, or vectors of them
/// (constants: Wellons' lowbias32).
template <class Words>
[[gnu::always_inline]] constexpr Words dropout_hash(Words low, Words high, Words key) {
  Words x = key * 0x9e3779b9u + low;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15) ^ high) * 0x846ca68bu;
  return x ^ (x >> 16);
}

/// Weights whose hash is below it are dropped.
[[gnu::always_inline]] constexpr uint32_t dropout_threshold(const Dropout& dropout) {
  return static_cast<uint32_t>(dropout.probability * 4294967296.0);
}
/// The factor of weights that stay.
template <class Real>
[[gnu::always_inline]] constexpr Real dropout_factor(const Dropout& dropout) {
  return dropout.seeds ? static_cast<Real>(1 / (1 - dropout.probability)) : Real(1);
}

}  // namespace
}  // namespace aero::kernels
