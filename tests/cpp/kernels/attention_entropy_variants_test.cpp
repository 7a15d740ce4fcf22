// What attention computes beside the plain form, alone and together.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_checks.h"

namespace aero::kernels::testing {
namespace {

class AttentionVariants : public AttentionEntropy {
 protected:
  /// Whole heads and blocks of keys, a few queries in parts, tiles and their tails.
  void expect_all_match(const AttentionVariant& variant) {
    for (const DataType type : data_types())
      for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 201}, {4, 140}, {7, 3}, {37, 67}, {131, 293}})
        for (const bool is_causal : {false, true})
          for (const int64_t threads : {1, 8}) {
            AttentionCase c{.type = type, .batch = 2, .heads = 2, .queries = queries, .keys = keys};
            c.key_heads = threads == 1 ? 1 : 2;
            c.head_dim = threads == 1 ? 16 : 37;
            c.is_causal = is_causal;
            c.mask = threads == 1 ? MaskKind::kFull : MaskKind::kNone;
            c.temperature = TemperatureKind::kNegative;
            c.threads = threads;
            c.key_parts = queries == 1 ? 3 : 1;
            c.variant = variant;
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

TEST_P(AttentionVariants, SoftCapsBendScores) { expect_all_match({.softcap = 0.7}); }

TEST_P(AttentionVariants, SinksTakeTheirShareOfEveryRow) {
  expect_all_match({.has_sinks = true});
  expect_all_match({.window_left = 3, .window_right = 0, .has_sinks = true});
}

TEST_P(AttentionVariants, BiasesAddToScores) {
  expect_all_match({.has_bias = true});
  expect_all_match({.has_fine_bias = true});
}

TEST_P(AttentionVariants, SlopesPunishDistance) { expect_all_match({.has_slopes = true}); }

TEST_P(AttentionVariants, DropoutLeavesTheEntropyOfTheWholeRow) {
  expect_all_match({.dropout = 0.3});
}

TEST_P(AttentionVariants, MayAllBeAskedForAtOnce) {
  expect_all_match({.window_left = 70,
                    .window_right = 2,
                    .softcap = 1.5,
                    .dropout = 0.5,
                    .has_fine_bias = true,
                    .has_slopes = true,
                    .has_sinks = true});
}

}  // namespace
}  // namespace aero::kernels::testing
