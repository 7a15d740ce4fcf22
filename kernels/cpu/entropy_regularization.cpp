// Entropy penalty: one item per layer and head.
#include "kernels/entropy_regularization.h"

#include <cmath>

#include "kernels/cpu/element.h"
#include "kernels/cpu/fixed_order_sum.h"

namespace aero::kernels::cpu {
namespace {

/// One layer and head: its entropies and the rows' largest entropies.
template <class Real>
struct Head {
  const EntropyRegularizationParams& p;
  int64_t index;  // layer * heads + head
  const Real* entropies;
  const Real* largest;
  Real threshold;
  Real margin;

  Head(const EntropyRegularizationParams& params, int64_t item)
      : p(params),
        index(item),
        entropies(static_cast<const Real*>(p.entropies) +
                  item / p.heads * p.entropies_layer_stride +
                  item % p.heads * p.entropies_strides.head),
        largest(static_cast<const Real*>(p.max_entropy)),
        threshold(static_cast<const Real*>(p.thresholds)[item]),
        margin(static_cast<Real>(p.margin)) {}

  Real entropy(int64_t b, int64_t i) const {
    return entropies[b * p.entropies_strides.batch + i * p.entropies_strides.row];
  }
  Real max_entropy(int64_t b, int64_t i) const {
    return largest[b * p.max_entropy_batch_stride + i * p.max_entropy_row_stride];
  }
  bool counts(int64_t b, int64_t i) const {
    return !p.row_mask || p.row_mask[b * p.row_mask_batch_stride + i * p.row_mask_row_stride];
  }
  /// Deviation from the threshold where it leaves the free band, else 0.
  Real excess(Real entropy, Real max_entropy) const {
    const Real deviation = entropy - threshold * max_entropy;
    return std::abs(deviation) > margin * max_entropy ? deviation : 0;
  }
  Real excess(int64_t b, int64_t i) const {
    return counts(b, i) ? excess(entropy(b, i), max_entropy(b, i)) : 0;
  }
};

int64_t counted_rows(const EntropyRegularizationParams& p, int64_t b) {
  if (!p.row_mask) return p.queries;
  int64_t rows = 0;
  for (int64_t i = 0; i < p.queries; ++i)
    rows += p.row_mask[b * p.row_mask_batch_stride + i * p.row_mask_row_stride];
  return rows;
}

int64_t counted_batch(const EntropyRegularizationParams& p) {
  int64_t used = 0;
  for (int64_t b = 0; b < p.batch; ++b) used += counted_rows(p, b) > 0;
  return used;
}

/// Averages over the counted rows of one batch entry.
template <class Real>
struct RowMean {
  int64_t rows;
  Real entropy = 0;
  Real max_entropy = 0;

  RowMean(const Head<Real>& head, int64_t b) : rows(counted_rows(head.p, b)) {
    if (rows == 0) return;
    const auto mean = [&](const auto& value) {
      const Real sum = fixed_order_sum<Real>(
          head.p.queries, [&](int64_t i) { return head.counts(b, i) ? value(i) : Real(0); });
      return sum / static_cast<Real>(rows);
    };
    entropy = mean([&](int64_t i) { return head.entropy(b, i); });
    max_entropy = mean([&](int64_t i) { return head.max_entropy(b, i); });
  }
};

template <class Real>
Real penalty_sum(const Head<Real>& head) {
  return fixed_order_sum<Real>(head.p.batch, [&](int64_t b) {
    if (head.p.reduction == EntropyReduction::kQueryMean) {
      const RowMean<Real> mean(head, b);
      const Real excess = mean.rows ? head.excess(mean.entropy, mean.max_entropy) : 0;
      return excess * excess;
    }
    return fixed_order_sum<Real>(head.p.queries, [&](int64_t i) {
      const Real excess = head.excess(b, i);
      return excess * excess;
    });
  });
}

/// What the sum over one head's penalties is divided by in the loss; 0 where nothing counts.
int64_t divisor(const EntropyRegularizationParams& p) {
  const int64_t heads = p.layers * p.heads;
  return p.reduction == EntropyReduction::kQueryMean ? heads * counted_batch(p) : heads;
}

template <class Real>
void head_gradients(const EntropyRegularizationBackwardParams& p, int64_t item, Real weight) {
  const Head<Real> head(p, item);
  auto* dentropies = static_cast<Real*>(p.dentropies);
  const auto row = [&](int64_t b) {
    return dentropies + ((item / p.heads * p.batch + b) * p.heads + item % p.heads) * p.queries;
  };
  const Real threshold_sum = fixed_order_sum<Real>(p.batch, [&](int64_t b) {
    Real* drow = row(b);
    if (p.reduction == EntropyReduction::kQueryMean) {
      const RowMean<Real> mean(head, b);
      const Real excess = mean.rows ? head.excess(mean.entropy, mean.max_entropy) : 0;
      const Real each = mean.rows ? 2 * weight * excess / static_cast<Real>(mean.rows) : 0;
      for (int64_t i = 0; i < p.queries; ++i) drow[i] = head.counts(b, i) ? each : 0;
      return excess * mean.max_entropy;
    }
    for (int64_t i = 0; i < p.queries; ++i) drow[i] = 2 * weight * head.excess(b, i);
    return fixed_order_sum<Real>(p.queries, [&](int64_t i) {
      return head.excess(b, i) * (head.counts(b, i) ? head.max_entropy(b, i) : 0);
    });
  });
  static_cast<Real*>(p.dthresholds)[item] = -2 * weight * threshold_sum;
}

template <class Function>
void with_real(DataType data_type, Function&& function) {
  data_type == DataType::kFloat64 ? function(double{}) : function(float{});
}

}  // namespace

size_t workspace_bytes(const EntropyRegularizationForwardParams& params, int64_t) {
  return static_cast<size_t>(item_count(params) * statistic_bytes(params.data_type));
}
size_t workspace_bytes(const EntropyRegularizationBackwardParams&, int64_t) { return 0; }

int64_t item_count(const EntropyRegularizationForwardParams& params) {
  return params.layers * params.heads;
}
int64_t item_count(const EntropyRegularizationBackwardParams& params) {
  return params.layers * params.heads;
}

void run(const EntropyRegularizationForwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t) {
  with_real(params.data_type, [&]<class Real>(Real) {
    for (int64_t item = first; item < last; ++item)
      static_cast<Real*>(workspace)[item] = penalty_sum(Head<Real>(params, item));
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

void run(const EntropyRegularizationBackwardParams& params, void*, int64_t first, int64_t last,
         int64_t) {
  with_real(params.data_type, [&]<class Real>(Real) {
    const int64_t terms = divisor(params);
    const Real weight =
        terms ? *static_cast<const Real*>(params.dloss) / static_cast<Real>(terms) : 0;
    for (int64_t item = first; item < last; ++item) head_gradients<Real>(params, item, weight);
  });
}

}  // namespace aero::kernels::cpu
