// Softmax with temperature and entropy: plain rows.
#include "kernels/temperature_softmax.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/element.h"

namespace aero::kernels::cpu {
namespace {

int64_t offset(const Strides& s, int64_t b, int64_t h, int64_t i) {
  return b * s.batch + h * s.head + i * s.row;
}

struct Row {
  int64_t b, h, i;
  Row(const TemperatureSoftmaxParams& p, int64_t index)
      : b(index / p.queries / p.heads), h(index / p.queries % p.heads), i(index % p.queries) {}
  bool visible(const TemperatureSoftmaxParams& p, int64_t j) const {
    if (p.is_causal && j > i + p.keys - p.queries) return false;
    return !p.mask || p.mask[b * p.mask_strides.batch + h * p.mask_strides.head +
                             i * p.mask_strides.query + j * p.mask_strides.key];
  }
  template <class Real>
  Real temperature(const TemperatureSoftmaxParams& p) const {
    if (!p.temperature) return 1;
    return static_cast<const Real*>(p.temperature)[offset(p.temperature_strides, b, h, i)];
  }
};

template <class Element, class Real>
void forward(const TemperatureSoftmaxForwardParams& p, int64_t index) {
  const Row row(p, index);
  const auto* scores =
      static_cast<const Element*>(p.scores) + offset(p.scores_strides, row.b, row.h, row.i);
  auto* out =
      static_cast<Element*>(p.probabilities) + offset(p.probabilities_strides, row.b, row.h, row.i);
  const Real c = 1 / row.temperature<Real>(p);
  Real m = -std::numeric_limits<Real>::infinity(), l = 0, u = 0;
  for (int64_t j = 0; j < p.keys; ++j)
    if (row.visible(p, j)) m = std::max(m, c * to_real<Real>(scores[j]));
  for (int64_t j = 0; j < p.keys; ++j) {
    if (!row.visible(p, j)) continue;
    const Real x = c * to_real<Real>(scores[j]) - m, e = std::exp(x);
    l += e;
    u += e * x;
  }
  for (int64_t j = 0; j < p.keys; ++j)
    out[j] = from_real<Element>(row.visible(p, j) ? std::exp(c * to_real<Real>(scores[j]) - m) / l
                                                  : Real(0));
  const bool empty = l == 0;
  const Real entropy = empty ? 0 : std::log(l) - u / l;
  static_cast<Real*>(p.entropy)[index] = entropy;
  static_cast<Real*>(p.logsumexp)[index] = m + (empty ? 0 : std::log(l));
  if (p.statistics) {
    auto* s = static_cast<Real*>(p.statistics) + index + 2 * p.queries * (index / p.queries);
    s[0] = empty ? 0 : m;
    s[p.queries] = l;
    s[2 * p.queries] = empty ? 0 : entropy - std::log(l);
  }
}

template <class Element, class Real>
void backward(const TemperatureSoftmaxBackwardParams& p, int64_t index) {
  const Row row(p, index);
  const auto* s =
      static_cast<const Real*>(p.statistics) + index + 2 * p.queries * (index / p.queries);
  const Real m = s[0], l = s[p.queries], w = s[2 * p.queries];
  const auto* scores =
      static_cast<const Element*>(p.scores) + offset(p.scores_strides, row.b, row.h, row.i);
  const auto* dout = static_cast<const Element*>(p.dprobabilities);
  if (dout) dout += offset(p.dprobabilities_strides, row.b, row.h, row.i);
  auto* dscores = static_cast<Element*>(p.dscores);
  if (dscores) dscores += offset(p.dscores_strides, row.b, row.h, row.i);
  const Real t = row.temperature<Real>(p), c = 1 / t;
  const Real ge = p.dentropy ? static_cast<const Real*>(p.dentropy)[index] : 0;
  const Real gl = p.dlogsumexp ? static_cast<const Real*>(p.dlogsumexp)[index] : 0;
  Real row_dot = 0, dt = 0;
  for (int64_t j = 0; dout && j < p.keys; ++j)
    if (row.visible(p, j))
      row_dot += std::exp(c * to_real<Real>(scores[j]) - m) / l * to_real<Real>(dout[j]);
  for (int64_t j = 0; j < p.keys; ++j) {
    Real ds = 0;
    if (row.visible(p, j)) {
      const Real x = c * to_real<Real>(scores[j]) - m, z = x + w;
      ds = std::exp(x) / l * ((dout ? to_real<Real>(dout[j]) : 0) - ge * z - (row_dot - gl));
      dt += ds * z;
    }
    if (dscores) dscores[j] = from_real<Element>(c * ds);
  }
  if (p.dtemperature)
    static_cast<Real*>(p.dtemperature)[index] = l > 0 ? -(dt + (m - w) * gl) * c : 0;
}

}  // namespace

size_t workspace_bytes(const TemperatureSoftmaxForwardParams&, int64_t) { return 0; }
size_t workspace_bytes(const TemperatureSoftmaxBackwardParams&, int64_t) { return 0; }
int64_t item_count(const TemperatureSoftmaxForwardParams& params) {
  return params.batch * params.heads * params.queries;
}
int64_t item_count(const TemperatureSoftmaxBackwardParams& params) {
  return params.batch * params.heads * params.queries;
}

void run(const TemperatureSoftmaxForwardParams& params, void*, int64_t first, int64_t last,
         int64_t) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    for (int64_t i = first; i < last; ++i) forward<Element, Real>(params, i);
  });
}
void run(const TemperatureSoftmaxBackwardParams& params, void*, int64_t first, int64_t last,
         int64_t) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    for (int64_t i = first; i < last; ++i) backward<Element, Real>(params, i);
  });
}

}  // namespace aero::kernels::cpu
