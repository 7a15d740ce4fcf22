// Problems for temperature_softmax and their solution by the definitions, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/temperature_softmax.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::testing {

struct SoftmaxCase {
  DataType type = DataType::kFloat32;
  int64_t queries = 7, keys = 7;
  bool is_causal = true, has_mask = false, has_temperature = true;
  Order order = Order::kHeadMajor;
  bool has_dprobabilities = true, has_dentropy = true, has_dlogsumexp = true;
  double temperature = 0.7;         ///< of head 0; head 1 has its negative
  bool has_key_major_mask = false;  ///< [B, S, T] in memory
  double to_hidden = 0;             ///< what comes back to keys and rows that are not seen
};

/// Inputs, outputs and gradients of one case; B = H = 2.
struct SoftmaxProblem {
  explicit SoftmaxProblem(const SoftmaxCase& c)
      : test(c),
        scores(c.type, 2, 2, c.queries, c.keys, c.order),
        temperature(statistic_type(c.type), 2, 2, c.queries, 1),
        probabilities(scores),
        entropy(temperature),
        logsumexp(temperature),
        statistics(statistic_type(c.type), 2, 2, 3, c.queries),
        dprobabilities(scores),
        dentropy(temperature),
        dlogsumexp(temperature),
        dscores(scores),
        dtemperature(temperature),
        mask(static_cast<size_t>(2 * c.queries * c.keys), 1) {
    std::mt19937 generator(23);
    for (Tensor* input : {&scores, &dprobabilities, &dentropy, &dlogsumexp})
      input->fill_normal(generator);
    temperature.for_each([&](int64_t b, int64_t h, int64_t i, int64_t) {
      const double magnitude = c.temperature * (1 + 0.1 * static_cast<double>(i % 4));
      temperature.set(b, h, i, 0, h == 0 ? magnitude : -magnitude);
    });
    // Every third row sees nothing.
    for (size_t n = 0; c.has_mask && n < mask.size(); ++n)
      mask[n] = n / static_cast<size_t>(c.keys) % 3 != 1 && generator() % 3 != 0;
    if (c.to_hidden == 0) return;
    scores.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      if (j % 5 == 2) scores.set(b, h, i, j, -std::numeric_limits<double>::infinity());
      if (!visible(b, h, i, j)) dprobabilities.set(b, h, i, j, c.to_hidden);
    });
    for (Tensor* gradient : {&dentropy, &dlogsumexp})
      gradient->for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
        if (is_empty(b, h, i)) gradient->set(b, h, i, d, c.to_hidden);
      });
  }
  Strides mask_strides() const {
    const int64_t rows = test.queries, keys = test.keys;
    return test.has_key_major_mask ? Strides{rows * keys, 0, 1, rows}
                                   : Strides{rows * keys, 0, keys, 1};
  }
  /// A score of -inf is a key that is not seen.
  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Strides s = mask_strides();
    return (!test.is_causal || j <= i + test.keys - test.queries) &&
           mask[static_cast<size_t>(b * s.batch + i * s.row + j * s.column)] &&
           scores.get(b, h, i, j) != -std::numeric_limits<double>::infinity();
  }
  bool is_empty(int64_t b, int64_t h, int64_t i) const {
    for (int64_t j = 0; j < test.keys; ++j)
      if (visible(b, h, i, j)) return false;
    return true;
  }
  double temperature_at(int64_t b, int64_t h, int64_t i) const {
    return test.has_temperature ? temperature.get(b, h, i) : 1;
  }
  void fill_params(TemperatureSoftmaxParams& p) {
    p.data_type = test.type;
    p.batch = p.heads = 2;
    p.queries = test.queries, p.keys = test.keys;
    p.scores = scores;
    p.is_causal = test.is_causal;
    if (test.has_temperature) p.temperature = temperature;
    if (test.has_mask) p.mask = {reinterpret_cast<const bool*>(mask.data()), mask_strides()};
  }
  TemperatureSoftmaxForwardParams forward_params() {
    TemperatureSoftmaxForwardParams p;
    fill_params(p);
    p.probabilities = probabilities;
    p.entropy = entropy.data(), p.logsumexp = logsumexp.data();
    p.statistics = statistics.data();
    return p;
  }
  TemperatureSoftmaxBackwardParams backward_params() {
    TemperatureSoftmaxBackwardParams p;
    fill_params(p);
    p.statistics = statistics.data();
    if (test.has_dprobabilities) p.dprobabilities = dprobabilities;
    if (test.has_dentropy) p.dentropy = dentropy.data();
    if (test.has_dlogsumexp) p.dlogsumexp = dlogsumexp.data();
    p.dscores = dscores;
    p.dtemperature = dtemperature.data();
    return p;
  }

  SoftmaxCase test;
  Tensor scores, temperature, probabilities, entropy, logsumexp, statistics;
  Tensor dprobabilities, dentropy, dlogsumexp, dscores, dtemperature;
  Buffer<uint8_t> mask;  ///< [B, T, S], as mask_strides() has it
};

/// The definitions in double.
struct SoftmaxReference {
  std::vector<double> probabilities, entropy, logsumexp, dscores, dtemperature;

  explicit SoftmaxReference(const SoftmaxProblem& p) {
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < p.test.queries; ++i) row(p, b, h, i);
  }

 private:
  void row(const SoftmaxProblem& p, int64_t b, int64_t h, int64_t i) {
    const double t = p.temperature_at(b, h, i);
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < p.test.keys; ++j)
      if (p.visible(b, h, i, j)) maximum = std::max(maximum, p.scores.get(b, h, i, j) / t);
    for (int64_t j = 0; j < p.test.keys; ++j)
      if (p.visible(b, h, i, j)) sum += std::exp(p.scores.get(b, h, i, j) / t - maximum);
    const double lse = maximum + (sum > 0 ? std::log(sum) : 0);
    std::vector<double> probability(static_cast<size_t>(p.test.keys));
    double row_entropy = 0, expected = 0, dt = 0;
    for (int64_t j = 0; j < p.test.keys; ++j) {
      if (!p.visible(b, h, i, j)) continue;
      const double log_p = p.scores.get(b, h, i, j) / t - lse;
      probability[static_cast<size_t>(j)] = std::exp(log_p);
      row_entropy -= std::exp(log_p) * log_p;
      if (p.test.has_dprobabilities) expected += std::exp(log_p) * p.dprobabilities.get(b, h, i, j);
    }
    const double ge = p.test.has_dentropy ? p.dentropy.get(b, h, i) : 0;
    const double gl = p.test.has_dlogsumexp ? p.dlogsumexp.get(b, h, i) : 0;
    for (int64_t j = 0; j < p.test.keys; ++j) {
      double ds = 0;
      if (p.visible(b, h, i, j)) {
        const double s = p.scores.get(b, h, i, j) / t;
        const double dp = p.test.has_dprobabilities ? p.dprobabilities.get(b, h, i, j) : 0;
        ds = probability[static_cast<size_t>(j)] *
             (dp - expected - ge * (s - lse + row_entropy) + gl);
        dt -= ds * s / t;
      }
      dscores.push_back(ds / t);
    }
    probabilities.insert(probabilities.end(), probability.begin(), probability.end());
    entropy.push_back(row_entropy);
    logsumexp.push_back(lse);
    dtemperature.push_back(dt);
  }
};

}  // namespace aero::kernels::testing
