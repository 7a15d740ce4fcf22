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
  EXPECT_EQ(private_product(Stack{}, 8193), sequential(one, 2) + Cost{.flights = -2});
}

TEST(Product, OfLongVectorsIsTwoOles) {
  const Cost cost = product(Stack{}, 8192);
  EXPECT_EQ(cost.comm_bytes(), 2 * 4 * (kUp + kDown));
  EXPECT_EQ(cost.sent_bytes[kClient], cost.sent_bytes[kServer]);
  EXPECT_EQ(cost.flights, 2);
}

TEST(Product, OfShortVectorsTakesCachedTriples) {
  EXPECT_EQ(product(Stack{}, 8191).flights, 1);
  EXPECT_EQ(product(kMulShare, 16383).flights, 1);
  EXPECT_EQ(product(kMulShare, 16384).flights, 2);
  EXPECT_DOUBLE_EQ(product(Stack{}, 2).comm_bytes(), 2 * (8 * (kUp + kDown) / 8192 + 32));
  EXPECT_EQ(product(Stack{}, 0).comm_bytes(), 0);
}

TEST(Product, WithMulShareSendsTwoUpAndOneDownPerBlock) {
  // Halves of 8192 and 8193 elements: one and two blocks.
  EXPECT_EQ(product(kMulShare, 16385).comm_bytes(), 4 * 3 * (2 * kUp + kDown));
  EXPECT_EQ(product(kMulShare, 16385).elementwise_ciphertexts, 4 * 3 * 1.5);
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
  EXPECT_EQ(cost.flights, 2);
}

}  // namespace
}  // namespace aero::mpc
