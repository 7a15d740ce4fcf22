// The passes around the matrix products of scaled_ffn, for one instruction set.
//
// Bytes moved are the least there can be beside a matrix product that cannot add the scaled stream
// itself: the epilogue reads the product and the stream once and writes y once, the gradients read
// dy, G and W once and write dW once.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector_loop.h"

namespace aero::kernels::cpu {
namespace {

template <class Real>
Real scalar(const void* pointer) {
  return *static_cast<const Real*>(pointer);
}

template <class Stream, class Element, class Real>
void epilogue(const ScaledFfnEpilogueParams& p, int64_t first, int64_t last) {
  const auto* x = static_cast<const Stream*>(p.x);
  const auto* linear = static_cast<const Element*>(p.linear);
  auto* y = static_cast<Stream*>(p.y);
  const Real beta = scalar<Real>(p.beta), inverse_alpha = 1 / scalar<Real>(p.alpha);
  for_each_vector<Real>(first, last, [&](int64_t i, auto lanes, int) AERO_LAMBDA_INLINE {
    const Vec<Real> stream = load_lanes(x + i, Real{0}, lanes);
    store_lanes<false>(
        y + i, stream * beta + load_lanes(linear + i, Real{0}, lanes) * inverse_alpha, lanes);
  });
}

inline void any_epilogue(const ScaledFfnEpilogueParams& p, int64_t first, int64_t last) {
  with_element(p.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    if (p.stream_type == p.data_type)
      epilogue<Element, Element, Real>(p, first, last);
    else if constexpr (sizeof(Element) == 2)
      epilogue<float, Element, Real>(p, first, last);
  });
}

template <class Element, class Real>
void column_sums(const ScaledFfnGradientParams& p, int64_t first, int64_t last, Real* sums) {
  const auto row = [&](int64_t i) { return static_cast<const Element*>(p.dy) + i * p.width; };
  for_each_vector<Real>(0, p.width, [&](int64_t c, auto lanes, int) AERO_LAMBDA_INLINE {
    store_lanes<false>(sums + c, Vec<Real>{}, lanes);
  });
  int64_t i = first;
  for (; i + 4 <= last; i += 4) {  // four rows for every trip of the sums through the cache
    for_each_vector<Real>(0, p.width, [&](int64_t c, auto lanes, int) AERO_LAMBDA_INLINE {
      const auto dy = [&](int64_t r)
                          AERO_LAMBDA_INLINE { return load_lanes(row(i + r) + c, Real{0}, lanes); };
      const Vec<Real> sum = load_lanes(sums + c, Real{0}, lanes);
      store_lanes<false>(sums + c, sum + ((dy(0) + dy(1)) + (dy(2) + dy(3))), lanes);
    });
  }
  for (; i < last; ++i)
    for_each_vector<Real>(0, p.width, [&](int64_t c, auto lanes, int) AERO_LAMBDA_INLINE {
      store_lanes<false>(
          sums + c, load_lanes(sums + c, Real{0}, lanes) + load_lanes(row(i) + c, Real{0}, lanes),
          lanes);
    });
}

inline void any_column_sums(const ScaledFfnGradientParams& p, int64_t first, int64_t last,
                            void* sums) {
  with_element(p.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    column_sums<Element, Real>(p, first, last, static_cast<Real*>(sums));
  });
}

template <class Element, class Real>
void weight_row(const ScaledFfnGradientParams& p, int64_t row, Real& product, Real& diagonal) {
  const auto* weight = static_cast<const Element*>(p.weight.data) + row * p.weight.strides.row;
  auto* gradient = static_cast<Element*>(p.dweight) + row * p.width;
  const Real inverse_alpha = 1 / scalar<Real>(p.alpha);
  diagonal = to_real<Real>(gradient[row]);
  Vec<Real> products[kSums] = {};
  for_each_vector<Real>(0, p.width, [&](int64_t j, auto lanes, int sum) AERO_LAMBDA_INLINE {
    const Vec<Real> g = load_lanes(gradient + j, Real{0}, lanes);
    products[sum] += g * load_lanes(weight + j, Real{0}, lanes);
    store_lanes<false>(gradient + j, g * inverse_alpha, lanes);
  });
  product = total<Real>(products);
}

inline void any_weight_rows(const ScaledFfnGradientParams& p, int64_t first, int64_t last,
                            void* products, void* diagonal) {
  with_element(p.data_type, [&]<class Element, class Real>(Types<Element, Real>) {
    for (int64_t i = first; i < last; ++i)
      weight_row<Element, Real>(p, i, static_cast<Real*>(products)[i],
                                static_cast<Real*>(diagonal)[i]);
  });
}

constexpr ScaledFfnKernels scaled_ffn_kernels() noexcept {
  return {any_epilogue, any_column_sums, any_weight_rows};
}

}  // namespace
}  // namespace aero::kernels::cpu
