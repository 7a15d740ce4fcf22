// Attention with temperature and entropy: plain rows.
#include "kernels/attention_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/element.h"

namespace aero::kernels::cpu {
namespace {

template <class Real>
bool visible(const AttentionEntropyParams& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (p.is_causal && j > i + p.keys - p.queries) return false;
  return !p.mask || p.mask[b * p.mask_strides.batch + h * p.mask_strides.head +
                           i * p.mask_strides.query + j * p.mask_strides.key];
}

template <class Element, class Real>
Real dot(const Element* a, const Element* b, int64_t n) {
  Real sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += to_real<Real>(a[d]) * to_real<Real>(b[d]);
  return sum;
}

int64_t offset(const Strides& s, int64_t b, int64_t h, int64_t i) {
  return b * s.batch + h * s.head + i * s.row;
}

template <class Real>
Real temperature(const AttentionEntropyParams& p, int64_t b, int64_t h, int64_t i) {
  if (!p.temperature) return 1;
  return static_cast<const Real*>(p.temperature)[offset(p.temperature_strides, b, h, i)];
}

template <class Element, class Real>
void forward(const AttentionEntropyForwardParams& p, Real* row, int64_t first, int64_t last) {
  const auto* q = static_cast<const Element*>(p.q);
  const auto* k = static_cast<const Element*>(p.k);
  const auto* v = static_cast<const Element*>(p.v);
  const int64_t group = p.key_heads ? p.heads / p.key_heads : 1;
  for (int64_t item = first; item < last; ++item) {
    const int64_t b = item / p.heads, h = item % p.heads, g = h / group;
    for (int64_t i = 0; i < p.queries; ++i) {
      const Real c = static_cast<Real>(p.scale) / temperature<Real>(p, b, h, i);
      Real m = -std::numeric_limits<Real>::infinity(), l = 0, u = 0;
      for (int64_t d = 0; d < p.head_dim; ++d) row[d] = 0;
      for (int64_t j = 0; j < p.keys; ++j) {
        if (!visible<Real>(p, b, h, i, j)) continue;
        const Real s = c * dot<Element, Real>(q + offset(p.q_strides, b, h, i),
                                              k + offset(p.k_strides, b, g, j), p.head_dim);
        if (s > m) {
          const Real delta = m - s, a = l > 0 ? std::exp(delta) : 0;
          u = l > 0 ? a * (u + delta * l) : 0;
          l *= a;
          for (int64_t d = 0; d < p.head_dim; ++d) row[d] *= a;
          m = s;
        }
        const Real x = s - m, e = std::exp(x);
        l += e;
        u += e * x;
        const Element* vj = v + offset(p.v_strides, b, g, j);
        for (int64_t d = 0; d < p.head_dim; ++d) row[d] += e * to_real<Real>(vj[d]);
      }
      const bool empty = l == 0;
      const Real entropy = empty ? 0 : std::log(l) - u / l;
      const int64_t index = (b * p.heads + h) * p.queries + i;
      static_cast<Real*>(p.entropy)[index] = entropy;
      static_cast<Real*>(p.logsumexp)[index] = m + (empty ? 0 : std::log(l));
      if (p.statistics) {
        auto* s = static_cast<Real*>(p.statistics) + (b * p.heads + h) * 3 * p.queries + i;
        s[0] = empty ? 0 : m;
        s[p.queries] = l;
        s[2 * p.queries] = empty ? 0 : entropy - std::log(l);
      }
      Element* out = static_cast<Element*>(p.out) + offset(p.out_strides, b, h, i);
      for (int64_t d = 0; d < p.head_dim; ++d)
        out[d] = from_real<Element>(empty ? Real(0) : row[d] / l);
    }
  }
}

template <class Element, class Real>
void backward(const AttentionEntropyBackwardParams& p, Real* scratch, int64_t first, int64_t last) {
  const auto* q = static_cast<const Element*>(p.q);
  const auto* k = static_cast<const Element*>(p.k);
  const auto* v = static_cast<const Element*>(p.v);
  const auto* out = static_cast<const Element*>(p.out);
  const auto* dout = static_cast<const Element*>(p.dout);
  const int64_t group = p.key_heads ? p.heads / p.key_heads : 1;
  Real* dk = scratch;
  Real* dv = dk + p.keys * p.head_dim;
  Real* dq = dv + p.keys * p.head_dim;
  for (int64_t item = first; item < last; ++item) {
    const int64_t b = item / p.key_heads, g = item % p.key_heads;
    for (int64_t n = 0; n < 2 * p.keys * p.head_dim; ++n) dk[n] = 0;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t i = 0; i < p.queries; ++i) {
        const int64_t index = (b * p.heads + h) * p.queries + i;
        const auto* s =
            static_cast<const Real*>(p.statistics) + index + 2 * p.queries * (b * p.heads + h);
        const Real m = s[0], l = s[p.queries], w = s[2 * p.queries];
        const Real t = temperature<Real>(p, b, h, i);
        const Real c = static_cast<Real>(p.scale) / t;
        const Real ge = p.dentropy ? static_cast<const Real*>(p.dentropy)[index] : 0;
        const Real gl = p.dlogsumexp ? static_cast<const Real*>(p.dlogsumexp)[index] : 0;
        const Element* qi = q + offset(p.q_strides, b, h, i);
        const Element* doi = dout ? dout + offset(p.dout_strides, b, h, i) : nullptr;
        Real row_dot = 0, dt = 0;
        if (dout)
          row_dot = dot<Element, Real>(doi, out + offset(p.out_strides, b, h, i), p.head_dim);
        for (int64_t d = 0; d < p.head_dim; ++d) dq[d] = 0;
        for (int64_t j = 0; l > 0 && j < p.keys; ++j) {
          if (!visible<Real>(p, b, h, i, j)) continue;
          const Element* kj = k + offset(p.k_strides, b, g, j);
          const Real x = c * dot<Element, Real>(qi, kj, p.head_dim) - m;
          const Real probability = std::exp(x) / l, z = x + w;
          const Real dp =
              dout ? dot<Element, Real>(doi, v + offset(p.v_strides, b, g, j), p.head_dim) : 0;
          const Real ds = probability * (dp - ge * z - (row_dot - gl));
          dt += ds * z;
          for (int64_t d = 0; d < p.head_dim; ++d) {
            dq[d] += c * ds * to_real<Real>(kj[d]);
            dk[j * p.head_dim + d] += c * ds * to_real<Real>(qi[d]);
            if (dout) dv[j * p.head_dim + d] += probability * to_real<Real>(doi[d]);
          }
        }
        if (p.dtemperature)
          static_cast<Real*>(p.dtemperature)[index] = l > 0 ? -(dt + (m - w) * gl) / t : 0;
        if (p.dq)
          for (int64_t d = 0; d < p.head_dim; ++d)
            static_cast<Element*>(p.dq)[offset(p.dq_strides, b, h, i) + d] =
                from_real<Element>(dq[d]);
      }
    }
    for (int64_t j = 0; j < p.keys; ++j)
      for (int64_t d = 0; d < p.head_dim; ++d) {
        if (p.dk)
          static_cast<Element*>(p.dk)[offset(p.dk_strides, b, g, j) + d] =
              from_real<Element>(dk[j * p.head_dim + d]);
        if (p.dv)
          static_cast<Element*>(p.dv)[offset(p.dv_strides, b, g, j) + d] =
              from_real<Element>(dv[j * p.head_dim + d]);
      }
  }
}

size_t thread_bytes(const AttentionEntropyForwardParams& p) {
  return static_cast<size_t>(p.head_dim * 8 + 64);
}
size_t thread_bytes(const AttentionEntropyBackwardParams& p) {
  return static_cast<size_t>((2 * p.keys + 1) * p.head_dim * 8 + 64);
}

}  // namespace

size_t workspace_bytes(const AttentionEntropyForwardParams& params, int64_t threads) {
  return thread_bytes(params) * static_cast<size_t>(threads);
}
size_t workspace_bytes(const AttentionEntropyBackwardParams& params, int64_t threads) {
  return thread_bytes(params) * static_cast<size_t>(threads);
}
int64_t item_count(const AttentionEntropyForwardParams& params) {
  return params.batch * params.heads;
}
int64_t item_count(const AttentionEntropyBackwardParams& params) {
  return params.batch * params.key_heads;
}

void run(const AttentionEntropyForwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  char* mine = static_cast<char*>(workspace) + thread_bytes(params) * static_cast<size_t>(thread);
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    forward<Element, Real>(params, reinterpret_cast<Real*>(mine), first, last);
  });
}
void run(const AttentionEntropyBackwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  char* mine = static_cast<char*>(workspace) + thread_bytes(params) * static_cast<size_t>(thread);
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    backward<Element, Real>(params, reinterpret_cast<Real*>(mine), first, last);
  });
}

}  // namespace aero::kernels::cpu
