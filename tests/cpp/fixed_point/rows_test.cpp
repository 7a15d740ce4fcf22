#include "csrc/fixed_point/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace aero::fixed_point {
namespace {

constexpr double kUlp = 1.0 / 262144;

std::vector<Ring> encoded(const Arithmetic& arithmetic, const std::vector<double>& values) {
  std::vector<Ring> ring;
  ring.reserve(values.size());
  for (const double value : values) ring.push_back(arithmetic.encode(value));
  return ring;
}

TEST(FixedPointSoftmax, EqualScoresShareEqually) {
  Arithmetic arithmetic({});
  const std::vector<Ring> scores = encoded(arithmetic, {3.5, 3.5, 3.5, 3.5});
  std::vector<Ring> probabilities(4);
  softmax(arithmetic, {}, 1, 4, scores.data(), nullptr, probabilities.data());
  // The reciprocal of 4: relative error 5.4e-5 and a few ulp.
  for (const Ring p : probabilities) EXPECT_NEAR(arithmetic.decode(p), 0.25, 1e-4);
}

TEST(FixedPointSoftmax, EntriesBeyondTheLiveOnesAreZero) {
  Arithmetic arithmetic({});
  const std::vector<Ring> scores = encoded(arithmetic, {1, 9, 9, 2, 1, 9, 0, 0, 0});
  const std::vector<std::int64_t> live{1, 2, 0};
  std::vector<Ring> probabilities(9, 77);
  softmax(arithmetic, {}, 3, 3, scores.data(), live.data(), probabilities.data());
  EXPECT_NEAR(arithmetic.decode(probabilities[0]), 1.0, 1e-4);
  EXPECT_EQ(probabilities[1], 0U);
  EXPECT_NEAR(arithmetic.decode(probabilities[3]), 1 / (1 + std::exp(-1.0)), 2e-3);
  EXPECT_EQ(probabilities[5], 0U);
  for (int i = 6; i < 9; ++i) EXPECT_EQ(probabilities[static_cast<std::size_t>(i)], 0U);
}

TEST(FixedPointSoftmax, OneDivisionPerElementAgreesWithOneReciprocalPerRow) {
  Arithmetic arithmetic({});
  const std::vector<Ring> scores = encoded(arithmetic, {0.1, -1, 2, 0.5, -7});
  std::vector<Ring> by_reciprocal(5);
  std::vector<Ring> by_division(5);
  softmax(arithmetic, {}, 1, 5, scores.data(), nullptr, by_reciprocal.data());
  softmax(arithmetic, {.broadcast_reciprocal = false}, 1, 5, scores.data(), nullptr,
          by_division.data());
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(arithmetic.decode(by_reciprocal[i]), arithmetic.decode(by_division[i]), 4 * kUlp);
}

TEST(FixedPointSoftmax, AScoreTruncationChangesNothingWithoutShares) {
  Arithmetic arithmetic({});
  const std::vector<Ring> scores = encoded(arithmetic, {0.1, -1, 2});
  std::vector<Ring> plain(3);
  std::vector<Ring> truncated(3);
  softmax(arithmetic, {}, 1, 3, scores.data(), nullptr, plain.data());
  softmax(arithmetic, {.score_truncation = true}, 1, 3, scores.data(), nullptr, truncated.data());
  EXPECT_EQ(plain, truncated);
}

TEST(FixedPointLayerNorm, NormalizesARow) {
  Arithmetic arithmetic({});
  const std::vector<double> values{1.0, -2.0, 0.5, 3.0};
  const std::vector<double> gains{1.0, 2.0, 1.0, -1.0};
  const std::vector<double> biases{0.0, 0.5, 0.0, 0.0};
  std::vector<Ring> y(4);
  layer_norm(arithmetic, 1, 4, 1e-5, encoded(arithmetic, values).data(),
             encoded(arithmetic, gains).data(), encoded(arithmetic, biases).data(), y.data());
  double mean = 0;
  double square = 0;
  for (const double v : values) {
    mean += v / 4;
    square += v * v / 4;
  }
  const double inverse = 1 / std::sqrt(square - mean * mean + 1e-5);
  for (std::size_t i = 0; i < 4; ++i) {
    // The inverse root is right to 1e-3, see approximations_test.
    const double exact = (values[i] - mean) * inverse * gains[i] + biases[i];
    EXPECT_NEAR(arithmetic.decode(y[i]), exact, 1e-3 * std::abs(exact) + 1e-3);
  }
}

TEST(FixedPointMatmul, IsExactUpToOneTruncation) {
  Arithmetic arithmetic({});
  for (const std::int64_t rows : {1, 3, 4, 5, 9}) {
    constexpr std::int64_t kInner = 7;
    constexpr std::int64_t kColumns = 5;
    std::vector<Ring> a(static_cast<std::size_t>(rows * kInner));
    std::vector<Ring> b(static_cast<std::size_t>(kInner * kColumns));
    for (Ring& value : a) value = arithmetic.next_random() % 2000000 - 1000000;
    for (Ring& value : b) value = arithmetic.next_random() % 2000000 - 1000000;
    std::vector<Ring> c(static_cast<std::size_t>(rows * kColumns));
    matmul(arithmetic, rows, kInner, kColumns, a.data(), b.data(), c.data());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) {
        Ring sum = 0;
        for (std::int64_t k = 0; k < kInner; ++k)
          sum += a[static_cast<std::size_t>(i * kInner + k)] *
                 b[static_cast<std::size_t>(k * kColumns + j)];
        ASSERT_EQ(c[static_cast<std::size_t>(i * kColumns + j)], arithmetic.truncate(sum, 18));
      }
    }
  }
}

TEST(FixedPointMatmul, AnEmptyInnerSideGivesZeros) {
  Arithmetic arithmetic({});
  std::vector<Ring> c(2, 5);
  matmul(arithmetic, 1, 0, 2, nullptr, nullptr, c.data());
  EXPECT_EQ(c, (std::vector<Ring>{0, 0}));
}

}  // namespace
}  // namespace aero::fixed_point
