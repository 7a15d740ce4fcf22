// Fills a SimdProbe as the including file is compiled.
#pragma once

#include "kernels/cpu/simd_elements.h"
#include "tests/cpp/kernels/simd_probe.h"

namespace aero::kernels::testing {
namespace {

template <class Real>
void exp2_of(const Real* x, Real* y, int64_t count) {
  for (int64_t i = 0; i < count; i += cpu::kLanes<Real>)
    cpu::store(y + i, cpu::exp2(cpu::load(x + i)));
}

void tanh_of(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += 2 * cpu::kLanes<float>) {
    cpu::Vec<float> both[] = {cpu::load(x + i), cpu::load(x + i + cpu::kLanes<float>)};
    cpu::take_hyperbolic_tangent(both);
    cpu::store(y + i, both[0]);
    cpu::store(y + i + cpu::kLanes<float>, both[1]);
  }
}

template <class Element>
void narrow(const float* x, uint16_t* y, int64_t count) {
  for (int64_t i = 0; i < count; i += cpu::kLanes<float>)
    cpu::store_elements(reinterpret_cast<Element*>(y) + i, cpu::load(x + i));
}

template <class Element>
void widen(const uint16_t* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += cpu::kLanes<float>)
    cpu::store(y + i, cpu::load_elements(reinterpret_cast<const Element*>(x) + i));
}

template <class Real>
void transpose_square(Real* square) {
  constexpr int lanes = cpu::kLanes<Real>;
  cpu::Vec<Real> rows[lanes];
  for (int i = 0; i < lanes; ++i) rows[i] = cpu::load(square + i * lanes);
  cpu::transpose<Real>(rows);
  for (int i = 0; i < lanes; ++i) cpu::store(square + i * lanes, rows[i]);
}

constexpr SimdProbe simd_probe() {
  return {cpu::kLanes<float>,
          cpu::kLanes<double>,
          exp2_of<float>,
          exp2_of<double>,
          tanh_of,
          narrow<cpu::BFloat16>,
          narrow<cpu::Float16>,
          widen<cpu::BFloat16>,
          widen<cpu::Float16>,
          transpose_square<float>,
          transpose_square<double>};
}

}  // namespace
}  // namespace aero::kernels::testing
