#include "csrc/fixed_point/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace aero::fixed_point {
namespace {

Ring ring(std::int64_t value) { return static_cast<Ring>(value); }
std::int64_t integer(Ring value) { return static_cast<std::int64_t>(value); }

TEST(FixedPoint, EncodingRoundsTowardsZero) {
  const Arithmetic arithmetic({});
  EXPECT_EQ(integer(arithmetic.encode(1.0)), 262144);
  EXPECT_EQ(integer(arithmetic.encode(1.9 / 262144)), 1);
  EXPECT_EQ(integer(arithmetic.encode(-1.9 / 262144)), -1);
  EXPECT_EQ(arithmetic.decode(arithmetic.encode(-0.375)), -0.375);
}

TEST(FixedPoint, EncodingOfWhatDoesNotFitIsTheBound) {
  const Arithmetic arithmetic({});
  const std::int64_t bound = std::int64_t{1} << 62;
  EXPECT_EQ(integer(arithmetic.encode(1e30)), bound - 1);
  EXPECT_EQ(integer(arithmetic.encode(-std::numeric_limits<double>::infinity())), -bound);
  EXPECT_EQ(integer(arithmetic.encode(std::nan(""))), 0);
}

TEST(FixedPoint, TruncationIsTheFloor) {
  Arithmetic arithmetic({});
  EXPECT_EQ(integer(arithmetic.truncate(ring(-1), 18)), -1);
  EXPECT_EQ(integer(arithmetic.truncate(ring(262143), 18)), 0);
  EXPECT_EQ(integer(arithmetic.truncate(ring(std::numeric_limits<std::int64_t>::min()), 63)), -1);
}

TEST(FixedPoint, NearestRoundsHalfUp) {
  Arithmetic arithmetic({.truncation = Truncation::kNearest});
  EXPECT_EQ(integer(arithmetic.truncate(ring(131072), 18)), 1);
  EXPECT_EQ(integer(arithmetic.truncate(ring(131071), 18)), 0);
  EXPECT_EQ(integer(arithmetic.truncate(ring(-131072), 18)), 0);
  EXPECT_EQ(integer(arithmetic.truncate(ring(-131073), 18)), -1);
  EXPECT_EQ(integer(arithmetic.truncate(ring(-5), 0)), -5);
}

TEST(FixedPoint, SharesTruncateToWithinOneWithTheCarrysProbability) {
  constexpr int kDraws = 40000;
  for (const std::int64_t x : {std::int64_t{0}, std::int64_t{65536 * 7}, std::int64_t{-200000}}) {
    Arithmetic arithmetic({.truncation = Truncation::kShares, .seed = 7});
    const std::int64_t floor = x >> 18;
    double sum = 0;
    for (int i = 0; i < kDraws; ++i) {
      const std::int64_t result = integer(arithmetic.truncate(ring(x), 18));
      ASSERT_GE(result, floor - 1);
      ASSERT_LE(result, floor + 1);
      sum += static_cast<double>(result);
    }
    // Mean x / 2^18 - 1/2: the lost carry costs 1 - (x mod 2^18 + 1) / 2^18, the rounding adds 1/2.
    // One draw deviates by at most 0.71, 40,000 by 0.0036; five times that.
    EXPECT_NEAR(sum / kDraws, static_cast<double>(x) / 262144 - 0.5, 0.018);
  }
}

TEST(FixedPoint, TheSameSeedGivesTheSameBits) {
  Arithmetic first({.truncation = Truncation::kShares, .seed = 3});
  Arithmetic second({.truncation = Truncation::kShares, .seed = 3});
  for (Ring x = 1; x < 1000; ++x)
    ASSERT_EQ(first.product(x * 977, x * 1013), second.product(x * 977, x * 1013));
}

TEST(FixedPoint, OneBitProductErrorIsRareAndSmall) {
  Arithmetic arithmetic({.one_bit_product_error = true, .seed = 1});
  int errors = 0;
  constexpr int kProducts = 1 << 22;
  for (int i = 0; i < kProducts; ++i) {
    const std::int64_t error = integer(arithmetic.raw_product(1000, 1000)) - 1000000;
    ASSERT_LE(std::abs(error), 2);
    errors += error != 0;
  }
  // Expected 2 * 2^22 * 2^-15 = 256, standard deviation 16; twice as often for one of the two
  // products would be 384.
  EXPECT_NEAR(errors, 256, 4 * 16);
}

TEST(FixedPoint, ComparisonOnFewerBitsIsTheComparisonOfTheUpperBits) {
  Arithmetic arithmetic({});
  const Ring bound = arithmetic.encode(-14.0);
  EXPECT_TRUE(arithmetic.less(bound - 1, bound, 64));
  EXPECT_FALSE(arithmetic.less(bound, bound, 64));
  EXPECT_TRUE(arithmetic.less(bound - 1, bound, 50));
  EXPECT_FALSE(arithmetic.less(bound + 16383, bound, 50));

  // Of shares the carry is lost: true up to one 2^(14-18) = 1/16 above the bound, now and then.
  Arithmetic shares({.truncation = Truncation::kShares});
  int below = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(shares.less(bound - 1, bound, 50));
    ASSERT_FALSE(shares.less(bound + 16384, bound, 50));
    below += shares.less(bound + 8192, bound, 50);
  }
  EXPECT_NEAR(below, 500, 5 * 16);
}

TEST(FixedPoint, TheSmallRingWrapsAt32Bits) {
  const Arithmetic wide({});
  Arithmetic narrow = wide.in_ring_32(12);
  EXPECT_EQ(integer(narrow.wrap(ring(std::int64_t{1} << 31))), -(std::int64_t{1} << 31));
  EXPECT_EQ(integer(narrow.product(ring(1 << 12), ring(-5))), -5);
  EXPECT_EQ(integer(narrow.raw_product(ring(1 << 20), ring(1 << 20))), 0);
  EXPECT_EQ(integer(narrow.encode(1e9)), (1 << 30) - 1);
}

TEST(FixedPoint, TheLeadingBitIsMirroredInTheLowBits) {
  EXPECT_EQ(mirrored_leading_bit(0, 8), 0U);
  EXPECT_EQ(mirrored_leading_bit(1, 8), 128U);
  EXPECT_EQ(mirrored_leading_bit(5, 8), 32U);
  EXPECT_EQ(mirrored_leading_bit(255, 8), 1U);
  EXPECT_EQ(mirrored_leading_bit(256, 8), 0U);
}

TEST(FixedPoint, LargestProductsWrapWithoutUndefinedBehaviour) {
  Arithmetic arithmetic({});
  const Ring smallest = ring(std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(arithmetic.product(smallest, smallest), 0U);
  EXPECT_EQ(integer(arithmetic.raw_product(~Ring{0}, ~Ring{0})), 1);
}

}  // namespace
}  // namespace aero::fixed_point
