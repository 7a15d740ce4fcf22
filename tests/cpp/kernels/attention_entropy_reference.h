// Attention with temperature and entropy in double, one score at a time, from the definitions.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_problem.h"

namespace aero::kernels::testing {

struct AttentionSums {
  std::vector<double> out, dq, dk, dv, dtemperature, dbias, dslopes, dsinks;
};

/// What the definitions give in double for the problem's (rounded) inputs.
struct AttentionReference : AttentionSums {
  std::vector<double> entropy, logsumexp, max_logits;
  /// Sums of the sizes of all that is added up to each of them, much of which may cancel.
  AttentionSums parts;

  explicit AttentionReference(const AttentionProblem& p)
      : q_(p.q), k_(p.k), v_(p.v), dout_(p.dout) {
    const AttentionCase& c = p.test;
    const int64_t group = c.key_heads ? c.heads / c.key_heads : 1;
    const auto keys = static_cast<size_t>(c.batch * c.key_heads * c.keys);
    dk.resize(keys * static_cast<size_t>(c.head_dim));
    dv.resize(keys * static_cast<size_t>(c.value_width()));
    parts.dk = dk, parts.dv = dv;
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
    std::vector<double> dp_part(score), ds_part_row(score);
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
    // Without the largest, whose weight is 1, the sum of the others keeps its digits.
    int64_t tops = variant.has_sinks && sink == maximum;
    if (variant.has_sinks && tops == 0) sum += std::exp(sink - maximum);
    for (int64_t j = 0; j < c.keys; ++j) {
      const double s = score[static_cast<size_t>(j)];
      if (p.visible(b, h, i, j) && (s != maximum || tops++ > 0)) sum += std::exp(s - maximum);
    }
    const double log_sum = std::log1p(sum), lse = maximum + log_sum;
    const auto log_of = [&](double s) { return s - maximum - log_sum; };
    const double sink_p = variant.has_sinks ? std::exp(log_of(sink)) : 0;
    double h_row = variant.has_sinks ? -sink_p * log_of(sink) : 0;
    for (int64_t j = 0; j < c.keys; ++j) {
      if (!p.visible(b, h, i, j)) continue;
      const double log_p = log_of(score[static_cast<size_t>(j)]);
      probability[static_cast<size_t>(j)] = std::exp(log_p);
      h_row -= std::exp(log_p) * log_p;
    }
    // Of several keys, the one that the kernel names if its score is the largest to rounding.
    const int64_t largest = largest_of(p, b, h, i, score);
    max_logits.push_back(largest < 0 ? -std::numeric_limits<double>::infinity()
                                     : score[static_cast<size_t>(largest)]);
    entropy.push_back(h_row);
    logsumexp.push_back(lse);
    std::vector<double> out_row(static_cast<size_t>(c.value_width())), out_part(out_row);
    for (int64_t j = 0; j < c.keys; ++j) {
      const double* v = v_.row(b, g, j);
      for (int64_t d = 0; d < c.value_width(); ++d) {
        const double term =
            probability[static_cast<size_t>(j)] * kept[static_cast<size_t>(j)] * v[d];
        out_row[static_cast<size_t>(d)] += term;
        out_part[static_cast<size_t>(d)] += std::abs(term);
      }
    }
    out.insert(out.end(), out_row.begin(), out_row.end());
    parts.out.insert(parts.out.end(), out_part.begin(), out_part.end());
    // From dP, through the softmax, its entropy and its logsumexp, to the scores and what made
    // them.
    const double ge = c.has_dentropy ? p.dentropy.get(b, h, i) : 0;
    const double gl = c.has_dlogsumexp ? p.dlogsumexp.get(b, h, i) : 0;
    double expected_dp = 0, expected_part = 0;
    for (int64_t j = 0; j < c.keys; ++j) {
      const auto n = static_cast<size_t>(j);
      const double* v = v_.row(b, g, j);
      for (int64_t d = 0; c.has_dout && d < c.value_width(); ++d) {
        dp[n] += dout[d] * kept[n] * v[d];
        dp_part[n] += std::abs(dout[d] * kept[n] * v[d]);
      }
      if (probability[n] == 0) continue;
      expected_dp += probability[n] * dp[n];
      expected_part += probability[n] * dp_part[n];
    }
    const auto part_of = [&](double p, double log_p, double dp_size) {
      return p *
             (dp_size + expected_part + std::abs(ge) * (std::abs(log_p) + h_row) + std::abs(gl));
    };
    const double sink_ds =
        variant.has_sinks ? sink_p * (-expected_dp - ge * (log_of(sink) + h_row) + gl) : 0;
    double dt = variant.has_sinks ? -sink_ds * sink / t : 0, dslope = 0;
    const double sink_part = variant.has_sinks ? part_of(sink_p, log_of(sink), 0) : 0;
    double dt_part = variant.has_sinks ? std::abs(sink_part * sink / t) : 0, dslope_part = 0;

    std::vector<double> dq_row(static_cast<size_t>(c.head_dim)), dq_part(dq_row);
    for (int64_t j = 0; j < c.keys; ++j) {
      const auto n = static_cast<size_t>(j);
      const double gm = variant.has_max_logits && j == largest ? p.dmax_logits.get(b, h, i) : 0;
      if (probability[n] == 0 && gm == 0) continue;
      const double log_p = log_of(score[n]);
      const double ds = probability[n] * (dp[n] - expected_dp - ge * (log_p + h_row) + gl) + gm;
      const double ds_part = part_of(probability[n], log_p, dp_part[n]) + std::abs(gm);
      dt -= ds * score[n] / t;
      dt_part += std::abs(ds_part * score[n] / t);
      const double* k = k_.row(b, g, j);
      const double scaled = ds * p.scale() / t * cap_slope[n];
      const double scaled_part = std::abs(ds_part * p.scale() / t * cap_slope[n]);
      ds_row[n] = ds / t;
      ds_part_row[n] = std::abs(ds_part / t);
      dslope -= ds / t * distance(c, i, j);
      dslope_part += ds_part_row[n] * distance(c, i, j);
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const auto key = static_cast<size_t>((first_key + j) * c.head_dim + d);
        dq_row[static_cast<size_t>(d)] += scaled * k[d];
        dq_part[static_cast<size_t>(d)] += scaled_part * std::abs(k[d]);
        dk[key] += scaled * q[d];
        parts.dk[key] += scaled_part * std::abs(q[d]);
      }
      for (int64_t d = 0; c.has_dout && d < c.value_width(); ++d) {
        const auto value = static_cast<size_t>((first_key + j) * c.value_width() + d);
        dv[value] += probability[n] * kept[n] * dout[d];
        parts.dv[value] += std::abs(probability[n] * kept[n] * dout[d]);
      }
    }
    push(*this, dt, dslope, sink_ds / t, ds_row, dq_row);
    push(parts, dt_part, dslope_part, std::abs(sink_part / t), ds_part_row, dq_part);
  }

  static void push(AttentionSums& to, double dt, double dslope, double dsink,
                   const std::vector<double>& ds_row, const std::vector<double>& dq_row) {
    to.dtemperature.push_back(dt);
    to.dslopes.push_back(dslope);
    to.dsinks.push_back(dsink);
    to.dbias.insert(to.dbias.end(), ds_row.begin(), ds_row.end());
    to.dq.insert(to.dq.end(), dq_row.begin(), dq_row.end());
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
