// Sums whose order of additions depends on the number of terms alone: bitwise the same however the
// work is shared out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace aero::kernels::cpu {
namespace {

/// Sum of term(0) ... term(count - 1): pairwise down to blocks, sixteen lanes wide inside a block.
/// The error grows with the logarithm of `count`; the lanes let the compiler use vector adds, which
/// it may not do with one running sum.
template <class Real, class Term>
Real fixed_order_sum(int64_t count, const Term& term, int64_t first = 0) {
  constexpr int64_t kBlock = 512, kLanes = 16;
  if (count > kBlock) {
    const int64_t half = (count / 2 + kBlock - 1) / kBlock * kBlock;
    return fixed_order_sum<Real>(half, term, first) +
           fixed_order_sum<Real>(count - half, term, first + half);
  }
  std::array<Real, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<size_t>(lane)] += term(first + i + lane);
  for (; i < count; ++i) lanes[static_cast<size_t>(i % kLanes)] += term(first + i);
  for (size_t width = kLanes / 2; width > 0; width /= 2)
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

}  // namespace
}  // namespace aero::kernels::cpu
