#include "csrc/mpc/protocols/packed_triangle.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "csrc/mpc/operation_cost.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"

namespace aero::mpc {
namespace {

TEST(PackedTriangle, HoldsEveryLiveScoreAndAtMostFourThirdsOfThem) {
  // Of a diagonal block, sizes rounded up to powers of two fill R^2 (1/2 + 1/8 + 1/32 + ...) = 2/3
  // R^2, of which half is live; blocks below the diagonal are live altogether.
  for (const std::int64_t length : {1, 2, 17, 64, 100, 128, 200, 512, 1024}) {
    const std::int64_t slots = triangle_slots({length, 64, length});
    const std::int64_t live = length * (length + 1) / 2;
    EXPECT_GE(slots, live) << length;
  }
  for (const std::int64_t length : {128, 256, 512, 1024}) {
    const std::int64_t slots = triangle_slots({length, 64, length});
    EXPECT_LE(3 * slots, 4 * (length * (length + 1) / 2)) << length;
  }
}

// The layout itself, on integers: rows in bit-reversed order stand so that the last u rows lie at
// multiples of R / u, hence no two live scores of one response claim the same coefficient.
TEST(PackedTriangle, LiveScoresOfABlockMeetNowhere) {
  constexpr std::int64_t kRows = 16;
  const auto place = [](std::int64_t row) {  // bit-reversed distance from the last row
    std::int64_t from = kRows - 1 - row, reversed = 0;
    for (std::int64_t bit = 1; bit < kRows; bit *= 2, from /= 2) reversed = 2 * reversed + from % 2;
    return reversed;
  };
  for (std::int64_t key = 0; key < kRows; ++key) {
    std::int64_t power = 1;
    while (power < kRows - key) power *= 2;
    std::set<std::int64_t> places;
    for (std::int64_t row = key; row < kRows; ++row) {
      EXPECT_EQ(place(row) % (kRows / power), 0);
      places.insert(place(row));
    }
    EXPECT_EQ(static_cast<std::int64_t>(places.size()), kRows - key);
  }
}

TEST(PackedTriangle, TwelveHeadsOfThePapersSizeFillSeventeenResponses) {
  // 12 heads x 10,923 slots; 12 x 8,256 scores are live, stock SPU fills 24 responses with 196,608.
  EXPECT_EQ(triangle_slots({128, 64, 128}), 10923);
  const Cost cost = packed_triangles({128, 64, 128}, 12);
  EXPECT_EQ(cost.comm_bytes(), 2 * (12 * kUpBytes + 17 * kDownBytes));
  EXPECT_EQ(cost.sent_bytes[kClient], cost.sent_bytes[kServer]);
  EXPECT_EQ(cost.rounds, 2);
  // Two cross terms, and a plaintext holds one of the 128 keys: a product and a step for each.
  EXPECT_EQ(cost.ct_pt_products, 2 * 12 * 128);
  EXPECT_EQ(cost.automorphisms, 2 * 12 * 128);
}

TEST(PackedTriangle, IsNeverDearerThanTheSkipWithoutIt) {
  for (const std::int64_t length : {1, 3, 64, 128, 129, 300, 512})
    for (const bool batch_heads : {false, true}) {
      const HeadProduct product{5, {length, 64, length}, Triangle::kResult};
      const Stack plain{.batch_heads = batch_heads, .causal_skip = true};
      Stack packed = plain;
      packed.pack_triangle = true;
      EXPECT_LE(operation_cost(packed, product).comm_bytes(),
                operation_cost(plain, product).comm_bytes())
          << length;
    }
}

TEST(PackedTriangle, LongContextsAreCountedInNoTime) {
  EXPECT_GT(triangle_slots({1 << 24, 64, 1 << 24}), std::int64_t{1} << 47);
}

}  // namespace
}  // namespace aero::mpc
