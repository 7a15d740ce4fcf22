#include "csrc/mpc/protocols/matmul_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>

namespace aero::mpc {
namespace {

using Block = std::array<std::int64_t, 3>;

// Half a ciphertext, and of the other half what holds a result.
double unpacked_bytes(std::int64_t results) {
  return kDownBytes / 2 + std::min(kDownBytes / 2, kResultBytes * static_cast<double>(results));
}

double fewest_bytes(const MatmulShape& shape) {
  return plan_matmul(shape, BlockChoice::kFewestBytes).comm_bytes();
}

TEST(MatmulPlan, FindsTheBlocksOfSpu) {
  EXPECT_EQ(plan_matmul({128, 768, 768}).block, (Block{128, 64, 1}));
  EXPECT_EQ(plan_matmul({128, 64, 128}).block, (Block{128, 64, 1}));
  EXPECT_EQ(plan_matmul({128, 128, 64}).block, (Block{1, 128, 64}));
  // The work of packing its responses decides this one: else {5, 32, 51}.
  EXPECT_EQ(plan_matmul({134, 32, 88}).block, (Block{5, 16, 88}));
}

// matmat_prot.cc's search as it stands there: every number of rows, the last of equal weights.
Block block_of_every_search(const MatmulShape& shape, bool packs) {
  const auto blocks = [](std::int64_t size, std::int64_t block) {
    return std::ceil(static_cast<double>(size) / static_cast<double>(block));
  };
  const auto outputs = static_cast<double>(shape.rows * shape.columns);
  Block best{};
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t d0 = 1; d0 <= std::min<std::int64_t>(8192, shape.rows); ++d0)
    for (std::int64_t d1 = 1; d1 <= std::min(shape.inner, 8192 / d0); d1 += packs ? d1 : 1) {
      const std::int64_t d2 = std::min(shape.columns, 8192 / d0 / d1);
      const double b0 = blocks(shape.rows, d0), b1 = blocks(shape.inner, d1),
                   b2 = blocks(shape.columns, d2), packed = std::ceil(outputs / 8192);
      const double weight =
          1000 * (std::min(b0, b2) * b1 + std::ceil(b0 * b2 / static_cast<double>(d1))) +
          (packs ? packed * static_cast<double>(d1) : 0) + b0 * b1 * b2 / 10;
      if (weight <= least) least = weight, best = {d0, d1, d2};
    }
  return best;
}

TEST(MatmulPlan, HasTheBlocksOfASearchThroughEveryNumberOfRows) {
  std::mt19937 random(0);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t most = std::int64_t{1} << (1 + random() % 14);
    const MatmulShape shape{1 + static_cast<std::int64_t>(random()) % most,
                            1 + static_cast<std::int64_t>(random()) % 800,
                            1 + static_cast<std::int64_t>(random()) % 3000};
    const Block block = plan_matmul(shape).block;
    EXPECT_TRUE(block == block_of_every_search(shape, true) ||
                block == block_of_every_search(shape, false))
        << shape.rows << " " << shape.inner << " " << shape.columns;
  }
}

TEST(MatmulPlan, BlocksFitIntoAPolynomialAndCoverTheProduct) {
  for (const MatmulShape& shape : {MatmulShape{1, 1, 1}, MatmulShape{7, 13, 97},
                                   MatmulShape{10007, 3, 2}, MatmulShape{1, 9001, 5}}) {
    for (const BlockChoice choice : {BlockChoice::kSpu, BlockChoice::kFewestBytes}) {
      const MatmulPlan plan = plan_matmul(shape, choice);
      EXPECT_LE(plan.block[0] * plan.block[1] * plan.block[2], 8192);
      EXPECT_GE(plan.block[0] * plan.num_blocks[0], shape.rows);
      EXPECT_GE(plan.block[1] * plan.num_blocks[1], shape.inner);
      EXPECT_GE(plan.block[2] * plan.num_blocks[2], shape.columns);
      EXPECT_GE(plan.responses, 1);
    }
  }
}

TEST(MatmulPlan, OneByOneIsOneCiphertextEachWay) {
  const MatmulPlan plan = plan_matmul({1, 1, 1});
  EXPECT_EQ(plan.responses, 1);
  EXPECT_EQ(plan.automorphisms, 0);
}

// Bytes of one plaintext product, half of what a product of shares was measured to send. The third
// is two responses of six results and of three.
TEST(MatmulPlan, UnpackedResponsesSendWhatWasMeasured) {
  struct Measured {
    MatmulShape shape;
    double bytes;
  };
  for (const auto& [shape, bytes] :
       {Measured{{1, 8192, 1}, 312229}, Measured{{3, 5, 7}, 312613}, Measured{{3, 1000, 3}, 439695},
        Measured{{16, 16, 16}, 316618}, Measured{{32, 8, 32}, 329360},
        Measured{{32, 4, 64}, 345961}, Measured{{32, 2, 128}, 379559},
        Measured{{64, 1, 128}, 439333}, Measured{{90, 1, 91}, 439318}})
    EXPECT_NEAR(plan_matmul(shape).comm_bytes(), bytes, 1e-3 * bytes)
        << shape.rows << 'x' << shape.inner << 'x' << shape.columns;
}

// Packed ones are whole ciphertexts, however few results they hold (measured likewise).
TEST(MatmulPlan, PackedResponsesAreWhole) {
  EXPECT_EQ(plan_matmul({16, 64, 16}).comm_bytes(), kUpBytes + kDownBytes);
  EXPECT_EQ(plan_matmul({1, 1024, 128}).comm_bytes(), kUpBytes + kDownBytes);
}

// Each step joins two responses, until as many are left as are sent.
TEST(MatmulPlan, PackingJoinsTwoResponsesAtATime) {
  EXPECT_EQ(plan_matmul({128, 768, 768}).automorphisms, 768 - 12);
}

// Sizes in which the polynomial's 8192 coefficients are filled well, badly and not at all.
MatmulShape random_shape(std::mt19937& generator) {
  const auto size = [&] {
    const double exponent = std::uniform_real_distribution<double>(0, 11)(generator);
    return static_cast<std::int64_t>(std::exp2(exponent));
  };
  return {size(), size(), size()};
}

TEST(FewestBytes, AreNeverMoreThanSpuSends) {
  std::mt19937 generator(1);
  for (int i = 0; i < 2000; ++i) {
    const MatmulShape shape = random_shape(generator);
    EXPECT_LE(fewest_bytes(shape), plan_matmul(shape).comm_bytes())
        << shape.rows << 'x' << shape.inner << 'x' << shape.columns;
  }
  // One row, as in generation: SPU's blocks are no larger than the product, 512 of 768 words.
  EXPECT_LT(fewest_bytes({1, 768, 768}), 0.71 * plan_matmul({1, 768, 768}).comm_bytes());
}

TEST(FewestBytes, NeverFallWhenAProductGrows) {
  std::mt19937 generator(2);
  for (int i = 0; i < 2000; ++i) {
    const MatmulShape shape = random_shape(generator);
    MatmulShape larger = shape;
    const std::array<std::int64_t*, 3> sizes = {&larger.rows, &larger.inner, &larger.columns};
    *sizes[static_cast<std::size_t>(i % 3)] += 1 + i % 7;
    EXPECT_LE(fewest_bytes(shape), fewest_bytes(larger))
        << shape.rows << 'x' << shape.inner << 'x' << shape.columns;
  }
}

// What SPU's weight wastes: 125 words of a row take three blocks, 128 take one.
TEST(FewestBytes, DoNotShareTheStepsOfSpusWeight) {
  EXPECT_GT(plan_matmul({1, 125, 119}).comm_bytes(), plan_matmul({1, 128, 119}).comm_bytes());
  EXPECT_LE(fewest_bytes({1, 125, 119}), fewest_bytes({1, 128, 119}));
}

TEST(FewestBytes, AreTheLeastOfAllBlocksTriedOneByOne) {
  for (const MatmulShape& shape :
       {MatmulShape{3, 27300, 2}, MatmulShape{100, 64, 100}, MatmulShape{7, 13, 97}}) {
    double least = plan_matmul(shape).comm_bytes();
    for (std::int64_t d0 = 1; d0 <= shape.rows; ++d0)
      for (std::int64_t d1 = 1; d0 * d1 <= kPolynomialDegree; ++d1)
        for (std::int64_t d2 = 1; d2 <= shape.columns && d0 * d1 * d2 <= kPolynomialDegree; ++d2) {
          const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
          const std::int64_t b0 = up(shape.rows, d0), b1 = up(shape.inner, d1),
                             b2 = up(shape.columns, d2);
          const bool packs = (d1 & (d1 - 1)) == 0;
          double responses = 0;
          for (std::int64_t row = 0; row < shape.rows; row += d0)
            for (std::int64_t column = 0; column < shape.columns; column += d2)
              responses += unpacked_bytes(std::min(d0, shape.rows - row) *
                                          std::min(d2, shape.columns - column));
          if (packs)
            responses = std::min(responses, static_cast<double>(up(b0 * b2, d1)) * kDownBytes);
          least =
              std::min(least, static_cast<double>(std::min(b0, b2) * b1) * kUpBytes + responses);
        }
    EXPECT_EQ(fewest_bytes(shape), least);
  }
}

TEST(MatmulPlan, RefusesSizesThatCannotBeCounted) {
  const std::int64_t huge = std::int64_t{1} << 40;
  for (const BlockChoice choice : {BlockChoice::kSpu, BlockChoice::kFewestBytes})
    EXPECT_THROW(plan_matmul({huge, 1, huge}, choice), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
