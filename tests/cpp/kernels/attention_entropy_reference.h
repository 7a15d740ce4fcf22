// Attention with temperature and entropy in double, one score at a time, from the definitions.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_problem.h"

namespace aero::kernels::testing {

/// What the definitions give in double for the problem's (rounded) inputs.
struct AttentionReference {
  std::vector<double> out, entropy, logsumexp, max_logits;
  std::vector<double> dq, dk, dv, dtemperature, dbias, dslopes, dsinks;

  explicit AttentionReference(const AttentionProblem& p)
      : q_(p.q), k_(p.k), v_(p.v), dout_(p.dout) {
    const AttentionCase& c = p.test;
    const int64_t group = c.key_heads ? c.heads / c.key_heads : 1;
    const auto keys = static_cast<size_t>(c.batch * c.key_heads * c.keys);
    dk.resize(keys * static_cast<size_t>(c.head_dim));
    dv.resize(keys * static_cast<size_t>(c.value_width()));
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t i = 0; i < c.queries; ++i)
          row(p, b, h, i, h / group, (b * c.key_heads + h / group) * c.keys);
  }

 private:
  void row(const AttentionProblem& p, int64_t b, int64_t h, int64_t i, int64_t g,
           int64_t first_key) {
    const AttentionCase& c = p.test;
    const double t = c.temperature == TemperatureKind::kNone ? 1 : p.temperature.get(b, h, i);
    const double *q = q_.row(b, h, i), *dout = dout_.row(b, h, i);
    std::vector<double> score(static_cast<size_t>(c.keys)), probability(score), dp(score);
    std::vector<double> cap_slope(static_cast<size_t>(c.keys), 1.0), kept(cap_slope), ds_row(score);
    const AttentionVariant& variant = c.variant;
    const double sink =
        variant.has_sinks ? p.sinks.get(b, h, 0) / t : -std::numeric_limits<double>::infinity();
    double maximum = sink, sum = 0;
    for (int64_t j = 0; j < c.keys; ++j) {
      if (!p.visible(b, h, i, j)) continue;
      double& s = score[static_cast<size_t>(j)];
      const double* k = k_.row(b, g, j);
      for (int64_t d = 0; d < c.head_dim; ++d) s += q[d] * k[d];
      s *= p.scale();
      if (variant.softcap > 0) {
        const double tangent = std::tanh(s / variant.softcap);
        s = variant.softcap * tangent;
        cap_slope[static_cast<size_t>(j)] = 1 - tangent * tangent;
      }
      if (p.test.variant.has_bias || variant.has_fine_bias) s += p.bias.get(b, h, i, j);
      if (variant.has_slopes) s -= p.slopes.get(b, h, 0) * distance(c, i, j);
      s /= t;
      if (variant.dropout > 0) {
        const auto seed = static_cast<uint64_t>(p.seeds[static_cast<size_t>(b)]);
        kept[static_cast<size_t>(j)] =
            is_kept(seed, h, i, j, variant.dropout) ? 1 / (1 - variant.dropout) : 0;
      }
      maximum = std::max(maximum, s);
    }
    for (int64_t j = 0; j < c.keys; ++j)
      if (p.visible(b, h, i, j)) sum += std::exp(score[static_cast<size_t>(j)] - maximum);
    if (variant.has_sinks) sum += std::exp(sink - maximum);
    const double lse = maximum + (sum > 0 ? std::log(sum) : 0);
    const double sink_p = variant.has_sinks ? std::exp(sink - lse) : 0;
    double h_row = variant.has_sinks ? -sink_p * (sink - lse) : 0;
    for (int64_t j = 0; j < c.keys; ++j) {
      if (!p.visible(b, h, i, j)) continue;
      const double log_p = score[static_cast<size_t>(j)] - lse;
      probability[static_cast<size_t>(j)] = std::exp(log_p);
      h_row -= std::exp(log_p) * log_p;
    }
    // Of several keys, the one that the kernel names if its score is the largest to rounding.
    const int64_t largest = largest_of(p, b, h, i, score);
    max_logits.push_back(largest < 0 ? -std::numeric_limits<double>::infinity()
                                     : score[static_cast<size_t>(largest)]);
    entropy.push_back(h_row);
    logsumexp.push_back(lse);
    std::vector<double> out_row(static_cast<size_t>(c.value_width()));
    for (int64_t j = 0; j < c.keys; ++j) {
      const double* v = v_.row(b, g, j);
      for (int64_t d = 0; d < c.value_width(); ++d)
        out_row[static_cast<size_t>(d)] +=
            probability[static_cast<size_t>(j)] * kept[static_cast<size_t>(j)] * v[d];
    }
    out.insert(out.end(), out_row.begin(), out_row.end());
    // From dP, through the softmax, its entropy and its logsumexp, to the scores and what made
    // them.
    const double ge = c.has_dentropy ? p.dentropy.get(b, h, i) : 0;
    const double gl = c.has_dlogsumexp ? p.dlogsumexp.get(b, h, i) : 0;
    double expected_dp = 0;
    for (int64_t j = 0; j < c.keys; ++j) {
      const auto n = static_cast<size_t>(j);
      const double* v = v_.row(b, g, j);
      for (int64_t d = 0; c.has_dout && d < c.value_width(); ++d) dp[n] += dout[d] * kept[n] * v[d];
      expected_dp += probability[n] * dp[n];
    }
    const double sink_ds =
        variant.has_sinks ? sink_p * (-expected_dp - ge * (sink - lse + h_row) + gl) : 0;
    double dt = variant.has_sinks ? -sink_ds * sink / t : 0, dslope = 0;
    std::vector<double> dq_row(static_cast<size_t>(c.head_dim));
    for (int64_t j = 0; j < c.keys; ++j) {
      const auto n = static_cast<size_t>(j);
      const double gm = variant.has_max_logits && j == largest ? p.dmax_logits.get(b, h, i) : 0;
      if (probability[n] == 0 && gm == 0) continue;
      const double log_p = score[n] - lse;
      const double ds = probability[n] * (dp[n] - expected_dp - ge * (log_p + h_row) + gl) + gm;
      dt -= ds * score[n] / t;
      const double* k = k_.row(b, g, j);
      const double scaled = ds * p.scale() / t * cap_slope[n];
      ds_row[n] = ds / t;
      dslope -= ds / t * distance(c, i, j);
      for (int64_t d = 0; d < c.head_dim; ++d) {
        dq_row[static_cast<size_t>(d)] += scaled * k[d];
        dk[static_cast<size_t>((first_key + j) * c.head_dim + d)] += scaled * q[d];
      }
      for (int64_t d = 0; c.has_dout && d < c.value_width(); ++d)
        dv[static_cast<size_t>((first_key + j) * c.value_width() + d)] +=
            probability[n] * kept[n] * dout[d];
    }
    dtemperature.push_back(dt);
    dslopes.push_back(dslope);
    dsinks.push_back(sink_ds / t);
    dbias.insert(dbias.end(), ds_row.begin(), ds_row.end());
    dq.insert(dq.end(), dq_row.begin(), dq_row.end());
  }

  static int64_t largest_of(const AttentionProblem& p, int64_t b, int64_t h, int64_t i,
                            const std::vector<double>& score) {
    int64_t largest = -1;
    for (int64_t j = 0; j < p.test.keys; ++j)
      if (p.visible(b, h, i, j) &&
          (largest < 0 || score[static_cast<size_t>(j)] > score[static_cast<size_t>(largest)]))
        largest = j;
    const int64_t named = p.largest_key.data()[(b * p.test.heads + h) * p.test.queries + i];
    if (largest < 0 || named < 0 || named >= p.test.keys || !p.visible(b, h, i, named))
      return largest;
    const double gap = score[static_cast<size_t>(largest)] - score[static_cast<size_t>(named)];
    return gap < 1e-4 * (1 + std::abs(score[static_cast<size_t>(largest)])) ? named : largest;
  }

  static double distance(const AttentionCase& c, int64_t i, int64_t j) {
    return static_cast<double>(std::abs(i + c.keys - c.queries - j));
  }

  Decoded q_, k_, v_, dout_;
};

}  // namespace aero::kernels::testing
