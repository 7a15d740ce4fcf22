#include "csrc/mpc/protocols/elementwise_product.h"

#include <gtest/gtest.h>

namespace aero::mpc {
namespace {

constexpr double kUp = 160951;
constexpr double kDown = 125030;
constexpr Stack kMulShare{.mul_share = true};
constexpr Stack kOneBit{.one_bit_product_error = true};

TEST(PrivateProduct, SendsWholeCiphertextsFromTheServer) {
  const Cost one = private_product(Stack{}, 1);
  EXPECT_EQ(one, private_product(Stack{}, 8192));
  EXPECT_EQ(one.sent_bytes[kServer], 4 * kUp);
  EXPECT_EQ(one.sent_bytes[kClient], 4 * kDown);
  EXPECT_EQ(private_product(Stack{}, 8193), sequential(one, 2) + Cost{.rounds = -2});
}

TEST(Product, OfLongVectorsIsTwoOles) {
  const Cost cost = product(Stack{}, 8192);
  EXPECT_EQ(cost.comm_bytes(), 2 * 4 * (kUp + kDown));
  EXPECT_EQ(cost.sent_bytes[kClient], cost.sent_bytes[kServer]);
  EXPECT_EQ(cost.rounds, 2);
}

TEST(Product, OfShortVectorsTakesCachedTriples) {
  EXPECT_EQ(product(Stack{}, 8191).rounds, 1);
  EXPECT_EQ(product(kMulShare, 16383).rounds, 1);
  EXPECT_EQ(product(kMulShare, 16384).rounds, 2);
  EXPECT_DOUBLE_EQ(product(Stack{}, 2).comm_bytes(), 2 * (8 * (kUp + kDown) / 8192 + 32));
  EXPECT_EQ(product(Stack{}, 0).comm_bytes(), 0);
}

// Measured over 41 products of 1000: rank 0, which evaluates the triples, sends 0.888 of half.
TEST(Product, OfTriplesIsEncryptedByTheServer) {
  const Cost cost = product(kMulShare, 1000);
  EXPECT_DOUBLE_EQ(cost.sent_bytes[kClient], 1000 * (8 * kDown / 8192 + 16));
  EXPECT_DOUBLE_EQ(cost.sent_bytes[kServer], 1000 * (8 * kUp / 8192 + 16));
}

TEST(Product, WithMulShareSendsTwoUpAndOneDownPerBlock) {
  // Halves of 8192 and 8193 elements: one and two blocks.
  EXPECT_EQ(product(kMulShare, 16385).comm_bytes(), 4 * 3 * (2 * kUp + kDown));
  EXPECT_EQ(product(kMulShare, 16385).elementwise_ciphertexts, 4 * 3 * 1.5);
}

// Measured on 65,537 elements, whose halves take four blocks and five: rank 0 sends 0.952 of half.
TEST(Product, WithMulShareIsEncryptedByTheServerInItsLongerHalf) {
  const Cost cost = product(kMulShare, 65537);
  EXPECT_EQ(cost.sent_bytes[kClient], 4 * (4 * 2 * kUp + 5 * kDown));
  EXPECT_EQ(cost.sent_bytes[kServer], 4 * (5 * 2 * kUp + 4 * kDown));
}

TEST(Product, TakesFewerPrimesWithAnErrorOrInASmallRing) {
  EXPECT_EQ(product(Stack{}, 8192).elementwise_ciphertexts, 8);
  EXPECT_EQ(product(kOneBit, 8192).elementwise_ciphertexts, 6);
  EXPECT_EQ(product(Stack{}, 8192, Ring::kZ2k32).elementwise_ciphertexts, 6);
  EXPECT_EQ(product(kOneBit, 8192, Ring::kZ2k32).elementwise_ciphertexts, 4);
}

TEST(Square, IsHalvedAboveOneCiphertext) {
  EXPECT_EQ(square(Stack{}, 8192), private_product(Stack{}, 8192));
  const Cost cost = square(Stack{}, 8194);
  EXPECT_EQ(cost.comm_bytes(), 2 * 4 * (kUp + kDown));
  EXPECT_EQ(cost.sent_bytes[kClient], cost.sent_bytes[kServer]);
  EXPECT_EQ(cost.rounds, 2);
}

TEST(Square, IsEncryptedByTheClientInItsLongerHalf) {
  const Cost cost = square(kMulShare, 65537);
  EXPECT_EQ(cost.sent_bytes[kClient], 4 * (5 * kUp + 4 * kDown));
  EXPECT_EQ(cost.sent_bytes[kServer], 4 * (4 * kUp + 5 * kDown));
}

TEST(FilledCiphertexts, CutVectorsAtWholeOnes) {
  const Stack fill{.fill_ciphertexts = true};
  // 12 heads' live scores of 128 x 128: two halves of 49,536 fill 7 ciphertexts each, 12.09 are
  // needed: 12, and 768 elements as triples.
  constexpr std::int64_t kLive = 12 * 128 * 129 / 2;
  EXPECT_EQ(square(Stack{}, kLive).elementwise_ciphertexts, 4 * 14);
  const Cost triples = product(Stack{}, kLive - 12 * 8192);
  EXPECT_EQ(square(fill, kLive).comm_bytes(), 4 * 12 * (kUp + kDown) + triples.comm_bytes());
  EXPECT_EQ(square(fill, kLive).rounds, 2);
  EXPECT_EQ(product(fill, kLive).comm_bytes(), 2 * 4 * 12 * (kUp + kDown) + triples.comm_bytes());
}

TEST(FilledCiphertexts, AreNeverDearerAndChangeNothingAtWholeOnes) {
  for (const Stack& plain : {Stack{}, kMulShare, kOneBit}) {
    Stack fill = plain;
    fill.fill_ciphertexts = true;
    for (const std::int64_t n : {0, 1, 100, 4096, 8191, 8192, 8193, 16384, 16385, 20000, 99072})
      for (const Ring ring : {Ring::kZ2k32, Ring::kZ2k64}) {
        EXPECT_LE(product(fill, n, ring).comm_bytes(), product(plain, n, ring).comm_bytes()) << n;
        EXPECT_LE(square(fill, n, ring).comm_bytes(), square(plain, n, ring).comm_bytes()) << n;
      }
    EXPECT_EQ(product(fill, 4 * 8192), product(plain, 4 * 8192));
    EXPECT_EQ(square(fill, 4 * 8192), square(plain, 4 * 8192));
  }
}

}  // namespace
}  // namespace aero::mpc
