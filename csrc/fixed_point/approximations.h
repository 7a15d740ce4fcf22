// The functions of a transformer as SPU approximates them, element by element.
#pragma once

#include <cstdint>

#include "csrc/fixed_point/arithmetic.h"

namespace aero::fixed_point {

struct Exponential {
  unsigned squarings = 8;   // t
  bool clip = true;         // 0 below -14
  unsigned clip_bits = 64;  // width of that comparison
  bool ring_32 = false;     // squarings in Z_2^32 with 12 fraction bits
};

// exp(x) for x <= 0 as (1 + x / 2^t)^(2^t): a shift by t, then t truncated squares. Its relative
// error is about -x^2 / 2^(t+1). Below -2^(t+1) the base is under -1 and the result, without a
// clip, meaningless.
Ring exponential(Arithmetic& arithmetic, Ring x, const Exponential& settings);

// 1 / x by two Goldschmidt iterations from 2.9142 - 2 c, c = |x| scaled into [1/2, 1). Needs
// |x| < 2^f; 0 gives 0.
Ring reciprocal(Arithmetic& arithmetic, Ring x);

// dividend / divisor by the same iterations.
Ring quotient(Arithmetic& arithmetic, Ring dividend, Ring divisor);

// 1 / sqrt(x) by a polynomial of degree 4 in u = x scaled into [1/4, 1/2). Needs 0 < x < 2^(f-1);
// outside it is 0.
Ring reciprocal_square_root(Arithmetic& arithmetic, Ring x);

// tanh(x) as the odd Chebyshev series of degree 17 on [-5, 5], x clamped to it.
Ring hyperbolic_tangent(Arithmetic& arithmetic, Ring x);

// tanh: the tanh form with the series above. segment: OpenBumbleBee's degree-4 polynomial of |x| on
// [-3, 3] in Z_2^32 with 12 fraction bits. piecewise: PUMA's polynomials of degree 3 and 6 in
// Z_2^64.
enum class Gelu : std::uint8_t { kTanh, kSegment, kPiecewise };

Ring gelu(Arithmetic& arithmetic, Ring x, Gelu kind);

// x where x >= 0, else slope x.
Ring leaky_relu(Arithmetic& arithmetic, Ring x, Ring slope);

}  // namespace aero::fixed_point
