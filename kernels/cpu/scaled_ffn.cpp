// Epilogue and parameter gradients of the scaled feed-forward layer.
#include "kernels/scaled_ffn.h"

#include <algorithm>

#include "kernels/cpu/element.h"
#include "kernels/cpu/fixed_order_sum.h"

namespace aero::kernels::cpu {
namespace {

// Elements of one epilogue item: small enough to share out a short sequence, large enough that
// counting items costs nothing.
constexpr int64_t kEpilogueBlock = 4096;
// Columns of dy that one item adds up: a cache line of the narrowest element.
constexpr int64_t kColumnBlock = 32;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Real>
Real scalar(const void* pointer) {
  return *static_cast<const Real*>(pointer);
}

template <class Element, class Real>
void epilogue(const ScaledFfnEpilogueParams& p, int64_t first, int64_t last) {
  const auto* x = static_cast<const Element*>(p.x);
  auto* y = static_cast<Element*>(p.y);
  const Real beta = scalar<Real>(p.beta), inverse_alpha = 1 / scalar<Real>(p.alpha);
  for (int64_t i = first; i < last; ++i)
    y[i] = from_real<Element>(beta * to_real<Real>(x[i]) + inverse_alpha * to_real<Real>(y[i]));
}

/// What the items leave for finish: [3, C] = <G_c, W_c>, G_cc and the column sums of dy.
template <class Real>
struct Partials {
  Real* weight_products;
  Real* diagonal;
  Real* column_sums;
  Partials(const ScaledFfnGradientParams& p, void* workspace)
      : weight_products(static_cast<Real*>(workspace)),
        diagonal(weight_products + p.width),
        column_sums(diagonal + p.width) {}
};

template <class Element, class Real>
void weight_row(const ScaledFfnGradientParams& p, const Partials<Real>& partials, int64_t row) {
  const auto* weight = static_cast<const Element*>(p.weight) + row * p.weight_row_stride;
  auto* gradient = static_cast<Element*>(p.dweight) + row * p.width;
  const Real inverse_alpha = 1 / scalar<Real>(p.alpha);
  partials.diagonal[row] = to_real<Real>(gradient[row]);
  partials.weight_products[row] = fixed_order_sum<Real>(
      p.width, [&](int64_t j) { return to_real<Real>(gradient[j]) * to_real<Real>(weight[j]); });
  for (int64_t j = 0; j < p.width; ++j)
    gradient[j] = from_real<Element>(inverse_alpha * to_real<Real>(gradient[j]));
}

template <class Element, class Real>
void column_block(const ScaledFfnGradientParams& p, const Partials<Real>& partials, int64_t block) {
  // Two levels, so that the rounding error grows with the square root of the number of rows.
  constexpr int64_t kRows = 64;
  const int64_t first = block * kColumnBlock, columns = std::min(kColumnBlock, p.width - first);
  Real total[kColumnBlock] = {};
  for (int64_t start = 0; start < p.rows; start += kRows) {
    Real part[kColumnBlock] = {};
    for (int64_t i = start; i < std::min(start + kRows, p.rows); ++i) {
      const auto* dy = static_cast<const Element*>(p.dy) + i * p.width + first;
      for (int64_t c = 0; c < columns; ++c) part[c] += to_real<Real>(dy[c]);
    }
    for (int64_t c = 0; c < columns; ++c) total[c] += part[c];
  }
  const Real inverse_alpha = 1 / scalar<Real>(p.alpha);
  for (int64_t c = 0; c < columns; ++c) {
    partials.column_sums[first + c] = total[c];
    static_cast<Element*>(p.dbias)[first + c] = from_real<Element>(inverse_alpha * total[c]);
  }
}

}  // namespace

size_t workspace_bytes(const ScaledFfnEpilogueParams&, int64_t) { return 0; }
size_t workspace_bytes(const ScaledFfnGradientParams& params, int64_t) {
  return static_cast<size_t>(3 * params.width * statistic_bytes(params.data_type));
}

int64_t item_count(const ScaledFfnEpilogueParams& params) {
  return ceil_divide(params.elements, kEpilogueBlock);
}
int64_t item_count(const ScaledFfnGradientParams& params) {
  return params.width + ceil_divide(params.width, kColumnBlock);
}

void run(const ScaledFfnEpilogueParams& params, void*, int64_t first, int64_t last, int64_t) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    epilogue<Element, Real>(params, first * kEpilogueBlock,
                            std::min(last * kEpilogueBlock, params.elements));
  });
}

void run(const ScaledFfnGradientParams& params, void* workspace, int64_t first, int64_t last,
         int64_t) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    const Partials<Real> partials(params, workspace);
    for (int64_t item = first; item < last; ++item) {
      if (item < params.width) {
        weight_row<Element>(params, partials, item);
      } else {
        column_block<Element>(params, partials, item - params.width);
      }
    }
  });
}

void finish(const ScaledFfnGradientParams& params, const void* workspace) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    const Partials<Real> partials(params, const_cast<void*>(workspace));
    const auto* bias = static_cast<const Element*>(params.bias);
    const auto sum = [&](const auto& term) { return fixed_order_sum<Real>(params.width, term); };
    const Real weight_product = sum([&](int64_t c) { return partials.weight_products[c]; });
    const Real bias_product =
        sum([&](int64_t c) { return to_real<Real>(bias[c]) * partials.column_sums[c]; });
    const Real alpha = scalar<Real>(params.alpha);
    *static_cast<Real*>(params.dbeta) = sum([&](int64_t c) { return partials.diagonal[c]; });
    *static_cast<Real*>(params.dalpha) = -(weight_product + bias_product) / (alpha * alpha);
  });
}

}  // namespace aero::kernels::cpu
