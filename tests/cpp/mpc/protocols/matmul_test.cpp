#include "csrc/mpc/protocols/matmul.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>

namespace aero::mpc {
namespace {

constexpr double kUp = 184957;
constexpr double kDown = 254358;

using Block = std::array<std::int64_t, 3>;

TEST(MatmulPlan, FindsTheBlocksOfSpu) {
  EXPECT_EQ(plan_matmul({128, 768, 768}).block, (Block{128, 64, 1}));
  EXPECT_EQ(plan_matmul({128, 64, 128}).block, (Block{128, 64, 1}));
  EXPECT_EQ(plan_matmul({128, 128, 64}).block, (Block{1, 128, 64}));
}

TEST(MatmulPlan, BlocksFitIntoAPolynomialAndCoverTheProduct) {
  for (const MatmulShape& shape : {MatmulShape{1, 1, 1}, MatmulShape{7, 13, 97},
                                   MatmulShape{10007, 3, 2}, MatmulShape{1, 9001, 5}}) {
    const MatmulPlan plan = plan_matmul(shape);
    EXPECT_LE(plan.block[0] * plan.block[1] * plan.block[2], 8192);
    EXPECT_GE(plan.block[0] * plan.num_blocks[0], shape.rows);
    EXPECT_GE(plan.block[1] * plan.num_blocks[1], shape.inner);
    EXPECT_GE(plan.block[2] * plan.num_blocks[2], shape.columns);
    EXPECT_GE(plan.responses, 1);
  }
}

TEST(MatmulPlan, OneByOneIsOneCiphertextEachWay) {
  const MatmulPlan plan = plan_matmul({1, 1, 1});
  EXPECT_EQ(plan.responses, 1);
  EXPECT_EQ(plan.automorphisms, 0);
}

TEST(PlaintextProduct, ClientEncryptsTheSmallerLeftFactor) {
  const Cost cost = plaintext_product({128, 768, 768});
  EXPECT_EQ(cost.sent_bytes[kClient], 12 * kUp);
  EXPECT_EQ(cost.sent_bytes[kServer], 12 * kDown);
  EXPECT_EQ(cost.ct_pt_products, 12 * 768);
  EXPECT_EQ(cost.flights, 2);
}

TEST(PlaintextProduct, ServerEncryptsTheSmallerRightFactor) {
  const Cost cost = plaintext_product({768, 64, 2});
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
  EXPECT_EQ(both.flights, one.flights);
}

// 50257 x 768 words exceed 256 MiB: two tiles along the inner dimension, 43,635 and 6,622.
TEST(Matmul, TilesRunInSequence) {
  const Cost tiled = matmul(Stack{}, {1, 50257, 768}, RightFactor::kServerPrivate);
  EXPECT_EQ(tiled, plaintext_product({1, 43635, 768}) + plaintext_product({1, 6622, 768}));
}

TEST(Matmul, LargeTilesLeaveTheProductWhole) {
  const Stack stack{.matmul_tile_bytes = std::int64_t{1} << 30};
  EXPECT_EQ(matmul(stack, {1, 50257, 768}, RightFactor::kServerPrivate),
            plaintext_product({1, 50257, 768}));
}

TEST(Matmul, RefusesFactorsThatCannotBeCounted) {
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_THROW(matmul(Stack{}, {huge, huge, 1}, RightFactor::kShared), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
