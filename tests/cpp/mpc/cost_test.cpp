#include "csrc/mpc/cost.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace aero::mpc {
namespace {

constexpr Cost kOne{{3, 5}, 2, 1.5, 4, 6, 7, 8};

TEST(Cost, AddsFieldByField) {
  EXPECT_EQ(kOne + kOne, (Cost{{6, 10}, 4, 3, 8, 12, 14, 16}));
  EXPECT_EQ(kOne.comm_bytes(), 8);
}

TEST(Cost, SequentialCopiesMultiplyEverything) { EXPECT_EQ(sequential(kOne, 2), kOne + kOne); }

TEST(Cost, ParallelCopiesKeepTheRounds) {
  EXPECT_EQ(parallel(kOne, 2), with_rounds(kOne + kOne, kOne.rounds));
}

TEST(Cost, CheckedRoundsBytesAndLeavesCounts) {
  // The sum to the nearest byte: the client's part is what the server's leaves of it.
  const Cost rounded = checked({{1.5, 2.75}, 1, 0.5}, "op");
  EXPECT_EQ(rounded, (Cost{{1, 3}, 1, 0.5}));
}

TEST(Cost, CheckedRefusesWhatIsNotExact) {
  EXPECT_NO_THROW(checked({{kMaxExactCount, 0}}, "op"));
  EXPECT_THROW(checked({{kMaxExactCount, 2}}, "op"), std::invalid_argument);
  EXPECT_THROW(checked({.ots = 2 * kMaxExactCount}, "op"), std::invalid_argument);
}

TEST(ElementCount, MultipliesUpTo2To53) {
  EXPECT_EQ(element_count({3, 5, 7}, "x"), 105);
  EXPECT_EQ(element_count({std::int64_t{1} << 53}, "x"), std::int64_t{1} << 53);
  EXPECT_THROW(element_count({std::int64_t{1} << 53, 2}, "x"), std::invalid_argument);
  EXPECT_THROW(element_count({std::int64_t{1} << 62, 8}, "x"), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
