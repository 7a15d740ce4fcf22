#include "csrc/fixed_point/approximations.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace aero::fixed_point {
namespace {

Ring power_of_two_squarings(Arithmetic& arithmetic, Ring x, unsigned squarings) {
  Ring result = arithmetic.wrap(arithmetic.truncate(x, squarings) + arithmetic.encode(1.0));
  for (unsigned i = 0; i < squarings; ++i) result = arithmetic.product(result, result);
  return result;
}

}  // namespace

// SPU, fxp_approx.cc, exp_taylor. The clip: SPU's example flax_llama7b.py, hack_softmax, and
// OpenBumbleBee's activation.cc, f_neg_exp_taylor.
Ring exponential(Arithmetic& arithmetic, Ring x, const Exponential& settings) {
  const bool is_clipped =
      settings.clip && arithmetic.less(x, arithmetic.encode(-14.0), settings.clip_bits);
  if (is_clipped) return 0;
  if (!settings.ring_32) return power_of_two_squarings(arithmetic, x, settings.squarings);
  constexpr unsigned kFraction = 12;
  const unsigned dropped = arithmetic.fraction_bits() - kFraction;
  Arithmetic narrow = arithmetic.in_ring_32(kFraction);
  const Ring argument = narrow.wrap(arithmetic.truncate(x, dropped));
  const Ring result = power_of_two_squarings(narrow, argument, settings.squarings);
  arithmetic.adopt(narrow);
  return result << dropped;
}

namespace {

// 1 / |x| as `mantissa` times `factor`, a power of two.
struct Inverse {
  Ring mantissa;
  Ring factor;
  bool is_negative;
};

// SPU, fxp_base.cc, reciprocal_goldschmidt_normalized_approx (Catrina and Saxena, 2010, 3.4), with
// its default of two iterations, three from 30 fraction bits on.
Inverse normalized_inverse(Arithmetic& arithmetic, Ring x) {
  const unsigned f = arithmetic.fraction_bits();
  const bool negative = is_negative(x);
  const Ring magnitude = negative ? Ring{0} - x : x;
  const Ring factor = mirrored_leading_bit(magnitude, 2 * f);

  const Ring one = arithmetic.encode(1.0);
  const Ring c = arithmetic.product(magnitude, factor);
  Ring result = arithmetic.encode(2.9142F) - 2 * c;
  Ring error = one - arithmetic.product(c, result);
  const int iterations = f >= 30 ? 3 : 2;
  for (int i = 0; i < iterations; ++i) {
    result = arithmetic.product(result, error + one);
    if (i + 1 < iterations) error = arithmetic.product(error, error);
  }
  return {result, factor, negative};
}

}  // namespace

// SPU, fxp_base.cc, reciprocal_goldschmidt.
Ring reciprocal(Arithmetic& arithmetic, Ring x) {
  const Inverse inverse = normalized_inverse(arithmetic, x);
  const Ring result = arithmetic.product(inverse.mantissa, inverse.factor);
  return inverse.is_negative ? Ring{0} - result : result;
}

// SPU, fxp_base.cc, div_goldschmidt_general: the dividend comes before the power of two, so that
// the quotient keeps the bits that the reciprocal of a large divisor lacks.
Ring quotient(Arithmetic& arithmetic, Ring dividend, Ring divisor) {
  const Inverse inverse = normalized_inverse(arithmetic, divisor);
  const Ring scaled = arithmetic.product(inverse.mantissa, dividend);
  const Ring result = arithmetic.product(scaled, inverse.factor);
  return inverse.is_negative ? Ring{0} - result : result;
}

// SPU, fxp_approx.cc, f_rsqrt (Lu et al., "Faster Secure Multiparty Computation of Adaptive
// Gradient Descent", 2020): x = u 2^(e+1), and 2^(-(e+1)/2) from the leading bit's position, times
// sqrt(2) for every other position.
Ring reciprocal_square_root(Arithmetic& arithmetic, Ring x) {
  const unsigned f = arithmetic.fraction_bits();
  // z = 2^(e+f), twice the leading bit; from the top bit it falls out of the word.
  const Ring z = x == 0 ? Ring{0} : std::bit_floor(x) << 1U;
  const Ring u = arithmetic.product(x, mirrored_leading_bit(z, 2 * f));

  const Ring u2 = arithmetic.product(u, u);
  const Ring u3 = arithmetic.product(u, u2);
  const Ring u4 = arithmetic.product(u2, u2);
  const Ring sum = u * arithmetic.encode(-15.47994394F) + u2 * arithmetic.encode(38.4714796F) +
                   u3 * arithmetic.encode(-49.86605845F) + u4 * arithmetic.encode(26.02942339F);
  const Ring root = arithmetic.truncate(sum, f) + arithmetic.encode(4.14285016F);

  const unsigned position = z == 0 ? 0 : static_cast<unsigned>(std::countr_zero(z));  // e + f
  const bool is_even = position % 2 == 0;
  const double half_power = std::ldexp(1.0, static_cast<int>(f / 2));
  const double compensation = f % 2 == 0 ? half_power * (is_even ? std::sqrt(2.0) : 1.0)
                                         : half_power * 2.0 * (is_even ? 2.0 : std::sqrt(2.0));
  const Ring half = z == 0 ? Ring{0} : Ring{1} << (position / 2);
  const Ring exponent = mirrored_leading_bit(half, f / 2 * 2);
  return arithmetic.product(root, static_cast<Ring>(compensation) * exponent);
}

// SPU, fxp_approx.cc, tanh_chebyshev: T_1, T_3, ..., T_17 by T_(n+2) = (4 y^2 - 2) T_n - T_(n-2).
Ring hyperbolic_tangent(Arithmetic& arithmetic, Ring x) {
  constexpr std::array kCoefficients{
      1.2514045938932097F,   -0.3655987797163166F,   0.17253141478140663F,
      -0.08943445792774211F, 0.047703017901250824F,  -0.025830290571688078F,
      0.014338801903468182F, -0.008541730970059077F, 0.0061230685785789475F};
  const Ring bound = arithmetic.encode(5.0);
  if (arithmetic.less(x, Ring{0} - bound, 64)) x = Ring{0} - bound;
  if (arithmetic.less(bound, x, 64)) x = bound;
  const Ring y = arithmetic.scaled(x, arithmetic.encode(0.2F));

  const Ring step = 4 * arithmetic.product(y, y) - arithmetic.encode(2.0);
  Ring previous = y;
  Ring current = arithmetic.product(y, step - arithmetic.encode(1.0));
  Ring sum =
      y * arithmetic.encode(kCoefficients[0]) + current * arithmetic.encode(kCoefficients[1]);
  for (std::size_t i = 2; i < kCoefficients.size(); ++i) {
    const Ring next = arithmetic.product(step, current) - previous;
    previous = current;
    current = next;
    sum += current * arithmetic.encode(kCoefficients[i]);
  }
  return arithmetic.truncate(sum, arithmetic.fraction_bits());
}

namespace {

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as `jax.nn.gelu` writes it.
Ring tanh_gelu(Arithmetic& arithmetic, Ring x) {
  const Ring cube = arithmetic.product(arithmetic.product(x, x), x);
  const Ring inner = x + arithmetic.scaled(cube, arithmetic.encode(0.044715F));
  const Ring tanh = hyperbolic_tangent(
      arithmetic, arithmetic.scaled(inner, arithmetic.encode(0.7978845608028654F)));
  const Ring cdf = arithmetic.scaled(tanh + arithmetic.encode(1.0), arithmetic.encode(0.5));
  return arithmetic.product(x, cdf);
}

// OpenBumbleBee, activation.cc, do_f_seg3_gelu: x / 2 + P(|x|) on [-3, 3], 0 below, x above. Its
// comparisons keep 4 of the 12 fraction bits, hence 24 bits in all (examples, 2pc.json).
Ring segment_gelu(Arithmetic& arithmetic, Ring x) {
  constexpr unsigned kFraction = 12;
  constexpr unsigned kComparedBits = 24;
  const unsigned dropped = arithmetic.fraction_bits() - kFraction;
  Arithmetic narrow = arithmetic.in_ring_32(kFraction);
  x = narrow.truncate(narrow.wrap(x), dropped);
  const bool is_below = narrow.less(x, narrow.encode(-3.0), kComparedBits);
  const bool is_negative_side = narrow.less(x, 0, kComparedBits);
  const bool is_above = !narrow.less(x, narrow.encode(3.0), kComparedBits);

  const Ring magnitude = narrow.wrap(is_negative_side ? Ring{0} - x : x);
  const Ring x2 = narrow.product(magnitude, magnitude);
  const Ring x4 = narrow.product(x2, x2);
  const Ring x3 = narrow.product(magnitude, x2);
  const double scale = std::ldexp(1.0, static_cast<int>(kFraction));
  const Ring sum =
      x * narrow.encode(0.5) + narrow.encode(0.001620808531841547F * scale) +
      magnitude * narrow.encode(-0.03798164612714154F) + x2 * narrow.encode(0.5410550166368381F) +
      x3 * narrow.encode(-0.18352506127082727F) + x4 * narrow.encode(0.020848611754127593F);
  const Ring middle = narrow.truncate(narrow.wrap(sum), kFraction);
  arithmetic.adopt(narrow);
  const Ring result = (is_above ? x : Ring{0}) + (is_below != is_above ? Ring{0} : middle);
  return narrow.wrap(result) << dropped;
}

// PUMA (Dong et al., arXiv 2307.12533, section 4.1): a cubic on [-4, -1.95), degree 6 on
// [-1.95, 3], 0 below, x above.
Ring piecewise_gelu(Arithmetic& arithmetic, Ring x) {
  const bool is_below = arithmetic.less(x, arithmetic.encode(-4.0), 64);
  const bool is_left = arithmetic.less(x, arithmetic.encode(-1.95F), 64);
  const bool is_above = arithmetic.less(arithmetic.encode(3.0), x, 64);
  const Ring x2 = arithmetic.product(x, x);
  const Ring x3 = arithmetic.product(x, x2);
  const Ring x4 = arithmetic.product(x2, x2);
  const Ring x6 = arithmetic.product(x3, x3);
  const unsigned f = arithmetic.fraction_bits();
  const auto term = [&](Ring power, float coefficient) {
    return arithmetic.scaled(power, arithmetic.encode(coefficient));
  };
  const Ring left = term(x3, -0.011034134030615728F) + term(x2, -0.11807612951181953F) +
                    term(x, -0.42226581151983866F) + arithmetic.encode(-0.5054031199708174F);
  // x / 2 shares the truncation of the square's term.
  const Ring quadratic = arithmetic.truncate(
      x2 * arithmetic.encode(0.3603292692789629F) + x * arithmetic.encode(0.5), f);
  const Ring right = term(x6, 0.0018067462606141187F) + term(x4, -0.037688200365904236F) +
                     quadratic + arithmetic.encode(0.008526321541038084F);
  if (is_above) return x;
  if (is_below) return 0;
  return is_left ? left : right;
}

}  // namespace

Ring gelu(Arithmetic& arithmetic, Ring x, Gelu kind) {
  switch (kind) {
    case Gelu::kSegment:
      return segment_gelu(arithmetic, x);
    case Gelu::kPiecewise:
      return piecewise_gelu(arithmetic, x);
    case Gelu::kTanh:
      break;
  }
  return tanh_gelu(arithmetic, x);
}

Ring leaky_relu(Arithmetic& arithmetic, Ring x, Ring slope) {
  const Ring scaled = arithmetic.scaled(x, slope);
  return is_negative(x) ? scaled : x;
}

}  // namespace aero::fixed_point
