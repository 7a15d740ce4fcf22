// Cross entropy of rows of logits for one instruction set: classes in the vector lanes.
//
// A row goes through the vectors twice for its loss and a third time for its gradient, from the
// second cache level where 50,000 classes fit. Each class has one exponential.
#pragma once

#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_loop.h"
#include "kernels/cross_entropy.h"
#include "kernels/online_softmax.h"

namespace aero::kernels::cpu {
namespace {

template <class Element, class Real>
struct CrossEntropy {
  using Params = CrossEntropyParams;
  static constexpr int kL = kLanes<Real>;

  /// The exponentials of a row, where its gradient needs them.
  static int64_t scratch_bytes(const Params& p) {
    const int64_t vectors = p.factors ? (p.classes + kL - 1) / kL : 0;
    return vectors * kL * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t item_count(const Params& p) { return p.rows; }

  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (p.factors)
        row<true>(p, i, static_cast<Real*>(scratch));
      else
        row<false>(p, i, nullptr);
    }
  }

 private:
  template <bool kHasGradient>
  static void row(const Params& p, int64_t i, Real* weights) {
    if (p.classes == 0) {
      static_cast<Real*>(p.losses)[i] = 0;
      return;
    }
    const auto* logits = rows_at<const Element>(p.logits, 0, 0, i).data;
    const int64_t target = p.targets[i];
    const bool counts = target >= 0;
    Real loss = 0, sum = 1;
    if (counts) {
      const Real top = highest<Real>(logits, p.classes);
      sum = weigh<kHasGradient>(logits, p.classes, top, weights);
      loss = natural_log(sum) + (top - to_real<Real>(logits[target]));
    }
    static_cast<Real*>(p.losses)[i] = loss;
    if constexpr (kHasGradient) {
      auto* dlogits = rows_at<Element>(p.dlogits, 0, 0, i).data;
      const Real factor = static_cast<const Real*>(p.factors)[i], share = factor / sum;
      for_each_vector<Real>(0, p.classes, [&](int64_t j, auto lanes, int) AERO_LAMBDA_INLINE {
        const Vec<Real> weight = counts ? load(weights + j) * share : Vec<Real>{};
        store_lanes<false>(dlogits + j, weight, lanes);
      });
      // Of P before it is rounded to the elements.
      if (counts) dlogits[target] = from_real<Element>(weights[target] * share - factor);
    }
  }

  /// weights[j] = exp(logits_j - top), or none of them; returns their sum.
  template <bool kKeeps>
  static Real weigh(const Element* logits, int64_t classes, Real top, Real* weights) {
    constexpr Real hidden = -std::numeric_limits<Real>::infinity();
    const Vec<Real> least = splat(Real{-2000});
    Vec<Real> sums[kSums] = {};
    for_each_vector<Real>(0, classes, [&](int64_t j, auto lanes, int sum) AERO_LAMBDA_INLINE {
      const Vec<Real> x = (load_lanes(logits + j, hidden, lanes) - top) * static_cast<Real>(kLog2E);
      const Vec<Real> weight = exp2(maximum(least, x));
      sums[sum] += weight;
      if constexpr (kKeeps) store(weights + j, weight);
    });
    return total<Real>(sums);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
