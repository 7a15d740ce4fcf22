// What the backward pass of attention knows of each query, one query per lane.
#pragma once

#include "kernels/cpu/attention_tile.h"

namespace aero::kernels::cpu {
namespace {

/// Saved statistics and incoming gradients of the rows of a query tile; zeros beyond its last row.
template <class Element, class Real>
struct RowGradients {
  using Params = AttentionEntropyBackwardParams;

  alignas(64) Real maximum[kQueryTile<Real>] = {};
  alignas(64) Real inverse_sum[kQueryTile<Real>] = {};  ///< 1 / l, 0 for a row that saw no key
  alignas(64) Real offset[kQueryTile<Real>] = {};       ///< w
  alignas(64) Real dentropy[kQueryTile<Real>] = {};
  alignas(64) Real center[kQueryTile<Real>] = {};        ///< D - gL
  alignas(64) Real dtemperature[kQueryTile<Real>] = {};  ///< sum_j dS z so far

  RowGradients(const Params& p, const QueryTile<Real>& q) {
    for (int64_t i = 0; i < q.count; ++i) {
      const int64_t row = q.row(p, i);
      // [B, H, 3, T]
      const Real* saved = static_cast<const Real*>(p.statistics) + row +
                          (kSavedStatistics - 1) * p.queries * (q.batch * p.heads + q.head);
      maximum[i] = saved[0];
      inverse_sum[i] = saved[p.queries] == 0 ? 0 : 1 / saved[p.queries];
      offset[i] = saved[2 * p.queries];
      if (p.dentropy) dentropy[i] = static_cast<const Real*>(p.dentropy)[row];
      if (p.dlogsumexp) center[i] = -static_cast<const Real*>(p.dlogsumexp)[row];
      if (p.dout) center[i] += output_dot(p, q, i);
    }
  }

  /// dt = -(1/t) (sum_j dS z + (logsumexp - entropy) gL)
  void store_dtemperature(const Params& p, const QueryTile<Real>& q) const {
    for (int64_t i = 0; i < q.count; ++i) {
      const int64_t row = q.row(p, i);
      const Real dlogsumexp = p.dlogsumexp ? static_cast<const Real*>(p.dlogsumexp)[row] : 0;
      // logsumexp - entropy; both saved numbers are 0 for a row that saw no key.
      const Real mean_score = static_cast<Real>(kLn2) * maximum[i] - offset[i];
      static_cast<Real*>(p.dtemperature)[row] =
          -(dtemperature[i] + mean_score * dlogsumexp) / q.temperature(p, i);
    }
  }

 private:
  /// dO_i . O_i
  static Real output_dot(const Params& p, const QueryTile<Real>& q, int64_t i) {
    constexpr int lanes = kLanes<Real>;
    const int64_t row = q.first + i;
    const Element* out =
        row_of(static_cast<const Element*>(p.out), p.out_strides, q.batch, q.head, row);
    const Element* dout =
        row_of(static_cast<const Element*>(p.dout), p.dout_strides, q.batch, q.head, row);
    Vec<Real> sum{};
    int64_t d = 0;
    for (; d + lanes <= p.head_dim; d += lanes)
      sum += load_elements(out + d) * load_elements(dout + d);
    if (d < p.head_dim)
      sum += load_some_elements<Real>(out + d, p.head_dim - d) *
             load_some_elements<Real>(dout + d, p.head_dim - d);
    return sum_of_lanes<Real>(sum);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
