// What attention computes beside the plain form, alone and together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_checks.h"

namespace aero::kernels::testing {
namespace {

// A sanitizer of addresses makes the definitions five times as slow, and one large case shows it
// the same memory as four.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressesChecked = true;
#else
constexpr bool kAddressesChecked = false;
#endif

class AttentionVariants : public AttentionEntropy {
 protected:
  /// Whole heads and blocks of keys, a few queries in parts, tiles and their tails.
  void expect_all_match(const AttentionVariant& variant) {
    for (const DataType type : data_types())
      for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 201}, {4, 140}, {7, 3}, {37, 67}, {131, 293}})
        for (const bool is_causal : {false, true})
          for (const int64_t threads : {1, 8}) {
            if (kAddressesChecked && queries > 100 && (is_causal || threads == 1)) continue;
            AttentionCase c{.type = type, .batch = 2, .heads = 2, .queries = queries, .keys = keys};
            c.key_heads = threads == 1 ? 1 : 2;
            c.head_dim = threads == 1 ? 16 : 37;
            c.is_causal = is_causal;
            c.mask = threads == 1 ? MaskKind::kFull : MaskKind::kNone;
            c.temperature = TemperatureKind::kNegative;
            c.threads = threads;
            c.key_parts = queries == 1 ? 3 : 1;
            c.variant = variant;
            c.variant.has_max_logits |= is_causal;
            expect_matches_reference(c);
          }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionVariants, ::testing::ValuesIn(attention_isa_names()),
                         [](const auto& info) { return info.param; });

TEST_P(AttentionVariants, WindowsShowTheKeysBesideTheDiagonal) {
  for (const auto& [left, right] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 70}, {0, 0}, {5, -1}, {63, 0}, {64, 70}, {130, -1}})
    expect_all_match({.window_left = left, .window_right = right});
}

// Scores far beyond the cap, beside it, and none beyond half of it, whose tanh is a shorter one.
TEST_P(AttentionVariants, SoftCapsBendScores) {
  for (const double cap : {0.7, 4.0, 40.0}) expect_all_match({.softcap = cap});
}

TEST_P(AttentionVariants, AHugeCapOverASmallTemperatureLeavesScoresOfZeroAlone) {
  for (const DataType type : data_types()) {
    AttentionCase c{.type = type, .queries = 40, .keys = 40};
    c.variant = {.softcap = 1e10};
    SCOPED_TRACE(c.describe());
    AttentionProblem p(c);
    p.q.fill(0);
    p.temperature.fill(type == DataType::kFloat64 ? 1e-305 : 1e-36);
    p.run_forward();
    for (int64_t i = 0; i < c.queries; ++i)
      EXPECT_NEAR(p.entropy.get(0, 0, i), std::log(static_cast<double>(i + 1)), 1e-5) << i;
  }
}

TEST_P(AttentionVariants, SinksTakeTheirShareOfEveryRow) {
  expect_all_match({.has_sinks = true});
  expect_all_match({.window_left = 3, .window_right = 0, .has_sinks = true});
}

// No gradient of such a row reaches a key, and a finite one reaches the sink.
TEST_P(AttentionVariants, ARowWhoseSinkAloneHasWeightPassesNothingOnToKeys) {
  for (AttentionCase c : cases_with_sinks_alone(data_types())) {
    expect_matches_reference(c);
    c.has_dentropy = c.has_dlogsumexp = true;
    AttentionProblem p(c);
    p.run_forward();
    p.run_backward();
    SCOPED_TRACE(c.describe());
    expect_gradients_of_keys(p, AttentionReference(p), product_tolerance(c.type));
    c.to_empty_rows = 0.7;
    expect_matches_reference(c);
  }
}

TEST_P(AttentionVariants, BiasesAddToScores) {
  expect_all_match({.has_bias = true});
  expect_all_match({.has_fine_bias = true});
}

// Row 3 hides a key; what row 4 adds to the same one is no reason to take that for a number.
TEST_P(AttentionVariants, ABiasOfNotANumberSpoilsItsOwnRowAlone) {
  for (const DataType type : data_types())
    for (const bool is_fine : {false, true})
      for (const int64_t key : {4, 5, 69}) {
        AttentionCase c{.type = type, .queries = 70, .keys = 70, .is_causal = false};
        c.variant = {.has_bias = !is_fine, .has_fine_bias = is_fine};
        SCOPED_TRACE(c.describe());
        AttentionProblem p(c);
        p.bias.set(0, 1, 3, key, -std::numeric_limits<double>::infinity());
        p.bias.set(0, 1, 4, key, std::numeric_limits<double>::quiet_NaN());
        p.run_forward();
        for (int64_t i = 0; i < c.queries; ++i)
          EXPECT_EQ(std::isnan(p.entropy.get(0, 1, i)), i == 4) << i;
      }
}

// Whole heads, tiles that the causal rule and windows leave out, few queries.
TEST_P(AttentionVariants, GradientsOfASharedBiasAreSummedOverTheBatchInOrder) {
  for (const DataType type : data_types())
    for (const auto& [queries, keys] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 201}, {4, 140}, {100, 3}, {131, 293}})
      for (const int64_t entries : {2, 3}) {
        AttentionCase c{.type = type, .batch = 3, .heads = 4, .queries = queries, .keys = keys};
        c.key_heads = 2;
        c.threads = entries;
        c.variant = {.window_left = entries == 2 ? 70 : -1, .has_bias = true};
        if (entries == 2) c.variant.window_right = 5, c.is_causal = false;
        c.mask = entries == 2 ? MaskKind::kEmptyRows : MaskKind::kNone;
        SCOPED_TRACE(c.describe());
        AttentionProblem p(c), apart(c);
        const DataType sums = statistic_type(type);
        Tensor shared(sums, (c.batch + entries - 1) / entries, c.heads, queries, keys);
        p.run_forward(), apart.run_forward();
        AttentionEntropyBackwardParams params = p.backward_params();
        params.dbias = shared;
        params.bias_entries = entries;
        run_kernel(params, c.threads);
        apart.run_backward();
        shared.for_each([&](int64_t n, int64_t h, int64_t i, int64_t j) {
          double sum = apart.dbias.get(n * entries, h, i, j);
          for (int64_t b = n * entries + 1; b < std::min(c.batch, (n + 1) * entries); ++b)
            sum = round_to(sums, sum + apart.dbias.get(b, h, i, j));
          ASSERT_EQ(shared.get(n, h, i, j), sum);
        });
        EXPECT_EQ(p.dq.values(), apart.dq.values());
        EXPECT_EQ(p.dk.values(), apart.dk.values());
        EXPECT_EQ(p.dv.values(), apart.dv.values());
      }
}

TEST_P(AttentionVariants, SlopesPunishDistance) { expect_all_match({.has_slopes = true}); }

TEST_P(AttentionVariants, DropoutLeavesTheEntropyOfTheWholeRow) {
  expect_all_match({.dropout = 0.3});
}

TEST_P(AttentionVariants, TheLargestScoreIsFoundWithItsKey) {
  expect_all_match({.has_max_logits = true});
  for (const AttentionCase& empty : cases_with_empty_rows(data_types(), {3, 70})) {
    AttentionCase c = empty;
    c.variant.has_max_logits = true;
    expect_matches_reference(c);
  }
}

TEST_P(AttentionVariants, OfEqualScoresTheFirstKeyIsNamed) {
  for (const DataType type : data_types())
    for (const int64_t queries : {1, 3, 70})
      for (const bool has_sinks : {false, true}) {
        AttentionCase c{.type = type, .queries = queries, .keys = 200, .is_causal = false};
        c.key_parts = queries == 1 ? 3 : 1;
        c.variant = {.window_left = 190, .has_sinks = has_sinks, .has_max_logits = true};
        AttentionProblem p(c);
        p.q.fill(0);
        p.run_forward();
        for (int64_t row = 0; row < 2 * queries; ++row) {
          const int64_t i = row % queries;
          EXPECT_EQ(p.largest_key[static_cast<size_t>(row)],
                    std::max<int64_t>(0, i + 200 - queries - 190));
          EXPECT_EQ(p.max_logits.values()[static_cast<size_t>(row)], 0);
        }
      }
}

TEST_P(AttentionVariants, ARowOfNotANumberNamesNoKey) {
  for (const int64_t queries : {1, 70}) {
    AttentionCase c{.type = data_type(), .queries = queries, .keys = 130, .is_causal = false};
    c.key_parts = queries == 1 ? 3 : 1;
    c.variant.has_max_logits = true;
    AttentionProblem p(c);
    p.k.set(0, 1, 66, 3, std::numeric_limits<double>::quiet_NaN());
    p.run_forward();
    for (int64_t i = 0; i < queries; ++i) {
      EXPECT_TRUE(std::isnan(p.max_logits.get(0, 1, i)));
      EXPECT_EQ(p.largest_key[static_cast<size_t>(queries + i)], -1);
      EXPECT_GE(p.largest_key[static_cast<size_t>(i)], 0);
    }
  }
}

// Both ends of the widths in pairs, tiles of registers and vectors.
TEST_P(AttentionVariants, ValuesMayBeOfAnotherWidth) {
  for (const DataType type : data_types())
    for (const auto& [width, value_width] : std::vector<std::pair<int64_t, int64_t>>{
             {16, 8}, {8, 48}, {37, 5}, {1, 64}, {96, 64}, {40, 72}, {30, 62}, {33, 2}})
      for (const int64_t queries : {1, 3, 70})
        for (const int64_t threads : {1, 8}) {
          AttentionCase c{.type = type, .heads = 4, .queries = queries, .keys = 90};
          c.head_dim = width, c.value_dim = value_width;
          c.mask = threads == 1 ? MaskKind::kNone : MaskKind::kEmptyRows;
          c.order = width == 16 ? Order::kRowMajor : Order::kHeadMajor;
          c.threads = threads;
          c.key_parts = queries == 1 ? 2 : 1;
          expect_matches_reference(c);
          c.to_empty_rows = std::numeric_limits<double>::infinity();
          expect_matches_reference(c);
        }
}

TEST_P(AttentionVariants, WideHeadsOfUpTo512Columns) {
  for (const DataType type : data_types())
    for (const auto& [width, value_width] :
         std::vector<std::pair<int64_t, int64_t>>{{257, 257}, {512, 512}, {320, 512}})
      for (const int64_t queries : {1, 70}) {
        AttentionCase c{.type = type, .heads = 1, .key_heads = 1, .queries = queries, .keys = 75};
        c.head_dim = width, c.value_dim = value_width;
        c.key_parts = queries == 1 ? 2 : 1;
        expect_matches_reference(c);
      }
}

TEST_P(AttentionVariants, MayAllBeAskedForAtOnce) {
  expect_all_match({.window_left = 70,
                    .window_right = 2,
                    .softcap = 1.5,
                    .dropout = 0.5,
                    .has_fine_bias = true,
                    .has_slopes = true,
                    .has_sinks = true,
                    .has_max_logits = true});
}

}  // namespace
}  // namespace aero::kernels::testing
