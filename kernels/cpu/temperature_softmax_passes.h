// Softmax with temperature and entropy, both directions, for one instruction set: keys in the
// vector lanes.
//
// Bytes moved are the least there can be: forward reads the visible scores once and writes the
// probabilities once, backward reads scores and gradients once and writes gradients once. A row
// goes through the vectors three times (forward) or twice, but from the first cache level.
//
// With r the row's highest score times the sign of t, x = log2(e) / |t| (sign(t) score - r): the
// difference comes first, so that x keeps its digits however large the scores are, and is exactly 0
// at r; only scores over a huge t are divided first. The statistics saved for the backward pass
// hold r in place of the maximum m.
#pragma once

#include "kernels/cpu/temperature_softmax_rows.h"

namespace aero::kernels::cpu {
namespace {

template <class Element, class Real>
struct TemperatureSoftmaxForward {
  using Params = TemperatureSoftmaxForwardParams;
  using Row = SoftmaxRow<Element, Real>;

  static int64_t scratch_bytes(const Params& p) {
    return block_rows(p.keys) * Row::padded(p.keys) * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t item_count(const Params& p) { return p.batch * p.heads * p.queries; }

  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    for_each_block<Row>(p, first, last, [&](const Row* rows, int count, int64_t index) {
      Real* weights[kMostBlockRows];
      for (int r = 0; r < count; ++r)
        weights[r] = static_cast<Real*>(scratch) + r * Row::padded(p.keys);
      OnlineSoftmax<Real> states[kMostBlockRows];
      for (int r = 0; r < count; ++r) {
        rows[r].prepare(weights[r]);
        rows[r].visit_scores(weights[r], [&](const auto* scores) AERO_LAMBDA_INLINE {
          // r; the lowest number where no score is seen
          states[r].maximum = highest<Real>(scores, rows[r].visible);
        });
      }
      for (int r = 0; r < count; ++r)
        rows[r].visit_scores(weights[r], [&](const auto* scores) AERO_LAMBDA_INLINE {
          weigh(rows[r], scores, weights[r], states[r]);
        });
      for (int r = 0; r < count; ++r) {
        const Row& row = rows[r];
        auto* probabilities = row.template at<Element>(p.probabilities);
        row.streams(probabilities) ? write<true>(row, probabilities, weights[r], states[r].sum)
                                   : write<false>(row, probabilities, weights[r], states[r].sum);
      }
      finish(p, rows, count, index, states);
    });
    end_streaming();
  }

 private:
  /// weights[j] = 2^x, and their sums.
  template <class Source>
  AERO_INLINE static void weigh(const Row& row, const Source* scores, Real* weights,
                                OnlineSoftmax<Real>& state) {
    Vec<Real> sums[kSums] = {}, score_sums[kSums] = {};
    for_each_vector<Real>(0, row.visible, [&](int64_t j, auto lanes, int sum) AERO_LAMBDA_INLINE {
      const Vec<Real> x = row.exponents(load_lanes(scores + j, Row::kHidden, lanes), state.maximum);
      const Vec<Real> weight = exp2(x);
      sums[sum] += weight;
      score_sums[sum] += weight * x;
      store(weights + j, weight);
    });
    state.sum = total<Real>(sums);
    state.score_sum = total<Real>(score_sums);
  }

  template <bool kStreams>
  static void write(const Row& row, Element* probabilities, const Real* weights, Real sum) {
    const Real inverse = sum == 0 ? 0 : 1 / sum;
    for_each_vector<Real>(0, row.written, [&](int64_t j, auto lanes, int) AERO_LAMBDA_INLINE {
      store_lanes<kStreams>(probabilities + j, load(weights + j) * inverse, lanes);
    });
    row.template clear<kStreams>(probabilities, row.written);
  }

  static void finish(const Params& p, const Row* rows, int count, int64_t index,
                     const OnlineSoftmax<Real>* states) {
    Real log_sums[kMostBlockRows];
    for (int r = 0; r < kMostBlockRows; ++r) log_sums[r] = r < count ? states[r].sum : 1;
    for (int r = 0; r < count; r += kLanes<Real>)
      store(log_sums + r, natural_log(load(log_sums + r)));
    for (int r = 0; r < count; ++r) {
      const OnlineSoftmax<Real>& state = states[r];
      const RowResult<Real> result = finish_row<Real>(state.maximum, state.sum, state.score_sum,
                                                      log_sums[r], state.maximum / rows[r].unit);
      static_cast<Real*>(p.entropy)[index + r] = result.entropy;
      static_cast<Real*>(p.logsumexp)[index + r] = result.logsumexp;
      if (!p.statistics) continue;
      Real* saved = static_cast<Real*>(p.statistics) + rows[r].saved();
      saved[0] = result.saved_maximum;
      saved[p.queries] = result.saved_sum;
      saved[2 * p.queries] = result.saved_offset;
    }
  }
};

template <class Element, class Real>
struct TemperatureSoftmaxBackward {
  using Params = TemperatureSoftmaxBackwardParams;
  using Row = SoftmaxRow<Element, Real>;

  static int64_t scratch_bytes(const Params& p) {
    return 2 * block_rows(p.keys) * Row::padded(p.keys) * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t item_count(const Params& p) { return p.batch * p.heads * p.queries; }

  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    p.dprobabilities ? run_rows<true>(p, scratch, first, last)
                     : run_rows<false>(p, scratch, first, last);
  }

 private:
  /// A row's x, P, and the other operands of its gradients.
  struct State {
    Real* exponents;
    Real* weights;
    Real top, inverse, offset;  ///< r, 1 / l, w
    Real center;                ///< D - dlogsumexp

    /// What comes back to P of a key, nothing where it is not seen: P is 0 there, but not its
    /// product with inf or NaN. A row that is NaN stays so.
    AERO_INLINE Vec<Real> seen(Vec<Real> x, Vec<Real> value) const {
      return x == kLowestExponent + 0 * inverse ? Vec<Real>{} : value;
    }
  };

  template <bool kHasGradient>
  static void run_rows(const Params& p, void* scratch, int64_t first, int64_t last) {
    for_each_block<Row>(p, first, last, [&](const Row* rows, int count, int64_t index) {
      State states[kMostBlockRows];
      for (int r = 0; r < count; ++r) {
        State& state = states[r];
        state.exponents = static_cast<Real*>(scratch) + 2 * r * Row::padded(p.keys);
        state.weights = state.exponents + Row::padded(p.keys);
        const Real* saved = static_cast<const Real*>(p.statistics) + rows[r].saved();
        state.top = saved[0];
        state.inverse = saved[p.queries] == 0 ? 0 : 1 / saved[p.queries];
        state.offset = saved[2 * p.queries];
        rows[r].prepare(state.exponents);
        rows[r].visit_scores(state.exponents, [&](const auto* scores) AERO_LAMBDA_INLINE {
          state.center =
              weigh<kHasGradient>(p, rows[r], scores, state) - value(p.dlogsumexp, index + r);
        });
      }
      for (int r = 0; r < count; ++r) {
        auto* dscores = rows[r].template at<Element>(p.dscores);
        p.dscores&& rows[r].streams(dscores)
            ? write<kHasGradient, true>(p, rows[r], dscores, index + r, states[r])
            : write<kHasGradient, false>(p, rows[r], dscores, index + r, states[r]);
      }
    });
    end_streaming();
  }

  static Real value(const void* gradients, int64_t index) {
    return gradients ? static_cast<const Real*>(gradients)[index] : 0;
  }

  template <bool kHasGradient, class Lanes>
  AERO_INLINE static Vec<Real> gradient(const Element* dprobabilities, int64_t j, Lanes lanes) {
    if constexpr (kHasGradient)
      return load_lanes(dprobabilities + j, Real{0}, lanes);
    else
      return Vec<Real>{};
  }

  /// x and P; returns D = sum_j P dP.
  template <bool kHasGradient, class Source>
  AERO_INLINE static Real weigh(const Params& p, const Row& row, const Source* scores,
                                const State& state) {
    const auto* dprobabilities = row.template at<const Element>(p.dprobabilities);
    Vec<Real> products[kSums] = {};
    for_each_vector<Real>(0, row.visible, [&](int64_t j, auto lanes, int sum) AERO_LAMBDA_INLINE {
      const Vec<Real> x = row.exponents(load_lanes(scores + j, Row::kHidden, lanes), state.top);
      const Vec<Real> weight = exp2(x) * state.inverse;
      products[sum] += weight * state.seen(x, gradient<kHasGradient>(dprobabilities, j, lanes));
      store(state.exponents + j, x);
      store(state.weights + j, weight);
    });
    return total<Real>(products);
  }

  template <bool kHasGradient, bool kStreams>
  static void write(const Params& p, const Row& row, Element* dscores, int64_t index,
                    const State& state) {
    const auto* dprobabilities = row.template at<const Element>(p.dprobabilities);
    const Real dentropy = value(p.dentropy, index), inverse = 1 / row.temperature;
    Vec<Real> dtemperature[kSums] = {};
    for_each_vector<Real>(0, row.visible, [&](int64_t j, auto lanes, int sum) AERO_LAMBDA_INLINE {
      const Vec<Real> x = load(state.exponents + j);
      const Vec<Real> z = x * static_cast<Real>(kLn2) + state.offset;
      const Vec<Real> slope =
          gradient<kHasGradient>(dprobabilities, j, lanes) - (dentropy * z + state.center);
      const Vec<Real> dscore = load(state.weights + j) * state.seen(x, slope);
      dtemperature[sum] += dscore * z;
      if (p.dscores) store_lanes<kStreams>(dscores + j, dscore * inverse, lanes);
    });
    if (p.dscores) row.template clear<kStreams>(dscores, row.visible);
    if (p.dtemperature) {
      Real sum = total<Real>(dtemperature);
      // logsumexp - entropy
      const Real mean_score = state.top / row.unit - state.offset;
      if (state.inverse != 0) sum += mean_score * value(p.dlogsumexp, index);
      static_cast<Real*>(p.dtemperature)[index] = -sum * inverse;
    }
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
