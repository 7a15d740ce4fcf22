#include "csrc/mpc/protocols/composites.h"

#include <gtest/gtest.h>

#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"

namespace aero::mpc {
namespace {

// Measured between two parties for 128 x 3072: 30.376 MB by rank 0 and 8.356 MB by rank 1 without
// Ferret extensions, of which each sends its own: 80 and 16 OTs per element at 0.0258 bytes.
TEST(Relu, SendsWhatWasMeasuredFromEachParty) {
  const Cost cost = relu(Stack{}, 128 * 3072);
  EXPECT_NEAR(cost.sent_bytes[kClient] / 1e6, 30.376 + 0.836, 0.002);
  EXPECT_NEAR(cost.sent_bytes[kServer] / 1e6, 8.356 + 0.167, 0.002);
  EXPECT_EQ(cost.flights, 23);
}

TEST(Relu, NarrowerComparisonsSendFewerBits) {
  const Stack narrow{.comparison_bits = 40};
  EXPECT_EQ(relu(narrow, 7), comparison(7, 40) + multiplexer(7));
  EXPECT_LT(relu(narrow, 7).comm_bytes(), relu(Stack{}, 7).comm_bytes());
}

TEST(LeakyRelu, IsReluAndOneTruncation) {
  EXPECT_EQ(leaky_relu(Stack{}, 5), relu(Stack{}, 5) + truncation(5));
}

TEST(Exponential, WithoutClipIsATruncationAndItsSquarings) {
  const Stack stack{.exp_squarings = 1, .exp_clip = false};
  EXPECT_EQ(exponential(stack, 9), truncation(9, 1) + square(stack, 9) + truncation(9));
}

TEST(Softmax, OfOneColumnNeedsNoMaximum) {
  Stack bound;
  bound.static_max = true;
  EXPECT_EQ(softmax(Stack{}, {4, 1, 4}), softmax(bound, {4, 1, 4}));
}

TEST(Softmax, WithoutBroadcastTakesOneReciprocalPerElement) {
  const Stack stack{.broadcast_reciprocal = false};
  EXPECT_NEAR(softmax(stack, {8, 16, 128}).ots - softmax(Stack{}, {8, 16, 128}).ots,
              reciprocal(stack, 128).ots - reciprocal(stack, 8).ots, 1e-9);
}

TEST(LayerNorm, WithPrivateGainTakesOneOleInsteadOfAProduct) {
  const Stack shared;
  const Stack hidden{.private_weights = true};
  const double saved =
      layer_norm(shared, 128, 768).comm_bytes() - layer_norm(hidden, 128, 768).comm_bytes();
  EXPECT_NEAR(
      saved,
      product(shared, 128 * 768).comm_bytes() - private_product(shared, 128 * 768).comm_bytes(),
      1e-3);
}

TEST(Embedding, OfAClientRowIsOneProductInOnePiece) {
  const Stack stack{.client_one_hot = true};
  EXPECT_EQ(embedding(stack, {128, 50257, 768}), plaintext_product(stack, {128, 50257, 768}));
}

TEST(Embedding, InStockSpuRunsTokenByToken) {
  const Cost one = embedding(Stack{}, {1, 1000, 64});
  EXPECT_EQ(embedding(Stack{}, {7, 1000, 64}), sequential(one, 7));
  EXPECT_EQ(one.flights, 10 + 2 + 2);  // equality, bit to arithmetic, product
}

TEST(Argmax, TakesFloorLog2PlusPopcountMinusOneSteps) {
  constexpr double kStep = 2 * 19 + 2 * 10 + 2 * 4 + 3 * 2;
  EXPECT_EQ(argmax(Stack{}, 16384).flights, 14 * kStep);
  EXPECT_EQ(argmax(Stack{}, 50257).flights, 20 * kStep);
  EXPECT_EQ(argmax(Stack{}, 1).flights, 0);
}

TEST(Argmax, WithoutTiesIsOneComparisonAndTwoSelectionsPerNode) {
  const Stack any{.argmax_ties = false};
  EXPECT_EQ(argmax(any, 16384).flights, 14 * (19 + 2 * 4));
  const double node = comparison(1).comm_bytes() + 2 * multiplexer(1).comm_bytes();
  EXPECT_NEAR(argmax(any, 1000).comm_bytes(), 1000 * node, 1e-6);
}

// Measured over 8,192 rows: 21.955 to 22.223 MB in four runs, of which one or two extensions of
// 0.26626 MB. The powers u^3 and u^4 are one product of 16,384 elements, which takes whole
// ciphertexts where two of 8,192 would take cached triples.
TEST(ReciprocalSquareRoot, MultipliesTwoPowersAtOnce) {
  const Cost cost = reciprocal_square_root(Stack{.mul_share = true}, 8192);
  EXPECT_NEAR(cost.comm_bytes() / 1e6 - 0.26626 * cost.ots / 10.017e6, 21.955 - 0.266, 0.003);
  EXPECT_EQ(cost.elementwise_ciphertexts, 4 * 8 + 2 * 4 * 1.5);
}

}  // namespace
}  // namespace aero::mpc
