// Entropy penalty: one item per layer and head.
#include "kernels/entropy_regularization.h"

#include <cmath>
#include <type_traits>

#include "kernels/cpu/fixed_order_sum.h"
#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

template <class Real>
const EntropyRegularizationKernels<Real>& kernels_for() {
  if constexpr (std::is_same_v<Real, float>)
    return kernels_in_use().entropy_regularization;
  else
    return kernels_in_use().entropy_regularization_float64;
}

template <class Function>
void with_real(DataType data_type, Function&& function) {
  data_type == DataType::kFloat64 ? function(double{}) : function(float{});
}

bool counts(const EntropyRegularizationParams& p, int64_t b, int64_t i) {
  const Strides& s = p.row_mask.strides;
  return !p.row_mask || p.row_mask.data[b * s.batch + i * s.row];
}

int64_t counted_rows(const EntropyRegularizationParams& p, int64_t b) {
  if (!p.row_mask) return p.queries;
  int64_t rows = 0;
  for (int64_t i = 0; i < p.queries; ++i) rows += counts(p, b, i);
  return rows;
}

int64_t counted_batch(const EntropyRegularizationParams& p) {
  int64_t used = 0;
  for (int64_t b = 0; b < p.batch; ++b) used += counted_rows(p, b) > 0;
  return used;
}

/// One layer and head.
template <class Real>
class Head {
 public:
  /// `scratch`: [2, T], for rows that do not lie as the kernels want them.
  Head(const EntropyRegularizationParams& params, int64_t item, Real* scratch)
      : kernels(kernels_for<Real>()),
        p_(params),
        scratch_(scratch),
        entropies_(static_cast<const Real*>(p_.entropies.data) +
                   item / p_.heads * p_.entropies.strides.layer +
                   item % p_.heads * p_.entropies.strides.head),
        threshold_(static_cast<const Real*>(p_.thresholds)[item]),
        margin_(static_cast<Real>(p_.margin)) {}

  const EntropyRegularizationKernels<Real>& kernels;

  EntropyRows<Real> rows(int64_t b) const {
    const Strides &strides = p_.entropies.strides, &largest_strides = p_.max_entropy.strides;
    const Real* entropies = entropies_ + b * strides.batch;
    const auto* largest = static_cast<const Real*>(p_.max_entropy.data) + b * largest_strides.batch;
    const int64_t stride = strides.row, largest_stride = largest_strides.row;
    const bool lie_well = stride == 1 && largest_stride <= 1 && largest_stride >= 0;
    if (lie_well && !p_.row_mask)
      return {entropies, largest, largest_stride == 0, p_.queries, threshold_, margin_};
    for (int64_t i = 0; i < p_.queries; ++i) {
      const bool counted = counts(p_, b, i);
      scratch_[i] = counted ? entropies[i * stride] : 0;
      scratch_[p_.queries + i] = counted ? largest[i * largest_stride] : 0;
    }
    return {scratch_, scratch_ + p_.queries, false, p_.queries, threshold_, margin_};
  }

  Real excess(Real entropy, Real max_entropy) const {
    const Real deviation = entropy - threshold_ * max_entropy;
    return std::abs(deviation) <= margin_ * max_entropy ? 0 : deviation;
  }

 private:
  const EntropyRegularizationParams& p_;
  Real* scratch_;
  const Real* entropies_;
  Real threshold_, margin_;
};

/// Averages over the counted rows of one batch entry and head, and their consequences.
template <class Real>
struct RowMean {
  Real max_entropy = 0;
  Real excess = 0;
  int64_t count;

  RowMean(const EntropyRegularizationParams& p, const Head<Real>& head, int64_t b)
      : count(counted_rows(p, b)) {
    if (count == 0) return;
    const EntropySums<Real> sums = head.kernels.sums(head.rows(b));
    max_entropy = sums.max_entropy / static_cast<Real>(count);
    excess = head.excess(sums.entropy / static_cast<Real>(count), max_entropy);
  }
};

template <class Real>
Real penalty_sum(const EntropyRegularizationParams& p, const Head<Real>& head) {
  return fixed_order_sum<Real>(p.batch, [&](int64_t b) {
    if (p.reduction == EntropyReduction::kPositionSum) return head.kernels.penalty(head.rows(b));
    const RowMean<Real> mean(p, head, b);
    return mean.excess * mean.excess;
  });
}

/// The divisor of the sum over one head's penalties in the loss; 0 where nothing counts.
int64_t divisor(const EntropyRegularizationParams& p) {
  const int64_t heads = p.layers * p.heads;
  return p.reduction == EntropyReduction::kQueryMean ? heads * counted_batch(p) : heads;
}

template <class Real>
void head_gradients(const EntropyRegularizationBackwardParams& p, int64_t item, Real weight,
                    Real* scratch) {
  const Head<Real> head(p, item, scratch);
  const Real threshold_sum = fixed_order_sum<Real>(p.batch, [&](int64_t b) {
    Real* drow = static_cast<Real*>(p.dentropies) +
                 ((item / p.heads * p.batch + b) * p.heads + item % p.heads) * p.queries;
    if (p.reduction == EntropyReduction::kPositionSum)
      return head.kernels.gradients(head.rows(b), 2 * weight, drow);
    const RowMean<Real> mean(p, head, b);
    // 0 times a weight that is inf or NaN would not be 0.
    const Real each =
        mean.excess != 0 ? 2 * weight * mean.excess / static_cast<Real>(mean.count) : 0;
    for (int64_t i = 0; i < p.queries; ++i) drow[i] = counts(p, b, i) ? each : 0;
    return mean.excess * mean.max_entropy;
  });
  static_cast<Real*>(p.dthresholds)[item] = threshold_sum != 0 ? -2 * weight * threshold_sum : 0;
}

int64_t heads_of(const EntropyRegularizationParams& p) { return p.layers * p.heads; }

/// Scratch of all threads, [threads, 2, T].
int64_t scratch_elements(const EntropyRegularizationParams& p, int64_t threads) {
  return 2 * p.queries * threads;
}

}  // namespace

size_t workspace_bytes(const EntropyRegularizationForwardParams& params, int64_t threads) {
  kernels_in_use();  // refuses a bad AERO_CPU_ISA
  return static_cast<size_t>((item_count(params) + scratch_elements(params, threads)) *
                             statistic_bytes(params.data_type));
}
size_t workspace_bytes(const EntropyRegularizationBackwardParams& params, int64_t threads) {
  kernels_in_use();
  return static_cast<size_t>(scratch_elements(params, threads) * statistic_bytes(params.data_type));
}

int64_t item_count(const EntropyRegularizationForwardParams& params) { return heads_of(params); }
int64_t item_count(const EntropyRegularizationBackwardParams& params) { return heads_of(params); }

void run(const EntropyRegularizationForwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread) {
  with_real(params.data_type, [&]<class Real>(Real) {
    auto* sums = static_cast<Real*>(workspace);
    Real* scratch = sums + item_count(params) + scratch_elements(params, thread);
    for (int64_t item = first; item < last; ++item)
      sums[item] = penalty_sum(params, Head<Real>(params, item, scratch));
  });
}

void finish(const EntropyRegularizationForwardParams& params, const void* workspace) {
  with_real(params.data_type, [&]<class Real>(Real) {
    const auto* sums = static_cast<const Real*>(workspace);
    const Real sum =
        fixed_order_sum<Real>(item_count(params), [&](int64_t item) { return sums[item]; });
    const int64_t terms = divisor(params);
    *static_cast<Real*>(params.loss) = terms ? sum / static_cast<Real>(terms) : 0;
  });
}

void run(const EntropyRegularizationBackwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread) {
  with_real(params.data_type, [&]<class Real>(Real) {
    const int64_t terms = divisor(params);
    const Real weight =
        terms ? *static_cast<const Real*>(params.dloss) / static_cast<Real>(terms) : 0;
    Real* scratch = static_cast<Real*>(workspace) + scratch_elements(params, thread);
    for (int64_t item = first; item < last; ++item)
      head_gradients<Real>(params, item, weight, scratch);
  });
}

}  // namespace aero::kernels::cpu
