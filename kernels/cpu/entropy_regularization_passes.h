// Loops over the rows of one head, for one instruction set: entropies are read once and gradients
// written once in either direction.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector_loop.h"

namespace aero::kernels::cpu {
namespace {

template <class Real>
struct EntropyPasses {
  using Rows = EntropyRows<Real>;

  static Real penalty(const Rows& rows) {
    Vec<Real> penalties[kSums] = {};
    visit(rows,
          [&](int64_t, auto, int sum, Vec<Real> entropy, Vec<Real> largest) AERO_LAMBDA_INLINE {
            const Vec<Real> excess = excess_of(rows, entropy, largest);
            penalties[sum] += excess * excess;
          });
    return total<Real>(penalties);
  }

  static EntropySums<Real> sums(const Rows& rows) {
    Vec<Real> entropies[kSums] = {}, largests[kSums] = {};
    visit(rows,
          [&](int64_t, auto, int sum, Vec<Real> entropy, Vec<Real> largest) AERO_LAMBDA_INLINE {
            entropies[sum] += entropy;
            largests[sum] += largest;
          });
    return {total<Real>(entropies), total<Real>(largests)};
  }

  static Real gradients(const Rows& rows, Real factor, Real* dentropies) {
    Vec<Real> products[kSums] = {};
    visit(rows, [&](int64_t i, auto lanes, int sum, Vec<Real> entropy,
                    Vec<Real> largest) AERO_LAMBDA_INLINE {
      const Vec<Real> excess = excess_of(rows, entropy, largest);
      products[sum] += excess * largest;
      // 0 times a factor that is inf or NaN would not be 0.
      store_lanes<false>(dentropies + i, excess == 0 ? Vec<Real>{} : excess * factor, lanes);
    });
    return total<Real>(products);
  }

 private:
  /// step(i, lanes, sum, entropies, largest entropies); zeros beyond the last row.
  template <class Step>
  AERO_INLINE static void visit(const Rows& rows, const Step& step) {
    if (rows.has_one_max_entropy)
      for_each_vector<Real>(0, rows.count, [&](int64_t i, auto lanes, int sum) AERO_LAMBDA_INLINE {
        step(i, lanes, sum, load_lanes(rows.entropies + i, Real{0}, lanes),
             splat_lanes(*rows.max_entropy, lanes));
      });
    else
      for_each_vector<Real>(0, rows.count, [&](int64_t i, auto lanes, int sum) AERO_LAMBDA_INLINE {
        step(i, lanes, sum, load_lanes(rows.entropies + i, Real{0}, lanes),
             load_lanes(rows.max_entropy + i, Real{0}, lanes));
      });
  }

  AERO_INLINE static Vec<Real> splat_lanes(Real x, AllLanes) { return splat(x); }
  AERO_INLINE static Vec<Real> splat_lanes(Real x, SomeLanes lanes) {
    using Word = typename Simd<Real>::Word;
    return lane_index<Real>() < static_cast<Word>(lanes.count) ? splat(x) : Vec<Real>{};
  }

  /// Deviation from the threshold where it leaves the free band, else 0.
  AERO_INLINE static Vec<Real> excess_of(const Rows& rows, Vec<Real> entropy, Vec<Real> largest) {
    const Vec<Real> deviation = entropy - largest * rows.threshold;
    const Vec<Real> size = deviation < 0 ? -deviation : deviation;
    // NaN is no smaller than anything, so it stays NaN.
    return size <= largest * rows.margin ? Vec<Real>{} : deviation;
  }
};

template <class Real>
constexpr EntropyRegularizationKernels<Real> entropy_regularization_kernels() noexcept {
  using Passes = EntropyPasses<Real>;
  return {Passes::penalty, Passes::sums, Passes::gradients};
}

}  // namespace
}  // namespace aero::kernels::cpu
