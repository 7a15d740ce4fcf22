// The vector functions of kernels/cpu/simd.h as one instruction set computes them, callable from
// tests that are compiled for the plain machine.
#pragma once

#include <cstdint>

namespace aero::kernels::testing {

struct SimdProbe {
  int float_lanes, double_lanes;
  /// `count` is a multiple of the lanes.
  void (*exp2_float)(const float* x, float* y, int64_t count);
  void (*exp2_double)(const double* x, double* y, int64_t count);
  void (*tanh_float)(const float* x, float* y, int64_t count);
  void (*to_bfloat16)(const float* x, uint16_t* y, int64_t count);
  void (*to_float16)(const float* x, uint16_t* y, int64_t count);
  void (*from_bfloat16)(const uint16_t* x, float* y, int64_t count);
  void (*from_float16)(const uint16_t* x, float* y, int64_t count);
  /// A square of [lanes, lanes], in place.
  void (*transpose_float)(float* square);
  void (*transpose_double)(double* square);
};

extern const SimdProbe kSimdScalar, kSimdAvx2, kSimdAvx512, kSimdAvx512Bf16, kSimdNeon,
    kSimdNeonBf16;

}  // namespace aero::kernels::testing
