#include "csrc/mpc/protocols/oblivious_transfer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

namespace aero::mpc {
namespace {

constexpr double kFerretBits = 8.0 * 1280 * 13 * 16 / (10485760 - 452000 - 1280 * 13);

// So many elements fill up every message, and are those of SPU's statistics.
constexpr std::int64_t kMany = 1 << 18;

// Bits without the Ferret extensions that feed the OTs.
double payload_bits(const Cost& cost) { return 8 * cost.comm_bytes() - cost.ots * kFerretBits; }

// Of one of many elements.
double bits_of_one(const Cost& of_many) {
  return payload_bits(of_many) / static_cast<double>(kMany);
}

// SPU publishes its own statistics (libspu/mpc/cheetah/nonlinear/README.md): 348.377 bits for 32,
// 428.377 for 40 and 690.503 for 64, which are these plus whole extensions of 8.125 bits.
TEST(Comparison, EqualsThePublishedPayloads) {
  EXPECT_NEAR(bits_of_one(comparison(kMany, 32)), 324, 1e-9);
  EXPECT_NEAR(bits_of_one(comparison(kMany, 40)), 404, 1e-9);
  EXPECT_NEAR(bits_of_one(comparison(kMany, 64)), 658, 1e-9);
}

TEST(Comparison, Of64BitsTakes94OtsAnd19Rounds) {
  const Cost cost = comparison(kMany);
  EXPECT_EQ(cost.ots, 94.0 * kMany);
  EXPECT_EQ(cost.rounds, 19);
  EXPECT_NEAR(cost.comm_bytes() / kMany, 84.7, 0.05);
}

// What two parties sent for so many elements.
struct Sent {
  std::int64_t elements;
  double client;
  double server;
};

TEST(Comparison, OfFewElementsFillsUpItsMessages) {
  for (const Sent& sent : {Sent{1, 200, 152},
                           {2, 264, 152},
                           {3, 328, 168},
                           {7, 584, 200},
                           {61, 4232, 824},
                           {100, 6960, 1360},
                           {129, 9048, 1832}}) {
    const Cost cost = comparison(sent.elements);
    const double extensions = static_cast<double>(sent.elements) * kFerretBits / 8;
    EXPECT_NEAR(cost.sent_bytes[kClient] - 79 * extensions, sent.client, 1e-9) << sent.elements;
    EXPECT_NEAR(cost.sent_bytes[kServer] - 15 * extensions, sent.server, 1e-9) << sent.elements;
  }
  EXPECT_EQ(comparison(0).comm_bytes(), 0);
}

TEST(Truncation, OfFewElementsFillsUpItsMessages) {
  for (const Sent& sent : {Sent{1, 8, 16},
                           {3, 8, 16},
                           {7, 16, 16},
                           {9, 32, 16},
                           {61, 184, 16},
                           {100, 304, 16},
                           {129, 392, 32}}) {
    const Cost cost = truncation(sent.elements);
    EXPECT_NEAR(cost.sent_bytes[kClient] - cost.ots * kFerretBits / 8, sent.client, 1e-9);
    EXPECT_EQ(cost.sent_bytes[kServer], sent.server) << sent.elements;
  }
}

// 16 leaves: 32 bits by the sender and 4 by the chooser; 41 bits of ANDs from each side. Both send
// extensions (measured: of 65,536 comparisons now one party, now the other sends 0.266 MB more),
// the server those of the 15 OTs of ANDs in which it is the sender.
TEST(Comparison, EachPartySendsTheExtensionsOfItsOts) {
  const Cost cost = comparison(kMany);
  EXPECT_NEAR(8 * cost.sent_bytes[kServer] / kMany, 16 * 4 + 41 + 15 * kFerretBits, 1e-9);
  EXPECT_NEAR(8 * cost.sent_bytes[kClient] / kMany, 16 * 32 + 41 + 79 * kFerretBits, 1e-9);
}

// A tree over any number of digits joins all of them: one plain AND per level of a power of two,
// correlated pairs elsewhere, so 2 (digits - 1) - levels ANDs on powers of two.
TEST(Comparison, TreeOfPowersOfTwoHasItsClosedForm) {
  for (const int levels : {1, 2, 3, 4}) {
    const int digits = 1 << levels;
    const double plain = levels;
    const double correlated = digits - 1 - levels;
    const Cost cost = comparison(kMany, 4 * digits);
    EXPECT_EQ(cost.ots, (4 * digits + 2 * plain + 2 * correlated) * kMany) << digits;
    EXPECT_NEAR(bits_of_one(cost), 36 * digits + 4 * plain + 6 * correlated, 1e-9) << digits;
    EXPECT_EQ(cost.rounds, 2 + 5 * (levels - 1) + 2) << digits;
  }
}

TEST(Comparison, OfOneDigitNeedsNoAnd) {
  const Cost cost = comparison(kMany, 3);
  EXPECT_EQ(cost.rounds, 2);
  EXPECT_NEAR(bits_of_one(cost), 36, 1e-9);
}

TEST(Comparison, BatchOfOneThresholdIsPlain) {
  EXPECT_EQ(batched_comparison(7, 24, 1), comparison(7, 24));
  // Three thresholds share the choices of 6 digits.
  EXPECT_NEAR(bits_of_one(batched_comparison(kMany, 24, 3)),
              3 * bits_of_one(comparison(kMany, 24)) - 2 * 6 * 4, 1e-9);
}

TEST(Equality, EqualsItsClosedForm) {
  EXPECT_NEAR(equality(kMany, 64).comm_bytes() / kMany, 50.0, 0.05);
  EXPECT_NEAR(equality(kMany, 16).comm_bytes() / kMany, 12.1, 0.05);
  EXPECT_NEAR(bits_of_one(equality(kMany, 64)), 20 * 16 + 4 * 15, 1e-9);
  EXPECT_EQ(equality(1, 64).rounds, 10);
  EXPECT_EQ(equality(1, 4).rounds, 2);  // one digit, no tree
}

// 12 bits of unknown sign: 13 payload bits in a 32-bit ring and 17 in a 64-bit ring (same README).
TEST(Truncation, EqualsThePublishedPayloads) {
  EXPECT_NEAR(bits_of_one(truncation(kMany, 12, 32)), 13, 1e-9);
  EXPECT_NEAR(bits_of_one(truncation(kMany, 12, 64)), 17, 1e-9);
  EXPECT_NEAR(bits_of_one(truncation(kMany)), 25, 1e-9);
  EXPECT_NEAR(truncation(kMany).comm_bytes() / kMany, 3.15, 0.002);
  EXPECT_EQ(truncation(kMany).sent_bytes[kServer],
            kMany / 8);  // one bit per element by the chooser
}

TEST(Truncation, OfAWholeWordIsAPlainMessage) {
  EXPECT_NEAR(bits_of_one(correlated_message(kMany, 64, 64)), 65, 1e-9);
  EXPECT_EQ(bit_to_arithmetic(5), correlated_message(5, 64, 64));
}

TEST(Multiplexer, IsSymmetric) {
  const Cost cost = multiplexer(kMany);
  EXPECT_NEAR(8 * cost.sent_bytes[kServer] / kMany, 65 + kFerretBits, 1e-9);
  EXPECT_EQ(cost.sent_bytes[kClient], cost.sent_bytes[kServer]);
  EXPECT_NEAR(bits_of_one(cost), 130, 1e-9);
  EXPECT_EQ(cost.rounds, 4);
}

TEST(PackedBits, EqualTheirPublishedPayloads) {
  EXPECT_NEAR(bits_of_one(packed_bits_to_arithmetic(kMany, 36)), 1828, 1e-9);
  EXPECT_NEAR(bits_of_one(packed_bits_to_arithmetic(kMany, 18)), 1074, 1e-9);
  EXPECT_EQ(packed_bits_to_arithmetic(128, 36).sent_bytes[kServer], 36 * 16);
}

TEST(SessionSetup, HasAtMost48Instances) {
  EXPECT_EQ(session_setup(32).comm_bytes(), 32 * 1206600 + 19.75e6);
  EXPECT_EQ(session_setup(4096), session_setup(48));
  EXPECT_EQ(session_setup(1).rounds, 0);
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
