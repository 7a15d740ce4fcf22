#include "csrc/fixed_point/approximations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace aero::fixed_point {
namespace {

constexpr double kUlp = 1.0 / 262144;

// Largest |approximation - exact| over evenly spaced x that are multiples of one ulp.
double largest_error(double first, double last, const std::function<double(double)>& approximation,
                     const std::function<double(double)>& exact) {
  constexpr int kPoints = 4001;
  double largest = 0;
  for (int i = 0; i < kPoints; ++i) {
    const double x = std::trunc((first + (last - first) * i / (kPoints - 1)) / kUlp) * kUlp;
    largest = std::max(largest, std::abs(approximation(x) - exact(x)));
  }
  return largest;
}

std::function<double(double)> on_doubles(const std::function<Ring(Arithmetic&, Ring)>& function) {
  return [function](double x) {
    Arithmetic arithmetic({});
    return arithmetic.decode(function(arithmetic, arithmetic.encode(x)));
  };
}

double exact_gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }

TEST(Exponential, IsThePowerUpToTheTruncations) {
  for (const int squarings : {1, 5, 8, 12}) {
    const Exponential settings{.squarings = static_cast<unsigned>(squarings)};
    const auto power = [&](double x) {
      return x < -14 ? 0.0 : std::pow(1 + std::ldexp(x, -squarings), std::ldexp(1.0, squarings));
    };
    // The base is off by one ulp and each square by another; an error in the base is multiplied by
    // at most 2^t, one in the i-th square by 2^(t-i): below 2^(t+1) ulp in all, while |base| <= 1.
    const double last = -std::min(14.0, std::ldexp(1.0, squarings + 1));
    EXPECT_LE(largest_error(last, 0, on_doubles([&](Arithmetic& a, Ring x) {
                              return exponential(a, x, settings);
                            }),
                            power),
              std::ldexp(kUlp, squarings + 1))
        << squarings << " squarings";
  }
}

TEST(Exponential, ErrorOfTheFormulaFallsWithTheSquarings) {
  // |(1 + x / n)^n - exp(x)| is largest at x = -2, there 2 exp(-2) / n to first order.
  for (const int squarings : {5, 8}) {
    const Exponential settings{.squarings = static_cast<unsigned>(squarings)};
    const double n = std::ldexp(1.0, squarings);
    EXPECT_NEAR(
        largest_error(
            -14, 0, on_doubles([&](Arithmetic& a, Ring x) { return exponential(a, x, settings); }),
            [](double x) { return std::exp(x); }),
        2 * std::exp(-2.0) / n, 0.15 * 2 * std::exp(-2.0) / n + std::ldexp(kUlp, squarings + 1));
  }
}

TEST(Exponential, IsZeroBelowTheClipAndMeaninglessWithout) {
  Arithmetic arithmetic({});
  const Ring far = arithmetic.encode(-520.0);
  EXPECT_EQ(exponential(arithmetic, far, {}), 0U);
  // (1 - 520 / 256)^256 = 1.03125^256 = 2,642; each square adds at most an ulp to an error that it
  // doubles.
  EXPECT_NEAR(arithmetic.decode(exponential(arithmetic, far, {.clip = false})), 2642, 512 * 0.02);
  EXPECT_EQ(exponential(arithmetic, 0, {}), arithmetic.encode(1.0));
}

TEST(Exponential, IsClippedAtMinusFourteen) {
  // With 26 fraction bits exp(-13.9) is 62 ulp; with 18 it is a quarter of one.
  Arithmetic arithmetic({.fraction_bits = 26});
  EXPECT_NEAR(arithmetic.decode(exponential(arithmetic, arithmetic.encode(-13.9), {})),
              std::pow(1 - 13.9 / 256, 256), 0x1p-24);
  EXPECT_EQ(exponential(arithmetic, arithmetic.encode(-14.1), {}), 0U);
}

TEST(Exponential, ClipOnFewerBitsMovesByLessThanItsResolution) {
  Arithmetic arithmetic({});
  const Exponential exact{};
  const Exponential coarse{.clip_bits = 50};
  const Ring bound = arithmetic.encode(-14.0);
  EXPECT_EQ(exponential(arithmetic, bound - 1, coarse), 0U);
  EXPECT_EQ(exponential(arithmetic, bound, coarse), exponential(arithmetic, bound, exact));
}

TEST(Exponential, TheSmallRingCostsAccuracy) {
  const Exponential settings{.ring_32 = true};
  const double error = largest_error(
      -14, 0, on_doubles([&](Arithmetic& a, Ring x) { return exponential(a, x, settings); }),
      [](double x) { return std::exp(x); });
  // As above with ulps of 2^-12: below 2^9 of them, and well above what Z_2^64 gives.
  EXPECT_LT(error, std::ldexp(1.0, 9 - 12));
  EXPECT_GT(error, 0.01);
}

TEST(Reciprocal, IsRightToTheIterationsAndTheTruncations) {
  // The start 2.9142 - 2 c errs by e = 1 - c w, |e| <= 0.0858, which two iterations square twice:
  // 5.4e-5 relative. Five truncated products add at most 8 ulp of a number below 2, and the last
  // one an ulp of the result.
  for (const double x : {0.01, 0.3, 0.5, 0.7, 1.0, 1.5, 3.0, 77.0, 128.0, 5000.0, -0.8, -40.0}) {
    Arithmetic arithmetic({});
    const Ring encoded = arithmetic.encode(x);
    const double exact = 1 / arithmetic.decode(encoded);
    const double error = arithmetic.decode(reciprocal(arithmetic, encoded)) - exact;
    EXPECT_LE(std::abs(error), (5.5e-5 + 16 * kUlp) * std::abs(exact) + kUlp) << x;
  }
  Arithmetic arithmetic({});
  EXPECT_EQ(reciprocal(arithmetic, 0), 0U);
}

TEST(Reciprocal, AQuotientKeepsTheBitsOfLargeDivisors) {
  Arithmetic arithmetic({});
  const Ring one = arithmetic.encode(1.0);
  const Ring large = arithmetic.encode(50000.0);
  const double exact = 20000.0 / 50000.0;
  const Ring dividend = arithmetic.encode(20000.0);
  const double direct = arithmetic.decode(quotient(arithmetic, dividend, large));
  const double by_reciprocal =
      arithmetic.decode(arithmetic.product(dividend, reciprocal(arithmetic, large)));
  EXPECT_NEAR(direct, exact, 1e-4);
  EXPECT_GT(std::abs(by_reciprocal - exact), 10 * std::abs(direct - exact));
  EXPECT_EQ(quotient(arithmetic, one, Ring{0} - large), Ring{0} - quotient(arithmetic, one, large));
}

TEST(ReciprocalSquareRoot, IsRightToThePolynomialAndTheCompensation) {
  // The polynomial is within 2e-4 of 1 / sqrt(u) on [1/4, 1/2), relative to at least 1.41, and
  // floor(2^9 sqrt 2) is 1.1e-4 low. The five truncations of numbers times at most 50 add 200 ulp.
  for (const double x : {0.004, 0.1, 0.25, 0.5, 0.99, 1.0, 2.0, 3.3, 100.0, 4000.0}) {
    Arithmetic arithmetic({});
    const Ring encoded = arithmetic.encode(x);
    const double exact = 1 / std::sqrt(arithmetic.decode(encoded));
    const double error = arithmetic.decode(reciprocal_square_root(arithmetic, encoded)) - exact;
    EXPECT_LE(std::abs(error), (2e-4 + 1.1e-4 + 200 * kUlp) * exact + kUlp) << x;
  }
  Arithmetic arithmetic({});
  EXPECT_EQ(reciprocal_square_root(arithmetic, 0), 0U);
  EXPECT_EQ(reciprocal_square_root(arithmetic, ~Ring{0}), 0U);
}

TEST(ReciprocalSquareRoot, WorksWithAnOddNumberOfFractionBits) {
  for (const double x : {0.3, 1.0, 2.0, 7.0, 100.0}) {
    Arithmetic arithmetic({.fraction_bits = 19});
    EXPECT_NEAR(arithmetic.decode(reciprocal_square_root(arithmetic, arithmetic.encode(x))),
                1 / std::sqrt(x), 1e-3 / std::sqrt(x))
        << x;
  }
}

TEST(HyperbolicTangent, IsWithinTheSeriesError) {
  const auto tanh = on_doubles(hyperbolic_tangent);
  EXPECT_LT(largest_error(-5, 5, tanh, [](double x) { return std::tanh(x); }), 0.005);
  EXPECT_EQ(tanh(5.0), tanh(1000.0));
  EXPECT_EQ(tanh(-5.0), tanh(-1000.0));
}

TEST(Gelu, EveryKindIsWithinTheErrorOfItsFit) {
  const auto error = [](Gelu kind) {
    return largest_error(
        -8, 8, on_doubles([kind](Arithmetic& a, Ring x) { return gelu(a, x, kind); }), exact_gelu);
  };
  // Both polynomials are fits to the exact GELU: PUMA's degree 6 is 0.020 too large at its end, 3,
  // and within 0.009 below 2.9; the coefficient of x^6 loses 0.002 there to 18 bits.
  EXPECT_LT(error(Gelu::kPiecewise), 0.0201);
  EXPECT_LT(error(Gelu::kSegment), 0.009);
  // x times half the error of tanh, which is 0.0027 at the clamp.
  EXPECT_LT(error(Gelu::kTanh), 0.5 * 8 * 0.0027 + 0.001);
}

TEST(Gelu, IsTheInputOrZeroFarOutForThePiecewiseKinds) {
  Arithmetic arithmetic({});
  for (const Gelu kind : {Gelu::kSegment, Gelu::kPiecewise}) {
    EXPECT_EQ(gelu(arithmetic, arithmetic.encode(50.0), kind), arithmetic.encode(50.0));
    EXPECT_EQ(gelu(arithmetic, arithmetic.encode(-50.0), kind), 0U);
  }
}

TEST(LeakyRelu, ScalesNegativeNumbersOnly) {
  Arithmetic arithmetic({});
  const Ring slope = arithmetic.encode(0.25);
  EXPECT_EQ(leaky_relu(arithmetic, arithmetic.encode(3.0), slope), arithmetic.encode(3.0));
  EXPECT_EQ(leaky_relu(arithmetic, arithmetic.encode(-3.0), slope), arithmetic.encode(-0.75));
}

}  // namespace
}  // namespace aero::fixed_point
