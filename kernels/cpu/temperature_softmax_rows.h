// Rows of temperature_softmax: their places and their keys; keys in the vector lanes.
#pragma once

#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_loop.h"
#include "kernels/online_softmax.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cpu {
namespace {

// Below 2^-2000 a weight is 0 whatever x is; the bound keeps 0 * x from becoming 0 * inf.
constexpr int kLowestExponent = -2000;

// Results of this size leave no trace in a last-level cache: streamed past it, 50 MB take two
// thirds of the time. A smaller one is better left there for who reads it next.
constexpr int64_t kStreamedBytes = 32 * 1024 * 1024;

// Rows that take each step together: while one waits for its sums the next goes on, and logarithms
// are taken of a vector of rows. Fewer rows where they would leave the first cache level.
constexpr int kMostBlockRows = 16;
constexpr int64_t kBlockElements = 2048;

AERO_INLINE int64_t block_rows(int64_t keys) {
  const int64_t rows = kBlockElements / (keys > 0 ? keys : 1);
  return rows < 1 ? 1 : rows > kMostBlockRows ? kMostBlockRows : rows;
}

/// One row: its place, its keys, and the scale of its scores.
template <class Element, class Real>
class SoftmaxRow {
 public:
  static constexpr int kL = kLanes<Real>;

  /// Elements of scratch for one array of a row, in whole vectors.
  static int64_t padded(int64_t keys) { return (keys + kL - 1) / kL * kL; }

  SoftmaxRow() = default;
  SoftmaxRow(const TemperatureSoftmaxParams& p, int64_t batch, int64_t head, int64_t query)
      : p_(&p), batch_(batch), head_(head), query_(query) {
    const int64_t limit = query_ + p.keys - p.queries + 1;
    visible = !p.is_causal || limit > p.keys ? p.keys : limit < 0 ? 0 : limit;
    written = padded(visible) < p.keys ? padded(visible) : p.keys;
    if (p.temperature) temperature = *at<const Real>(p.temperature);
    const Real size = temperature < 0 ? -temperature : temperature;
    if (size > kHuge) {
      direction = static_cast<Real>(kLog2E / static_cast<double>(temperature));
      unit = static_cast<Real>(kLog2E);
    } else {
      direction = temperature < 0 ? -1 : 1;
      factor = static_cast<Real>(kLog2E / static_cast<double>(size));
      unit = size;
    }
  }

  template <class T, class Tensor>
  T* at(const Tensor& tensor) const {
    return rows_at<T>(tensor, batch_, head_, query_).data;
  }

  /// Index of the row's r in [B, H, 3, T].
  int64_t saved() const {
    return (batch_ * p_->heads + head_) * kSavedStatistics * p_->queries + query_;
  }

  /// Puts the visible scores times `direction` into `scratch`, those that are hidden as kHidden.
  /// Rows without a mask whose direction is 1 are used where they lie.
  void prepare(Real* scratch) const {
    if (lies_well()) return;
    const auto* scores = at<const Element>(p_->scores);
    for_each_vector<Real>(0, visible, [&](int64_t j, auto lanes, int) AERO_LAMBDA_INLINE {
      const Vec<Real> score = load_lanes(scores + j, kHidden, lanes);
      // NaN where the score is +inf, which a negative direction would hide.
      store(scratch + j, score == kHidden ? score : score * direction + (score - score));
    });
    if (!p_->mask) return;
    const int64_t step = p_->mask.strides.column;
    const bool* mask = at<const bool>(p_->mask);
    if (step == 1)  // a loop of its own: the compiler vectorises it
      for (int64_t j = 0; j < visible; ++j) scratch[j] = mask[j] ? scratch[j] : kHidden;
    else
      for (int64_t j = 0; j < visible; ++j) scratch[j] = mask[j * step] ? scratch[j] : kHidden;
  }

  /// visit(scores) on the prepared scores.
  template <class Visit>
  AERO_INLINE void visit_scores(const Real* scratch, const Visit& visit) const {
    lies_well() ? visit(at<const Element>(p_->scores)) : visit(scratch);
  }

  /// x of one vector of scores.
  AERO_INLINE Vec<Real> exponents(Vec<Real> scores, Real top) const {
    return maximum(splat(static_cast<Real>(kLowestExponent)), (scores - top) * factor);
  }

  /// Zeros from `first` on, which is `visible` or `written`.
  template <bool kStreams>
  AERO_INLINE void clear(Element* row, int64_t first) const {
    const auto zero = [&](int64_t j, auto lanes, int) AERO_LAMBDA_INLINE {
      store_lanes<kStreams>(row + j, Vec<Real>{}, lanes);
    };
    for_each_vector<Real>(first, written, zero);
    for_each_vector<Real>(written, p_->keys, zero);
  }

  /// Whether a result of these rows should go past the caches: it is larger than they are.
  bool streams(const Element* row) const {
    return p_->batch * p_->heads * p_->queries * p_->keys >=
               kStreamedBytes / static_cast<int64_t>(sizeof(Element)) &&
           reinterpret_cast<uintptr_t>(row) % (kL * sizeof(Element)) == 0;
  }

  int64_t visible = 0;   ///< keys that the causal rule shows
  int64_t written = 0;   ///< keys in vectors that hold a visible one
  Real temperature = 1;  ///< t
  Real direction = 1;    ///< the factor of preparation: the sign of t, or log2(e) / t
  Real factor = 1;       ///< the factor of prepared scores; with direction log2(e) / t
  Real unit = 1;         ///< prepared scores are nats times this

  /// The value of a key that is not seen: a score of -inf, as people mask them.
  static constexpr Real kHidden = -std::numeric_limits<Real>::infinity();

 private:
  /// Beyond this factor times -inf might not be -inf, and the difference of two scores of opposite
  /// sign might overflow that is none after the division.
  static constexpr Real kHuge = sizeof(Real) == 4 ? Real(0x1p120) : Real(0x1p1016);

  bool lies_well() const { return !p_->mask && direction == 1; }

  const TemperatureSoftmaxParams* p_ = nullptr;
  int64_t batch_ = 0, head_ = 0, query_ = 0;
};

/// visit(rows, count, index of the first) for blocks of the rows [first, last) of [B, H, T].
template <class Row, class Visit>
AERO_INLINE void for_each_block(const TemperatureSoftmaxParams& p, int64_t first, int64_t last,
                                const Visit& visit) {
  const int64_t block = block_rows(p.keys);
  for (int64_t index = first; index < last;) {
    const int64_t head = index / p.queries, start = index % p.queries;
    Row rows[kMostBlockRows];
    int count = 0;
    for (; count < block && start + count < p.queries && index + count < last; ++count)
      rows[count] = Row(p, head / p.heads, head % p.heads, start + count);
    visit(rows, count, index);
    index += count;
  }
}

}  // namespace
}  // namespace aero::kernels::cpu
