#include "kernels/attention_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_checks.h"

namespace aero::kernels::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Isa, AttentionEntropy, ::testing::ValuesIn(attention_isa_names()),
                         [](const auto& info) { return info.param; });

TEST_P(AttentionEntropy, AgreesWithTheDefinitionsOverAwkwardSizes) {
  for (const DataType type : data_types())
    for (const bool is_causal : {false, true})
      for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                                                  {1, 67},
                                                                                  {2, 3},
                                                                                  {13, 13},
                                                                                  {17, 40},
                                                                                  {40, 17},
                                                                                  {64, 64},
                                                                                  {67, 131},
                                                                                  {131, 131}})
        for (const int64_t head_dim : {1, 5, 16, 37}) {
          AttentionCase c{.type = type, .queries = queries, .keys = keys, .head_dim = head_dim};
          c.is_causal = is_causal;
          expect_matches_reference(c);
        }
}

TEST_P(AttentionEntropy, AgreesWithTheDefinitionsForEveryHeadWidthClass) {
  for (const DataType type : data_types())
    for (const int64_t head_dim : {2, 3, 8, 31, 32, 33, 64, 80, 127, 128, 256})
      expect_matches_reference({.type = type, .queries = 37, .keys = 41, .head_dim = head_dim});
}

TEST_P(AttentionEntropy, AgreesWithTheDefinitionsAcrossManyTiles) {
  for (const DataType type : data_types())
    for (const bool is_causal : {false, true}) {
      AttentionCase c{.type = type, .heads = 1, .key_heads = 1, .queries = 197, .keys = 293};
      c.is_causal = is_causal;
      expect_matches_reference(c);
    }
}

// The diagonal starts anywhere in a group of keys and ends anywhere in a vector of queries.
TEST_P(AttentionEntropy, AgreesWithTheDefinitionsForEveryOffsetOfTheDiagonal) {
  for (const DataType type : {data_type(), DataType::kBFloat16})
    for (const int64_t queries : {2, 3, 5, 9, 17, 33, 100})
      for (int64_t more = -3; more < 20; ++more)
        if (queries + more > 0)
          expect_matches_reference({.type = type,
                                    .heads = 1,
                                    .key_heads = 1,
                                    .queries = queries,
                                    .keys = queries + more,
                                    .head_dim = 2});
}

TEST_P(AttentionEntropy, AgreesWithTheDefinitionsForEveryMaskTemperatureAndLayout) {
  for (const DataType type : data_types())
    for (const MaskKind mask :
         {MaskKind::kNone, MaskKind::kPadding, MaskKind::kFull, MaskKind::kEmptyRows})
      for (const TemperatureKind temperature :
           {TemperatureKind::kNone, TemperatureKind::kScalar, TemperatureKind::kHead,
            TemperatureKind::kHeadPosition, TemperatureKind::kRow, TemperatureKind::kNegative})
        for (const Order order : {Order::kHeadMajor, Order::kRowMajor, Order::kPadded})
          for (const bool is_causal : {false, true})
            expect_matches_reference({.type = type,
                                      .batch = 2,
                                      .queries = 19,
                                      .keys = 23,
                                      .is_causal = is_causal,
                                      .mask = mask,
                                      .temperature = temperature,
                                      .order = order});
}

TEST_P(AttentionEntropy, AgreesWithTheDefinitionsForTheFewQueriesOfGeneration) {
  for (const DataType type : data_types())
    for (const int64_t queries : {1, 2, 4, 5})
      for (const int64_t keys : {5, 64, 201})
        for (const int64_t head_dim : {3, 64, 80})
          for (const MaskKind mask : {MaskKind::kNone, MaskKind::kPadding, MaskKind::kFull})
            expect_matches_reference({.type = type,
                                      .batch = 2,
                                      .heads = 4,
                                      .queries = queries,
                                      .keys = keys,
                                      .head_dim = head_dim,
                                      .mask = mask,
                                      .temperature = TemperatureKind::kNegative,
                                      .order = Order::kRowMajor});
}

// Parts of whole key tiles: some of them empty, hidden by the mask or beyond what a query sees.
TEST_P(AttentionEntropy, OfFewQueriesIsTheSameInPartsOfTheKeys) {
  for (const DataType type : data_types())
    for (const int64_t queries : {1, 4})
      for (const int64_t keys : {3, 130, 333})
        for (const int64_t key_parts : {2, 5})
          for (const MaskKind mask : {MaskKind::kNone, MaskKind::kFull, MaskKind::kEmptyRows})
            expect_matches_reference({.type = type,
                                      .queries = queries,
                                      .keys = keys,
                                      .head_dim = 37,
                                      .mask = mask,
                                      .temperature = TemperatureKind::kNegative,
                                      .key_parts = key_parts});
}

TEST_P(AttentionEntropy, CutsKeysOnlyWhereRowsLeaveThreadsIdle) {
  AttentionEntropyForwardParams p;
  p.batch = 1, p.heads = 3, p.queries = 1, p.keys = 4096;
  EXPECT_EQ(cpu::key_parts(p, 1), 1);
  EXPECT_EQ(cpu::key_parts(p, 2), 3);    // 9 items
  EXPECT_EQ(cpu::key_parts(p, 48), 16);  // no part below 256 keys
  p.keys = 255;
  EXPECT_EQ(cpu::key_parts(p, 48), 1);
  p.keys = 4096, p.batch = 64;
  EXPECT_EQ(cpu::key_parts(p, 48), 1);
  p.batch = 1, p.queries = 4;  // the most that are cut: 12 rows, 16 parts each
  EXPECT_EQ(cpu::key_parts(p, 48), 16);
  p.queries = 5;
  EXPECT_EQ(cpu::key_parts(p, 48), 1);
  p.queries = 0;
  EXPECT_EQ(cpu::key_parts(p, 48), 1);
}

TEST_P(AttentionEntropy, SumsTheGradientsOfHeadsThatShareKeys) {
  for (const DataType type : data_types())
    for (const int64_t key_heads : {1, 2, 3, 6})
      for (const int64_t threads : {1, 2, 5, 16})
        expect_matches_reference({.type = type,
                                  .batch = 2,
                                  .heads = 6,
                                  .key_heads = key_heads,
                                  .queries = 70,
                                  .keys = 70,
                                  .threads = threads});
}

TEST_P(AttentionEntropy, TakesEverySubsetOfIncomingGradients) {
  for (const DataType type : data_types())
    for (int used = 0; used < 8; ++used)
      for (const int64_t threads : {1, 8}) {
        AttentionCase c{.type = type, .queries = 21, .keys = 29, .threads = threads};
        c.has_dout = used & 1, c.has_dentropy = used & 2, c.has_dlogsumexp = used & 4;
        expect_matches_reference(c);
      }
}

TEST_P(AttentionEntropy, WritesOnlyTheGradientsAskedFor) {
  for (int asked = 0; asked < 16; ++asked)
    for (const int64_t threads : {1, 8}) {
      AttentionProblem p({.type = data_type(), .queries = 21, .keys = 29, .threads = threads});
      p.run_forward();
      AttentionEntropyBackwardParams params = p.backward_params();
      if (!(asked & 1)) params.dq = {};
      if (!(asked & 2)) params.dk = {};
      if (!(asked & 4)) params.dv = {};
      if (!(asked & 8)) params.dtemperature = nullptr;
      run_kernel(params, threads);
      const AttentionReference reference(p);
      const double tolerance = product_tolerance(data_type());
      if (params.dq) expect_close("dq", p.dq.values(), reference.dq, tolerance);
      if (params.dk) expect_close("dk", p.dk.values(), reference.dk, tolerance);
      if (params.dv) expect_close("dv", p.dv.values(), reference.dv, tolerance);
      if (params.dtemperature)
        expect_close("dtemperature", p.dtemperature.values(), reference.dtemperature,
                     entropy_tolerance(p.test));
    }
}

TEST_P(AttentionEntropy, KeepsItsDigitsAtASmallTemperature) {
  for (const DataType type : data_types())
    expect_matches_reference({.type = type,
                              .queries = 128,
                              .keys = 128,
                              .head_dim = 64,
                              .temperature = TemperatureKind::kSmall});
}

// The largest probability is nearly 1, and its error is that of its own score alone.
TEST_P(AttentionEntropy, GradientsOfFewQueriesKeepTheirDigitsAtASmallTemperature) {
  for (const int64_t queries : {1, 2, 4})
    for (const int64_t threads : {1, 8}) {
      AttentionProblem p({.batch = 8,
                          .queries = queries,
                          .keys = 128,
                          .head_dim = 80,
                          .temperature = TemperatureKind::kSmall,
                          .threads = threads});
      p.run_forward();
      p.run_backward();
      const AttentionReference reference(p);
      expect_close("dv", p.dv.values(), reference.dv, 5e-6);
    }
}

TEST_P(AttentionEntropy, OfAQueryThatSeesNoKeyIsZeroWithZeroGradients) {
  for (const DataType type : data_types()) {
    // Queries 0 to 2 come before the first key.
    AttentionProblem p({.type = type, .queries = 8, .keys = 5});
    p.run_forward();
    p.run_backward();
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(p.entropy.get(0, 1, i), 0);
      EXPECT_EQ(p.logsumexp.get(0, 1, i), -std::numeric_limits<double>::infinity());
      EXPECT_EQ(p.dtemperature.get(0, 1, i), 0);
      for (int64_t d = 0; d < 8; ++d) {
        EXPECT_EQ(p.out.get(0, 1, i, d), 0);
        EXPECT_EQ(p.dq.get(0, 1, i, d), 0);
      }
    }
  }
}

TEST_P(AttentionEntropy, OfQueriesThatSeeNoKeyPassesNothingOnWhateverComesBack) {
  for (const AttentionCase& c : cases_with_empty_rows(data_types(), {3, 21, 70}))
    expect_matches_reference(c);
}

TEST_P(AttentionEntropy, OfNoKeysOrNoQueriesWritesZerosOrNothing) {
  for (const DataType type : data_types())
    for (const auto& [queries, keys] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 9}, {9, 0}})
      for (const int64_t threads : {1, 8}) {
        AttentionCase c{.type = type, .queries = queries, .keys = keys, .threads = threads};
        expect_matches_reference(c);
        c.batch = 0;
        expect_matches_reference(c);
      }
}

TEST_P(AttentionEntropy, OfUniformScoresIsTheLogarithmOfTheVisibleKeys) {
  for (const DataType type : data_types()) {
    AttentionProblem p({.type = type, .queries = 150, .keys = 150});
    p.q.fill(0);
    p.run_forward();
    const double unit = type == DataType::kFloat64 ? 1e-15 : 1e-7;
    for (int64_t i = 0; i < 150; ++i) {
      const double expected = std::log(static_cast<double>(i + 1));
      EXPECT_NEAR(p.entropy.get(0, 0, i), expected, 2 * unit * (1 + expected));
      EXPECT_NEAR(p.logsumexp.get(0, 0, i), expected, 2 * unit * (1 + expected));
    }
  }
}

TEST_P(AttentionEntropy, OfAOneHotRowIsExactlyZero) {
  for (const DataType type : data_types()) {
    // Scores are i * 1000 for key i and 0 for all others.
    AttentionProblem p({.type = type,
                        .queries = 90,
                        .keys = 90,
                        .head_dim = 90,
                        .is_causal = false,
                        .temperature = TemperatureKind::kNone});
    p.q.for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
      p.q.set(b, h, i, d, i == d ? 1e4 : 0);
      p.k.set(b, h, i, d, i == d ? 1 : 0);
    });
    p.run_forward();
    for (const double entropy : p.entropy.values()) EXPECT_EQ(entropy, 0);
    p.out.for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
      EXPECT_EQ(p.out.get(b, h, i, d), p.v.get(b, h, i, d));
    });
  }
}

TEST_P(AttentionEntropy, LiesBetweenZeroAndTheLogarithmOfTheVisibleKeys) {
  for (const DataType type : data_types())
    for (const double deviation : {1e-3, 0.3, 3.0, 30.0}) {
      AttentionProblem p({.type = type, .queries = 200, .keys = 200}, deviation);
      p.run_forward();
      for (int64_t i = 0; i < 200; ++i) {
        EXPECT_GE(p.entropy.get(0, 0, i), 0);
        EXPECT_LE(p.entropy.get(0, 0, i), std::log(static_cast<double>(i + 1)) * (1 + 1e-6) + 1e-7);
      }
    }
}

// A hidden key has a score of -1e30, and 0 times its product with a gradient must stay 0.
TEST_P(AttentionEntropy, HiddenKeysBearHugeGradientsOfEntropy) {
  for (const MaskKind mask : {MaskKind::kNone, MaskKind::kFull, MaskKind::kEmptyRows}) {
    AttentionProblem p({.type = data_type(), .queries = 21, .keys = 29, .mask = mask});
    p.dentropy.fill(1e15);
    p.run_forward();
    p.run_backward();
    for (const Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature})
      for (const double value : gradient->values()) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(AttentionEntropy, PassesNotANumberOn) {
  AttentionProblem p({.type = data_type(), .queries = 70, .keys = 70});
  p.k.set(0, 1, 66, 3, std::numeric_limits<double>::quiet_NaN());
  p.run_forward();
  EXPECT_FALSE(std::isnan(p.out.get(0, 1, 65, 0)));
  for (int64_t i = 66; i < 70; ++i) {
    EXPECT_TRUE(std::isnan(p.out.get(0, 1, i, 0)));
    EXPECT_TRUE(std::isnan(p.entropy.get(0, 1, i)));
  }
}

// 4 groups of keys or columns, 4 vectors of queries or columns, 2 steps of 32 head columns, keys or
// queries: 32 products of registers for each product of attention.
TEST(AttentionEntropyInTileRegisters, MakesAllItsProductsThere) {
  if (!can_emulate_tile_registers()) GTEST_SKIP() << "nothing to count where they are not emulated";
  const EmulatedTileRegisters emulation;
  bfloat16_attention = &EmulatedTileRegisters::attention_kernels();
  AttentionProblem p({.type = DataType::kBFloat16,
                      .heads = 1,
                      .key_heads = 1,
                      .queries = 64,
                      .keys = 64,
                      .head_dim = 64,
                      .is_causal = false,
                      .threads = 1});
  const int64_t before = EmulatedTileRegisters::products();
  p.run_forward();
  EXPECT_EQ(EmulatedTileRegisters::products() - before, 2 * 32);
  p.run_backward();
  EXPECT_EQ(EmulatedTileRegisters::products() - before, 7 * 32);
  bfloat16_attention = nullptr;
}

}  // namespace
}  // namespace aero::kernels::testing
