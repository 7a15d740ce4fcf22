// What the CUDA passes compute beside the plain attention, on an emulated GPU, against the
// definitions in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cpp/kernels/cuda/attention_entropy_emulation_checks.h"

namespace aero::kernels::cuda::testing {
namespace {

const std::vector<Elements> kElements = {
    {DataType::kBFloat16}, {DataType::kFloat16}, {DataType::kFloat32}, {DataType::kFloat32, true}};

/// One row, as in generation; tiles and their tails, keys before and after the queries, heads that
/// share keys, every width that there is a kernel for.
void expect_all_match(const AttentionVariant& variant) {
  for (const Elements& elements : kElements)
    for (const bool is_causal : {false, true})
      for (const auto& [queries, keys, head_dim] :
           std::vector<std::array<int64_t, 3>>{{1, 131, 24},
                                               {3, 70, 64},
                                               {40, 17, 37},
                                               {67, 131, 16},
                                               {37, 41, 128},
                                               {33, 40, 200}}) {
        if (is_causal && head_dim >= 128) continue;
        AttentionCase c{.type = elements.type, .heads = 2, .queries = queries, .keys = keys};
        c.key_heads = head_dim % 8 == 0 ? 1 : 2;
        c.head_dim = head_dim;
        c.is_causal = is_causal;
        c.temperature = is_causal ? TemperatureKind::kNegative : TemperatureKind::kHeadPosition;
        c.mask = head_dim == 64 ? MaskKind::kFull : MaskKind::kNone;
        c.order = is_causal ? Order::kRowMajor : Order::kPadded;
        c.allow_tf32 = elements.allow_tf32;
        c.variant = variant;
        c.variant.has_max_logits |= is_causal && variant.has_sinks;
        expect_emulation_matches(c);
      }
}

TEST(CudaAttentionVariants, WindowsShowTheKeysBesideTheDiagonal) {
  for (const auto& [left, right] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 70}, {0, 0}, {5, -1}, {64, 2}})
    expect_all_match({.window_left = left, .window_right = right});
}

// Both edges of a window start anywhere in a tile.
TEST(CudaAttentionVariants, WindowsMayBeginAndEndAnywhere) {
  for (const int64_t left : {0, 1, 31, 32, 100})
    for (const int64_t right : {-1, 0, 65})
      for (const int64_t keys : {90, 150}) {
        AttentionCase c = one_head({DataType::kBFloat16}, 131, keys, 32);
        c.is_causal = false;
        c.variant = {.window_left = left, .window_right = right};
        expect_emulation_matches(c);
      }
}

TEST(CudaAttentionVariants, WindowsOfAnySizeAreNoBoundBeyondTheKeys) {
  for (const int64_t size : {int64_t{41}, int64_t{1} << 31, int64_t{1} << 40}) {
    AttentionCase c = one_head({DataType::kBFloat16}, 37, 41, 32);
    c.is_causal = false;
    c.variant = {.window_left = size, .window_right = size};
    expect_emulation_matches(c);
  }
}

TEST(CudaAttentionVariants, WindowsOfTheMostPositionsStayWithinTheirNumbers) {
  constexpr int kMost = (1 << 30) - 1;  // of launch.h, which needs a toolkit
  AttentionEntropyParams p;
  p.queries = p.keys = kMost;
  p.window_right = int64_t{1} << 40;
  const WindowedKeys all(p, 0, 0);
  EXPECT_EQ(all.begin(kMost - 1), 0);
  EXPECT_EQ(all.end(kMost + 127), kMost);
  EXPECT_EQ(all.end_of_queries(kMost + 127), kMost);
  p.window_left = 3, p.window_right = 0;
  const WindowedKeys four(p, 0, 0);
  EXPECT_EQ(four.begin(kMost - 1), kMost - 4);
  EXPECT_EQ(four.end(kMost - 2), kMost - 1);
  EXPECT_EQ(four.end_of_queries(9), 13);
  EXPECT_EQ(four.end_of_queries(kMost + 127), kMost);
}

/// Products of both directions.
int64_t products(int64_t positions, const AttentionVariant& variant) {
  AttentionCase c = one_head({DataType::kBFloat16}, positions, positions, 64);
  c.variant = variant;
  AttentionProblem p(c);
  return run_emulated(p.forward_params()).instructions.multiplications +
         run_emulated(p.backward_params()).instructions.multiplications;
}

TEST(CudaAttentionVariants, WorkGrowsWithTheWindowAndNotWithTheKeys) {
  const AttentionVariant window{.window_left = 64, .window_right = 0};
  const int64_t once = products(512, window), twice = products(1024, window);
  EXPECT_LE(10 * twice, 21 * once);
  EXPECT_LE(4 * twice, products(1024, {.softcap = 1e3}));
}

TEST(CudaAttentionVariants, SoftCapsBendScores) { expect_all_match({.softcap = 0.7}); }

TEST(CudaAttentionVariants, SinksTakeTheirShareOfEveryRow) {
  expect_all_match({.has_sinks = true});
  expect_all_match({.window_left = 3, .window_right = 0, .has_sinks = true});
}

TEST(CudaAttentionVariants, TheLargestScoreIsFoundWithItsKey) {
  expect_all_match({.has_max_logits = true});
}

TEST(CudaAttentionVariants, DropoutDropsTheSameWeightsInBothDirections) {
  expect_all_match({.dropout = 0.3});
}

// Nothing and nearly everything; the statistics are those of whole rows.
TEST(CudaAttentionVariants, DropoutOfAnyShareLeavesTheStatistics) {
  for (const double share : {0x1p-40, 0.999}) {
    AttentionCase c = one_head({DataType::kFloat32}, 70, 90, 32);
    c.variant.dropout = share;
    expect_emulation_matches(c);
    AttentionProblem dropped(c);
    c.variant.dropout = 0;
    AttentionProblem whole(c);
    run_emulated(dropped.forward_params());
    run_emulated(whole.forward_params());
    for (Tensor AttentionProblem::* result :
         {&AttentionProblem::entropy, &AttentionProblem::logsumexp})
      expect_close("of whole rows", (dropped.*result).values(), (whole.*result).values(), 1e-6);
  }
}

// Of one key, whose weight is 1 in every row.
TEST(CudaAttentionVariants, AFactorOfDropoutBeyondFloat16IsOneOfSums) {
  AttentionCase c = one_head({DataType::kFloat16}, 64, 1, 32);
  c.is_causal = false;
  c.variant.dropout = 1 - 0x1p-16;
  AttentionProblem p(c);
  const auto kept = [&](int64_t row) {
    return is_kept(static_cast<uint64_t>(p.seeds[0]), 0, row, 0, c.variant.dropout);
  };
  int64_t row = 64;
  for (p.seeds[0] = 0; row == 64; ++p.seeds[0])
    for (row = 0; row < 64 && !kept(row);) ++row;
  --p.seeds[0];
  p.dout.for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
    p.dout.set(b, h, i, d, i == row ? 0x1p-14 : 0);
  });
  run_emulated(p.forward_params());
  run_emulated(p.backward_params());
  for (const double each : p.dv.values()) EXPECT_EQ(each, 4);
}

TEST(CudaAttentionVariants, MayAllBeAskedForAtOnce) {
  expect_all_match({.window_left = 40,
                    .window_right = 2,
                    .softcap = 1.5,
                    .dropout = 0.5,
                    .has_sinks = true,
                    .has_max_logits = true});
}

TEST(CudaAttentionVariants, OfQueriesThatSeeNoKeyPassNothingOnWhateverComesBack) {
  for (AttentionCase c :
       cases_with_empty_rows({DataType::kBFloat16, DataType::kFloat32}, {3, 70})) {
    if (c.threads != 1) continue;
    c.variant = {.window_left = 60, .softcap = 2, .has_max_logits = true};
    if (c.mask == MaskKind::kNone && c.head_dim == 32)  // the window alone hides the keys
      c.is_causal = false, c.variant.window_right = 0;
    expect_emulation_matches(c);
  }
}

TEST(CudaAttentionVariants, ARowWhoseSinkAloneHasWeightPassesNothingOnToKeys) {
  for (const Elements& elements : kElements)
    for (AttentionCase c : cases_with_sinks_alone({elements.type})) {
      if (c.threads != 1 || (elements.allow_tf32 && c.head_dim == 32)) continue;
      c.allow_tf32 = elements.allow_tf32;
      expect_emulation_matches(c);
      AttentionCase all = c;
      all.has_dentropy = all.has_dlogsumexp = true;
      AttentionProblem p(all);
      if (c.allow_tf32)
        for (Tensor* input : {&p.q, &p.k, &p.v, &p.dout}) round_to_tf32(*input);
      run_emulated(p.forward_params());
      run_emulated(p.backward_params());
      SCOPED_TRACE(all.describe());
      expect_gradients_of_keys(p, AttentionReference(p), tolerance_of(all));
      all.to_empty_rows = 0.7;
      expect_emulation_matches(all);
    }
}

// Also where a row's warp reads no tile of keys.
TEST(CudaAttentionVariants, ATemperatureOfZeroIsNotANumberWithASinkToo) {
  for (const int64_t queries : {40, 130}) {
    AttentionCase c{.type = DataType::kBFloat16, .queries = queries, .keys = 20};
    c.variant.has_sinks = true;
    AttentionProblem p(c);
    for (const int64_t row : {int64_t{0}, queries - 1}) p.temperature.set(0, 0, row, 0, 0);
    run_emulated(p.forward_params());
    for (const int64_t row : {int64_t{0}, queries - 1})
      for (const Tensor* result : {&p.entropy, &p.logsumexp, &p.out})
        EXPECT_TRUE(std::isnan(result->get(0, 0, row))) << row;
  }
}

TEST(CudaAttentionVariants, TakeEverySubsetOfIncomingGradients) {
  for (int used = 0; used < 8; ++used) {
    AttentionCase c{.type = DataType::kFloat32, .queries = 21, .keys = 29};
    c.has_dout = used & 1, c.has_dentropy = used & 2, c.has_dlogsumexp = used & 4;
    c.variant = {.window_left = 9, .softcap = 3, .dropout = 0.2, .has_sinks = true};
    c.variant.has_max_logits = true;
    expect_emulation_matches(c);
  }
}

TEST(CudaAttentionVariants, OfEqualScoresTheFirstKeyIsNamed) {
  for (const Elements& elements : kElements)
    for (const int64_t queries : {1, 3, 70})
      for (const bool has_sinks : {false, true}) {
        AttentionCase c = one_head(elements, queries, 200, 16);
        c.is_causal = false;
        c.variant = {.window_left = 190, .has_sinks = has_sinks, .has_max_logits = true};
        AttentionProblem p(c);
        p.q.fill(0);
        run_emulated(p.forward_params());
        for (int64_t i = 0; i < queries; ++i) {
          EXPECT_EQ(p.largest_key[static_cast<size_t>(i)], std::max<int64_t>(0, i + 10 - queries));
          EXPECT_EQ(p.max_logits.get(0, 0, i), 0);
        }
      }
}

TEST(CudaAttentionVariants, ARowOfNotANumberNamesNoKey) {
  AttentionCase c{.type = DataType::kBFloat16, .queries = 70, .keys = 130, .is_causal = false};
  c.variant.has_max_logits = true;
  AttentionProblem p(c);
  p.k.set(0, 1, 66, 3, std::numeric_limits<double>::quiet_NaN());
  run_emulated(p.forward_params());
  for (int64_t i = 0; i < 70; ++i) {
    EXPECT_TRUE(std::isnan(p.max_logits.get(0, 1, i)));
    EXPECT_TRUE(std::isnan(p.entropy.get(0, 1, i)));
    EXPECT_EQ(p.largest_key[static_cast<size_t>(70 + i)], -1);
    EXPECT_GE(p.largest_key[static_cast<size_t>(i)], 0);
  }
}

// Whatever its size: beyond all scores, where they have no weight, and no sink at all.
TEST(CudaAttentionVariants, SinksMayBeOfAnySize) {
  for (const double sink : {-std::numeric_limits<double>::infinity(), -1e30, 40.0, 1e6}) {
    AttentionCase c{.type = DataType::kFloat32, .queries = 70, .keys = 60};
    c.temperature = TemperatureKind::kNone;
    c.variant = {.softcap = 5, .has_sinks = true};
    AttentionProblem p(c);
    p.sinks.fill(sink);
    run_emulated(p.forward_params());
    run_emulated(p.backward_params());
    for (int64_t i = 10; i < 70; ++i) EXPECT_GE(p.entropy.get(0, 0, i), 0);
    if (sink > 0) {
      for (int64_t i = 10; i < 70; ++i) EXPECT_NEAR(p.logsumexp.get(0, 0, i) / sink, 1, 1e-6);
    } else {
      c.variant.has_sinks = false;
      AttentionProblem without(c);
      run_emulated(without.forward_params());
      run_emulated(without.backward_params());
      for (Tensor AttentionProblem::* result : {&AttentionProblem::out, &AttentionProblem::dq,
                                                &AttentionProblem::dk, &AttentionProblem::dv})
        expect_close("without a sink", (p.*result).values(), (without.*result).values(), 1e-6);
      for (int64_t i = 10; i < 70; ++i) {
        EXPECT_NEAR(p.entropy.get(0, 0, i), without.entropy.get(0, 0, i), 1e-5);
        EXPECT_NEAR(p.logsumexp.get(0, 0, i), without.logsumexp.get(0, 0, i), 1e-5);
        EXPECT_NEAR(p.dtemperature.get(0, 0, i), without.dtemperature.get(0, 0, i), 1e-4);
        EXPECT_EQ(p.dsinks.get(0, 0, i), 0);
      }
    }
    for (const Tensor* result :
         {&p.out, &p.entropy, &p.dq, &p.dk, &p.dv, &p.dtemperature, &p.dsinks})
      for (const double value : result->values()) ASSERT_TRUE(std::isfinite(value)) << sink;
  }
}

// Of no query and of a sink alone.
TEST(CudaAttentionVariants, OfNoKeysLeaveTheSink) {
  for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{{9, 0}, {0, 9}}) {
    AttentionCase c = one_head({DataType::kBFloat16}, queries, keys, 8);
    c.variant = {.window_left = 2, .has_sinks = true, .has_max_logits = true};
    expect_emulation_matches(c);
  }
}

TEST(CudaAttentionVariants, HiddenKeysBearHugeGradientsOfEntropy) {
  AttentionProblem p({.queries = 70, .keys = 90, .variant = {.window_left = 9, .has_sinks = true}});
  p.dentropy.fill(1e15);
  run_emulated(p.forward_params());
  run_emulated(p.backward_params());
  for (const Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature, &p.dsinks})
    for (const double value : gradient->values()) ASSERT_TRUE(std::isfinite(value));
}

TEST(CudaAttentionVariants, TouchNothingBesideTheirTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement scope(placement);
    for (const Elements& elements : kElements)
      for (const int64_t head_dim : {24, 37}) {
        AttentionCase c = one_head(elements, 35, 70, head_dim);
        c.variant = {.window_left = 20, .softcap = 2, .dropout = 0.2, .has_sinks = true};
        c.variant.has_max_logits = true;
        expect_emulation_matches(c);
      }
  }
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
