#include "csrc/mpc/protocols/oblivious_transfer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

namespace aero::mpc {
namespace {

constexpr double kFerretBits = 8.0 * 1280 * 13 * 16 / (10485760 - 452000 - 1280 * 13);

// Bits of one element without the Ferret extensions that feed its OTs.
double payload_bits(const Cost& cost) { return 8 * cost.comm_bytes() - cost.ots * kFerretBits; }

// SPU publishes its own statistics (libspu/mpc/cheetah/nonlinear/README.md): 348.377 bits for 32,
// 428.377 for 40 and 690.503 for 64, which are these plus whole extensions of 8.125 bits.
TEST(Comparison, EqualsThePublishedPayloads) {
  EXPECT_NEAR(payload_bits(comparison(1, 32)), 324, 1e-9);
  EXPECT_NEAR(payload_bits(comparison(1, 40)), 404, 1e-9);
  EXPECT_NEAR(payload_bits(comparison(1, 64)), 658, 1e-9);
}

TEST(Comparison, Of64BitsTakes94OtsAnd19Flights) {
  const Cost cost = comparison(1);
  EXPECT_EQ(cost.ots, 94);
  EXPECT_EQ(cost.flights, 19);
  EXPECT_NEAR(cost.comm_bytes(), 84.7, 0.05);
}

// 16 leaves: 32 bits by the sender and 4 by the chooser; 41 bits of ANDs from each side. Both send
// extensions (measured: of 65,536 comparisons now one party, now the other sends 0.266 MB more),
// the server those of the 15 OTs of ANDs in which it is the sender.
TEST(Comparison, EachPartySendsTheExtensionsOfItsOts) {
  const Cost cost = comparison(8);
  EXPECT_NEAR(cost.sent_bytes[kServer], 16 * 4 + 41 + 15 * kFerretBits, 1e-9);
  EXPECT_NEAR(cost.sent_bytes[kClient], 16 * 32 + 41 + 79 * kFerretBits, 1e-9);
}

// A tree over any number of digits joins all of them: one plain AND per level of a power of two,
// correlated pairs elsewhere, so 2 (digits - 1) - levels ANDs on powers of two.
TEST(Comparison, TreeOfPowersOfTwoHasItsClosedForm) {
  for (const int levels : {1, 2, 3, 4}) {
    const int digits = 1 << levels;
    const double plain = levels;
    const double correlated = digits - 1 - levels;
    const Cost cost = comparison(1, 4 * digits);
    EXPECT_EQ(cost.ots, 4 * digits + 2 * plain + 2 * correlated) << digits;
    EXPECT_NEAR(payload_bits(cost), 36 * digits + 4 * plain + 6 * correlated, 1e-9) << digits;
    EXPECT_EQ(cost.flights, 2 + 5 * (levels - 1) + 2) << digits;
  }
}

TEST(Comparison, OfOneDigitNeedsNoAnd) {
  const Cost cost = comparison(1, 3);
  EXPECT_EQ(cost.flights, 2);
  EXPECT_NEAR(payload_bits(cost), 36, 1e-9);
}

TEST(Comparison, BatchOfOneThresholdIsPlain) {
  EXPECT_EQ(batched_comparison(7, 24, 1), comparison(7, 24));
  // Three thresholds share the choices of 6 digits.
  EXPECT_NEAR(payload_bits(batched_comparison(1, 24, 3)),
              3 * payload_bits(comparison(1, 24)) - 2 * 6 * 4, 1e-9);
}

TEST(Equality, EqualsItsClosedForm) {
  EXPECT_NEAR(equality(1, 64).comm_bytes(), 50.0, 0.05);
  EXPECT_NEAR(equality(1, 16).comm_bytes(), 12.1, 0.05);
  EXPECT_NEAR(payload_bits(equality(1, 64)), 20 * 16 + 4 * 15, 1e-9);
  EXPECT_EQ(equality(1, 64).flights, 10);
  EXPECT_EQ(equality(1, 4).flights, 2);  // one digit, no tree
}

// 12 bits of unknown sign: 13 payload bits in a 32-bit ring and 17 in a 64-bit ring (same README).
TEST(Truncation, EqualsThePublishedPayloads) {
  EXPECT_NEAR(payload_bits(truncation(1, 12, 32)), 13, 1e-9);
  EXPECT_NEAR(payload_bits(truncation(1, 12, 64)), 17, 1e-9);
  EXPECT_NEAR(payload_bits(truncation(1)), 25, 1e-9);
  EXPECT_NEAR(truncation(1).comm_bytes(), 3.15, 0.002);
  EXPECT_EQ(truncation(8).sent_bytes[kServer], 1);  // one bit per element by the chooser
}

TEST(Truncation, OfAWholeWordIsAPlainMessage) {
  EXPECT_NEAR(payload_bits(correlated_message(1, 64, 64)), 65, 1e-9);
  EXPECT_EQ(bit_to_arithmetic(5), correlated_message(5, 64, 64));
}

TEST(Multiplexer, IsSymmetric) {
  const Cost cost = multiplexer(8);
  EXPECT_NEAR(cost.sent_bytes[kServer], 65 + kFerretBits, 1e-9);
  EXPECT_EQ(cost.sent_bytes[kClient], cost.sent_bytes[kServer]);
  EXPECT_NEAR(payload_bits(cost), 8 * 130, 1e-9);
  EXPECT_EQ(cost.flights, 4);
}

TEST(PackedBits, EqualTheirPublishedPayloads) {
  EXPECT_NEAR(payload_bits(packed_bits_to_arithmetic(1, 36)), 1828, 1e-9);
  EXPECT_NEAR(payload_bits(packed_bits_to_arithmetic(1, 18)), 1074, 1e-9);
  EXPECT_EQ(packed_bits_to_arithmetic(8, 36).sent_bytes[kServer], 36);
}

TEST(SessionSetup, HasAtMost48Instances) {
  EXPECT_EQ(session_setup(32).comm_bytes(), 32 * 1206600 + 19.75e6);
  EXPECT_EQ(session_setup(4096), session_setup(48));
  EXPECT_EQ(session_setup(1).flights, 0);
}

// Measured: the first OT of an instance costs either party 470,163 bytes, the first 1,377 rank 0
// 266,259 more.
TEST(SessionSetup, HasTheFirstExtensionsFromRankZero) {
  const Cost one = session_setup(1);
  const Cost two = session_setup(2);
  EXPECT_NEAR(two.sent_bytes[kServer] - one.sent_bytes[kServer], 470163, 20);
  EXPECT_NEAR(two.sent_bytes[kClient] - one.sent_bytes[kClient], 470163 + 266259, 20);
}

}  // namespace
}  // namespace aero::mpc
