#include "csrc/mpc/protocols/matmul.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

namespace aero::mpc {
namespace {

constexpr double kUp = 184957;
constexpr double kDown = 254358;

TEST(PlaintextProduct, ClientEncryptsTheSmallerLeftFactor) {
  const Cost cost = plaintext_product(Stack{}, {128, 768, 768});
  EXPECT_EQ(cost.sent_bytes[kClient], 12 * kUp);
  EXPECT_EQ(cost.sent_bytes[kServer], 12 * kDown);
  EXPECT_EQ(cost.ct_pt_products, 12 * 768);
  EXPECT_EQ(cost.rounds, 2);
  // Each block of the other factor is encoded once.
  const MatmulPlan plan = plan_matmul({128, 768, 768});
  ASSERT_LT(plan.num_blocks[0], plan.num_blocks[2]);
  EXPECT_EQ(cost.plaintext_encodings, static_cast<double>(plan.num_blocks[1] * plan.num_blocks[2]));
}

TEST(PlaintextProduct, ClientEncryptsWhereBothFactorsAreAsSmall) {
  EXPECT_EQ(plaintext_product(Stack{}, {1, 1, 1}).sent_bytes[kClient], kUp);
}

TEST(PlaintextProduct, ServerEncryptsTheSmallerRightFactor) {
  const Cost cost = plaintext_product(Stack{}, {768, 64, 2});
  const MatmulPlan plan = plan_matmul({768, 64, 2});
  ASSERT_GT(plan.num_blocks[0], plan.num_blocks[2]);
  EXPECT_EQ(cost.sent_bytes[kServer],
            kUp * static_cast<double>(plan.num_blocks[1] * plan.num_blocks[2]));
}

TEST(Matmul, OfSharesIsTwoProductsAtOnceHalfByEachParty) {
  const Stack stack;
  const Cost one = matmul(stack, {100, 32, 16}, RightFactor::kServerPrivate);
  const Cost both = matmul(stack, {100, 32, 16}, RightFactor::kShared);
  EXPECT_EQ(both.sent_bytes[kClient], one.comm_bytes());
  EXPECT_EQ(both.sent_bytes[kServer], one.comm_bytes());
  EXPECT_EQ(both.ct_pt_products, 2 * one.ct_pt_products);
  EXPECT_EQ(both.rounds, one.rounds);
}

// 50257 x 768 words exceed 256 MiB: two tiles along the inner dimension, 43,635 and 6,622.
TEST(Matmul, TilesRunInSequence) {
  const Cost tiled = matmul(Stack{}, {1, 50257, 768}, RightFactor::kServerPrivate);
  EXPECT_EQ(tiled, plaintext_product(Stack{}, {1, 43635, 768}) +
                       plaintext_product(Stack{}, {1, 6622, 768}));
}

// A share of ABY3 is two words, so its tiles hold half as much: three of them, each of which shares
// its result again. SPU 0.9.5 sent 24 bytes for an element and tile.
TEST(Matmul, TilesHoldSharesOfTwoWordsUnderAby3) {
  const Stack stack{.protocol = Protocol::kAby3};
  EXPECT_EQ(matmul(stack, {128, 50257, 768}, RightFactor::kShared).comm_bytes(),
            3.0 * 24 * 128 * 768);
}

// Up to a factor of eight between the inner and the outer dimensions a tile is cut along both.
TEST(Matmul, TilesAreCutAlongBothDimensionsUpToAFactorOfEight) {
  const Stack stack{.matmul_tile_bytes = std::int64_t{1} << 20};
  EXPECT_EQ(matmul(stack, {256, 4096, 256}, RightFactor::kServerPrivate),
            sequential(plaintext_product(stack, {64, 1024, 64}), 64));
  EXPECT_EQ(matmul(stack, {1024, 256, 1024}, RightFactor::kServerPrivate),
            sequential(plaintext_product(stack, {512, 128, 512}), 8));
}

TEST(Matmul, LargeTilesLeaveTheProductWhole) {
  const Stack stack{.matmul_tile_bytes = std::int64_t{1} << 30};
  EXPECT_EQ(matmul(stack, {1, 50257, 768}, RightFactor::kServerPrivate),
            plaintext_product(Stack{}, {1, 50257, 768}));
}

TEST(Matmul, CutByBytesSendsNothingTwiceAndNeedsNoTile) {
  const Stack cheapest{.cheapest_layouts = true};
  EXPECT_EQ(matmul(cheapest, {1, 50257, 768}, RightFactor::kServerPrivate),
            plaintext_product(cheapest, {1, 50257, 768}));
  EXPECT_EQ(matmul(cheapest, {1, 50257, 768}, RightFactor::kServerPrivate).comm_bytes(),
            plan_matmul({1, 50257, 768}, BlockChoice::kFewestBytes).comm_bytes());
  EXPECT_LT(matmul(cheapest, {1, 50257, 768}, RightFactor::kShared).comm_bytes(),
            matmul(Stack{}, {1, 50257, 768}, RightFactor::kShared).comm_bytes());
}

TEST(Matmul, RefusesFactorsThatCannotBeCounted) {
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_THROW(matmul(Stack{}, {huge, huge, 1}, RightFactor::kShared), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
