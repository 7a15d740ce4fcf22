// Softmax with temperature and entropy, both directions, for one instruction set: one row at a
// time, keys in the vector lanes. The scores come from memory and a row fits the first cache level,
// so what bounds it is reading and writing them.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/online_softmax.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cpu {
namespace {

/// One row: where it is, what it sees, and its scaled scores in scratch memory.
template <class Element, class Real>
class SoftmaxRow {
 public:
  static constexpr int kL = kLanes<Real>;

  /// Elements of scratch for `arrays` arrays of a row, in whole vectors.
  static int64_t padded(int64_t keys) { return (keys + kL - 1) / kL * kL; }

  SoftmaxRow(const TemperatureSoftmaxParams& p, int64_t index)
      : p_(p),
        batch_(index / p.queries / p.heads),
        head_(index / p.queries % p.heads),
        query_(index % p.queries) {
    const int64_t limit = query_ + p.keys - p.queries + 1;
    visible = !p.is_causal || limit > p.keys ? p.keys : limit < 0 ? 0 : limit;
    if (p.temperature) temperature = *at<const Real>(p.temperature, p.temperature_strides);
  }

  template <class T, class Void>
  T* at(Void* tensor, const Strides& s) const {
    return static_cast<T*>(tensor) + (batch_ * s.batch + head_ * s.head + query_ * s.row);
  }

  /// Index of the row's m in [B, H, 3, T] where `index` is its place in [B, H, T].
  int64_t saved(int64_t index) const {
    return index + (kSavedStatistics - 1) * p_.queries * (batch_ * p_.heads + head_);
  }

  static Vec<Real> load_row(const Element* row, int64_t j, int64_t count) {
    return count - j >= kL ? load_elements(row + j) : load_some_elements<Real>(row + j, count - j);
  }
  static void store_row(Element* row, int64_t j, int64_t count, Vec<Real> x) {
    if (count - j >= kL)
      store_elements(row + j, x);
    else
      store_some_elements<Real>(row + j, x, count - j);
  }

  /// scaled[j] = log2(e) score_j / t, kMaskedScore where hidden, up to whole vectors.
  void scale_scores(Real* scaled) const {
    const auto* scores = at<const Element>(p_.scores, p_.scores_strides);
    const auto factor = static_cast<Real>(kLog2E / static_cast<double>(temperature));
    for (int64_t j = 0; j < visible; j += kL)
      store(scaled + j, load_row(scores, j, visible) * factor);
    for (int64_t j = visible; j < padded(visible); ++j) scaled[j] = static_cast<Real>(kMaskedScore);
    if (!p_.mask) return;
    const MaskStrides& s = p_.mask_strides;
    const bool* mask = p_.mask + batch_ * s.batch + head_ * s.head + query_ * s.query;
    for (int64_t j = 0; j < visible; ++j)
      if (!mask[j * s.key]) scaled[j] = static_cast<Real>(kMaskedScore);
  }

  /// Zeros from the first vector that no visible key is in.
  void clear_rest(Element* row) const {
    for (int64_t j = padded(visible); j < p_.keys; j += kL) store_row(row, j, p_.keys, Vec<Real>{});
  }

  int64_t visible;       ///< keys that the causal rule shows
  Real temperature = 1;  ///< t

 private:
  const TemperatureSoftmaxParams& p_;
  int64_t batch_, head_, query_;
};

template <class Element, class Real>
struct TemperatureSoftmaxForward {
  using Params = TemperatureSoftmaxForwardParams;
  using Row = SoftmaxRow<Element, Real>;
  static constexpr int kL = kLanes<Real>;

  static int64_t scratch_bytes(const Params& p) {
    return Row::padded(p.keys) * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t item_count(const Params& p) { return p.batch * p.heads * p.queries; }

  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index)
      run_row(p, index, static_cast<Real*>(scratch));
  }

 private:
  static void run_row(const Params& p, int64_t index, Real* weights) {
    const Row row(p, index);
    const int64_t end = Row::padded(row.visible);
    row.scale_scores(weights);

    Vec<Real> top = splat(static_cast<Real>(kEmptyMaximum));
    for (int64_t j = 0; j < end; j += kL) top = maximum(top, load(weights + j));
    Real row_maximum = top[0];
    for (int i = 1; i < kL; ++i) row_maximum = row_maximum > top[i] ? row_maximum : top[i];

    OnlineSoftmax<Vec<Real>> state{splat(row_maximum), Vec<Real>{}, Vec<Real>{}};
    for (int64_t j = 0; j < end; j += kL) {
      const Vec<Real> x = load(weights + j) - row_maximum;
      const Vec<Real> weight = exp2(x);
      state.add(x, weight);
      store(weights + j, weight);
    }
    const Real sum = sum_of_lanes<Real>(state.sum);
    const RowResult<Real> result =
        finish_row<Real>(row_maximum, sum, sum_of_lanes<Real>(state.score_sum), natural_log(sum));
    static_cast<Real*>(p.entropy)[index] = result.entropy;
    static_cast<Real*>(p.logsumexp)[index] = result.logsumexp;
    if (p.statistics) {
      Real* saved = static_cast<Real*>(p.statistics) + row.saved(index);
      saved[0] = result.saved_maximum;
      saved[p.queries] = result.saved_sum;
      saved[2 * p.queries] = result.saved_offset;
    }

    auto* probabilities = row.template at<Element>(p.probabilities, p.probabilities_strides);
    const Real inverse = sum == 0 ? 0 : 1 / sum;
    for (int64_t j = 0; j < end; j += kL)
      Row::store_row(probabilities, j, p.keys, load(weights + j) * inverse);
    row.clear_rest(probabilities);
  }
};

template <class Element, class Real>
struct TemperatureSoftmaxBackward {
  using Params = TemperatureSoftmaxBackwardParams;
  using Row = SoftmaxRow<Element, Real>;
  static constexpr int kL = kLanes<Real>;

  static int64_t scratch_bytes(const Params& p) {
    return 2 * Row::padded(p.keys) * static_cast<int64_t>(sizeof(Real));
  }
  static int64_t item_count(const Params& p) { return p.batch * p.heads * p.queries; }

  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    Real* scaled = static_cast<Real*>(scratch);
    for (int64_t index = first; index < last; ++index)
      run_row(p, index, scaled, scaled + Row::padded(p.keys));
  }

 private:
  static void run_row(const Params& p, int64_t index, Real* offsets, Real* weights) {
    const Row row(p, index);
    const int64_t end = Row::padded(row.visible);
    row.scale_scores(offsets);
    const Real* saved = static_cast<const Real*>(p.statistics) + row.saved(index);
    const Real row_maximum = saved[0], sum = saved[p.queries], offset = saved[2 * p.queries];
    const Real inverse = sum == 0 ? 0 : 1 / sum;
    const Real dentropy = p.dentropy ? static_cast<const Real*>(p.dentropy)[index] : 0;
    const Real dlogsumexp = p.dlogsumexp ? static_cast<const Real*>(p.dlogsumexp)[index] : 0;
    const auto* dprobabilities = p.dprobabilities ? row.template at<const Element>(
                                                        p.dprobabilities, p.dprobabilities_strides)
                                                  : nullptr;

    // Scores become x = log2 P + log2 l and P; D = sum_j P dP.
    Vec<Real> product{};
    for (int64_t j = 0; j < end; j += kL) {
      // Below 2^-2000 P is 0 whatever z is; the bound keeps a hidden key's z finite.
      const Vec<Real> x = maximum(splat(Real{-2000}), load(offsets + j) - row_maximum);
      const Vec<Real> weight = exp2(x) * inverse;
      if (dprobabilities) product += weight * Row::load_row(dprobabilities, j, p.keys);
      store(offsets + j, x);
      store(weights + j, weight);
    }
    const Real center = sum_of_lanes<Real>(product) - dlogsumexp;

    const Real factor = 1 / row.temperature;
    auto* dscores = p.dscores ? row.template at<Element>(p.dscores, p.dscores_strides) : nullptr;
    Vec<Real> dtemperature{};
    for (int64_t j = 0; j < end; j += kL) {
      const Vec<Real> z = load(offsets + j) * static_cast<Real>(kLn2) + offset;
      const Vec<Real> dweight =
          dprobabilities ? Row::load_row(dprobabilities, j, p.keys) : Vec<Real>{};
      const Vec<Real> dscore = load(weights + j) * (dweight - dentropy * z - center);
      dtemperature += dscore * z;
      if (dscores) Row::store_row(dscores, j, p.keys, dscore * factor);
    }
    if (dscores) row.clear_rest(dscores);
    if (p.dtemperature) {
      // logsumexp - entropy; both saved numbers are 0 for a row that saw no key.
      const Real mean_score = static_cast<Real>(kLn2) * row_maximum - offset;
      static_cast<Real*>(p.dtemperature)[index] =
          -(sum_of_lanes<Real>(dtemperature) + mean_score * dlogsumexp) * factor;
    }
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
