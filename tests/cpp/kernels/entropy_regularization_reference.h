// Problems for entropy_regularization and their loss by the definition, in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/entropy_regularization.h"
#include "tests/cpp/kernels/guarded_memory.h"

namespace aero::kernels::testing {

/// Random entropies with everything the kernel reads, in buffers of exactly the needed size.
template <class Real>
struct EntropyProblem {
  int64_t layers = 2, batch = 3, heads = 2, queries = 5;
  Buffer<Real> entropies, thresholds, max_entropy;
  Buffer<uint8_t> row_mask;
  EntropyRegularizationParams params;

  EntropyProblem(int64_t l, int64_t b, int64_t h, int64_t t, EntropyReduction reduction,
                 bool masked)
      : layers(l),
        batch(b),
        heads(h),
        queries(t),
        entropies(static_cast<size_t>(l * b * h * t)),
        thresholds(static_cast<size_t>(l * h)),
        max_entropy(static_cast<size_t>(b * t)),
        row_mask(static_cast<size_t>(b * t)) {
    std::mt19937 generator(7);
    std::uniform_real_distribution<Real> uniform(0, 2);
    for (Real& x : entropies) x = uniform(generator);
    for (Real& x : thresholds) x = uniform(generator) / 2;
    for (Real& x : max_entropy) x = static_cast<Real>(0.5) + uniform(generator);
    for (int64_t i = 0; i < b * t; ++i)
      row_mask[static_cast<size_t>(i)] = uniform(generator) < static_cast<Real>(1.2);
    for (int64_t i = 0; i < t && b > 1; ++i) row_mask[static_cast<size_t>(i)] = false;
    params.data_type = sizeof(Real) == 8 ? DataType::kFloat64 : DataType::kFloat32;
    params.layers = l;
    params.batch = b;
    params.heads = h;
    params.queries = t;
    params.entropies = {entropies.data(),
                        {.batch = h * t, .head = t, .row = 1, .layer = b * h * t}};
    params.thresholds = thresholds.data();
    params.max_entropy = {max_entropy.data(), {.batch = t, .row = 1}};
    if (masked)
      params.row_mask = {reinterpret_cast<const bool*>(row_mask.data()), {.batch = t, .row = 1}};
    params.reduction = reduction;
  }

  bool counts(int64_t b, int64_t i) const {
    return !params.row_mask || row_mask[static_cast<size_t>(b * queries + i)];
  }
  double entropy_at(int64_t l, int64_t b, int64_t h, int64_t i) const {
    return entropies[static_cast<size_t>(((l * batch + b) * heads + h) * queries + i)];
  }
  double largest_at(int64_t b, int64_t i) const {
    const Strides& s = params.max_entropy.strides;
    return max_entropy[static_cast<size_t>(b * s.batch + i * s.row)];
  }
  /// Deviation from the threshold where it leaves the free band.
  double excess(int64_t l, int64_t h, double entropy, double largest) const {
    const double deviation = entropy - thresholds[static_cast<size_t>(l * heads + h)] * largest;
    return std::abs(deviation) > params.margin * largest ? deviation : 0;
  }
};

/// The definition, one row at a time, and its derivatives for a loss that nothing follows.
struct EntropyReference {
  double loss = 0;
  std::vector<double> dentropies, dthresholds;

  template <class Real>
  explicit EntropyReference(const EntropyProblem<Real>& p)
      : dentropies(p.entropies.size()), dthresholds(p.thresholds.size()) {
    const bool of_means = p.params.reduction == EntropyReduction::kQueryMean;
    std::vector<double> rows(static_cast<size_t>(p.batch));
    int64_t used = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t i = 0; i < p.queries; ++i) rows[static_cast<size_t>(b)] += p.counts(b, i);
      used += rows[static_cast<size_t>(b)] > 0;
    }
    const int64_t terms = p.layers * p.heads * (of_means ? used : 1);
    if (terms == 0) return;
    const double weight = 1 / static_cast<double>(terms);
    for (int64_t l = 0; l < p.layers; ++l)
      for (int64_t h = 0; h < p.heads; ++h)
        for (int64_t b = 0; b < p.batch; ++b)
          of_means ? add_mean(p, l, b, h, weight, rows[static_cast<size_t>(b)])
                   : add_rows(p, l, b, h, weight);
  }

 private:
  template <class Real>
  void add_rows(const EntropyProblem<Real>& p, int64_t l, int64_t b, int64_t h, double weight) {
    for (int64_t i = 0; i < p.queries; ++i) {
      if (!p.counts(b, i)) continue;
      const double largest = p.largest_at(b, i);
      const double excess = p.excess(l, h, p.entropy_at(l, b, h, i), largest);
      loss += weight * excess * excess;
      dentropies[static_cast<size_t>(((l * p.batch + b) * p.heads + h) * p.queries + i)] =
          2 * weight * excess;
      dthresholds[static_cast<size_t>(l * p.heads + h)] -= 2 * weight * excess * largest;
    }
  }
  template <class Real>
  void add_mean(const EntropyProblem<Real>& p, int64_t l, int64_t b, int64_t h, double weight,
                double rows) {
    if (rows == 0) return;
    double entropy = 0, largest = 0;
    for (int64_t i = 0; i < p.queries; ++i) {
      if (!p.counts(b, i)) continue;
      entropy += p.entropy_at(l, b, h, i) / rows;
      largest += p.largest_at(b, i) / rows;
    }
    const double excess = p.excess(l, h, entropy, largest);
    loss += weight * excess * excess;
    dthresholds[static_cast<size_t>(l * p.heads + h)] -= 2 * weight * excess * largest;
    for (int64_t i = 0; i < p.queries; ++i)
      if (p.counts(b, i))
        dentropies[static_cast<size_t>(((l * p.batch + b) * p.heads + h) * p.queries + i)] =
            2 * weight * excess / rows;
  }
};

}  // namespace aero::kernels::testing
