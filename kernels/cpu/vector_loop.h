// Loops over contiguous elements, a vector at a time.
#pragma once

#include <limits>
#include <type_traits>

#include "kernels/cpu/simd_elements.h"

namespace aero::kernels::cpu {
namespace {

/// Which lanes of a vector take part: all, or the first few at the end of a row.
struct AllLanes {};
struct SomeLanes {
  int64_t count;
};

template <class Real, class Element>
AERO_INLINE Vec<Real> load_lanes(const Element* p, Real /*filling*/, AllLanes) {
  return load_elements(p);
}
/// `filling` in the other lanes.
template <class Real, class Element>
AERO_INLINE Vec<Real> load_lanes(const Element* p, Real filling, SomeLanes lanes) {
  using Word = typename Simd<Real>::Word;
  const Vec<Real> x = load_some_elements<Real>(p, lanes.count);
  return lane_index<Real>() < static_cast<Word>(lanes.count) ? x : splat(filling);
}
/// Streams whole vectors past the caches or not.
template <bool kStreams, class Element, class V>
AERO_INLINE void store_lanes(Element* p, V x, AllLanes) {
  if constexpr (kStreams)
    stream_elements(p, x);
  else
    store_elements(p, x);
}
template <bool kStreams, class Element, class V>
AERO_INLINE void store_lanes(Element* p, V x, SomeLanes lanes) {
  store_some_elements<std::remove_cvref_t<decltype(x[0])>>(p, x, lanes.count);
}

// Vectors in flight: the sums of one depend on the sums before, so each has its own.
constexpr int kSums = 4;

/// step(j, lanes, sum) for the vectors that cover [first, last); `sum` says which sum to add to.
template <class Real, class Step>
AERO_INLINE void for_each_vector(int64_t first, int64_t last, const Step& step) {
  constexpr int64_t kL = kLanes<Real>;
  int64_t j = first;
  for (; j + kSums * kL <= last; j += kSums * kL) {
    step(j, AllLanes{}, 0);
    step(j + kL, AllLanes{}, 1);
    step(j + 2 * kL, AllLanes{}, 2);
    step(j + 3 * kL, AllLanes{}, 3);
  }
  for (; j + kL <= last; j += kL) step(j, AllLanes{}, 0);
  if (j < last) step(j, SomeLanes{last - j}, 1);
}

/// The highest of the elements; the lowest number where there is none, or none but -inf.
template <class Real, class Element>
AERO_INLINE Real highest(const Element* p, int64_t count) {
  const auto higher = [](Vec<Real> a, Vec<Real> b) AERO_LAMBDA_INLINE { return maximum(a, b); };
  constexpr Real hidden = -std::numeric_limits<Real>::infinity();
  const Vec<Real> lowest = splat(std::numeric_limits<Real>::lowest());
  Vec<Real> best[kSums] = {lowest, lowest, lowest, lowest};
  for_each_vector<Real>(0, count, [&](int64_t j, auto lanes, int sum) AERO_LAMBDA_INLINE {
    best[sum] = maximum(best[sum], load_lanes(p + j, hidden, lanes));
  });
  return over_lanes<Real>(higher(higher(best[0], best[1]), higher(best[2], best[3])), higher);
}

template <class Real>
AERO_INLINE Real total(const Vec<Real> (&sums)[kSums]) {
  return over_lanes<Real>((sums[0] + sums[1]) + (sums[2] + sums[3]),
                          [](Vec<Real> a, Vec<Real> b) AERO_LAMBDA_INLINE { return a + b; });
}

}  // namespace
}  // namespace aero::kernels::cpu
