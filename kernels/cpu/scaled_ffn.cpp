// Epilogue and parameter gradients of the scaled feed-forward layer: shares them out over items and
// adds up the results of the items.
#include "kernels/scaled_ffn.h"

#include <algorithm>

#include "kernels/cpu/element.h"
#include "kernels/cpu/fixed_order_sum.h"
#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

// Elements of one epilogue item: small enough to share out a short sequence, large enough that
// counting items costs nothing.
constexpr int64_t kEpilogueBlock = 4096;

// Rows of dy, and of the weight, that one item takes: two reads of a weight row cost as much as
// two rows of dy, so all items are alike.
constexpr int64_t kGradientRows = 128;
constexpr int64_t kWeightRows = 64;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

const ScaledFfnKernels& table() { return kernels_in_use().scaled_ffn; }

int64_t gradient_blocks(const ScaledFfnGradientParams& p) {
  return ceil_divide(p.rows, kGradientRows);
}

/// The items' results for finish: [C] of <G_c, W_c>, [C] of G_cc, and per block of rows the
/// column sums of dy, [blocks, C].
template <class Real>
struct Partials {
  Real* products;
  Real* diagonal;
  Real* column_sums;
  Partials(const ScaledFfnGradientParams& p, void* workspace)
      : products(static_cast<Real*>(workspace)),
        diagonal(products + p.width),
        column_sums(diagonal + p.width) {}
};

}  // namespace

size_t workspace_bytes(const ScaledFfnEpilogueParams&, int64_t) {
  table();  // refuses a bad AERO_CPU_ISA
  return 0;
}
size_t workspace_bytes(const ScaledFfnGradientParams& params, int64_t) {
  table();
  return static_cast<size_t>((2 + gradient_blocks(params)) * params.width *
                             statistic_bytes(params.data_type));
}

int64_t item_count(const ScaledFfnEpilogueParams& params) {
  return ceil_divide(params.elements, kEpilogueBlock);
}
int64_t item_count(const ScaledFfnGradientParams& params) {
  return gradient_blocks(params) + ceil_divide(params.width, kWeightRows);
}

void run(const ScaledFfnEpilogueParams& params, void*, int64_t first, int64_t last, int64_t) {
  if (first < last)
    table().epilogue(params, first * kEpilogueBlock,
                     std::min(last * kEpilogueBlock, params.elements));
}

void run(const ScaledFfnGradientParams& params, void* workspace, int64_t first, int64_t last,
         int64_t) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    const Partials<Real> partials(params, workspace);
    for (int64_t item = first; item < last; ++item) {
      if (const int64_t row = item * kGradientRows; row < params.rows) {
        table().column_sums(params, row, std::min(row + kGradientRows, params.rows),
                            partials.column_sums + item * params.width);
      } else {
        const int64_t start = (item - gradient_blocks(params)) * kWeightRows;
        table().weight_rows(params, start, std::min(start + kWeightRows, params.width),
                            partials.products, partials.diagonal);
      }
    }
  });
}

void finish(const ScaledFfnGradientParams& params, const void* workspace) {
  with_element(params.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    const Partials<Real> partials(params, const_cast<void*>(workspace));
    const auto* bias = static_cast<const Element*>(params.bias);
    const Real alpha = *static_cast<const Real*>(params.alpha), inverse_alpha = 1 / alpha;
    const int64_t width = params.width, blocks = gradient_blocks(params);
    const auto sum = [&](const auto& term) { return fixed_order_sum<Real>(width, term); };
    const Real weight_product = sum([&](int64_t c) { return partials.products[c]; });
    const auto column_sum = [&](int64_t c) {
      return fixed_order_sum<Real>(
          blocks, [&](int64_t block) { return partials.column_sums[block * width + c]; });
    };
    for (int64_t c = 0; c < width; ++c)
      static_cast<Element*>(params.dbias)[c] = from_real<Element>(inverse_alpha * column_sum(c));
    const Real bias_product =
        sum([&](int64_t c) { return to_real<Real>(bias[c]) * column_sum(c); });
    *static_cast<Real*>(params.dbeta) = sum([&](int64_t c) { return partials.diagonal[c]; });
    *static_cast<Real*>(params.dalpha) = -(weight_product + bias_product) / (alpha * alpha);
  });
}

}  // namespace aero::kernels::cpu
