#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "tests/cpp/kernels/closeness.h"
#include "tests/cpp/kernels/run_kernel.h"
#include "tests/cpp/kernels/temperature_softmax_reference.h"

namespace aero::kernels::testing {
namespace {

const std::vector<DataType> kDataTypes = {DataType::kFloat32, DataType::kBFloat16,
                                          DataType::kFloat16, DataType::kFloat64};

void expect_solved(SoftmaxProblem& p) {
  const SoftmaxCase& c = p.test;
  SCOPED_TRACE(std::string(name_of(c.type)) + " T=" + std::to_string(c.queries) +
               " S=" + std::to_string(c.keys) + " causal=" + std::to_string(c.is_causal) +
               " mask=" + std::to_string(c.has_mask) + " isa=" + cpu::isa_name());
  run_kernel(p.forward_params(), 3);
  run_kernel(p.backward_params(), 3);
  const SoftmaxReference r(p);
  // 2^-n for what is rounded once to n bits; a few roundings of sums elsewhere.
  const bool is_half = c.type == DataType::kBFloat16 || c.type == DataType::kFloat16;
  const double fine = c.type == DataType::kFloat64 ? 1e-13 : 1e-6;
  const double coarse = !is_half ? fine : c.type == DataType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  expect_close("probabilities", p.probabilities.values(), r.probabilities, coarse);
  expect_close("entropy", p.entropy.values(), r.entropy, fine);
  expect_each_close("logsumexp", p.logsumexp.values(), r.logsumexp, fine);
  expect_close("dscores", p.dscores.values(), r.dscores, coarse);
  expect_close("dtemperature", p.dtemperature.values(), r.dtemperature, 10 * fine);
}

void expect_matches_reference(const SoftmaxCase& c) {
  SoftmaxProblem p(c);
  expect_solved(p);
}

/// Every test runs once for each instruction set this machine has.
class TemperatureSoftmax : public ::testing::TestWithParam<std::string> {
 protected:
  ScopedIsa isa_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Isa, TemperatureSoftmax, ::testing::ValuesIn(cpu::available_isa_names()),
                         [](const auto& info) { return info.param; });

TEST_P(TemperatureSoftmax, AgreesWithTheDefinitionsOverAwkwardSizes) {
  for (const DataType type : kDataTypes)
    for (const int64_t queries : {0, 1, 2, 13, 40})
      for (const int64_t keys : {0, 1, 3, 15, 16, 17, 67})
        for (const bool is_causal : {false, true})
          expect_matches_reference(
              {.type = type, .queries = queries, .keys = keys, .is_causal = is_causal});
}

TEST_P(TemperatureSoftmax, AgreesWithTheDefinitionsForEveryMaskAndLayout) {
  for (const DataType type : kDataTypes)
    for (const bool has_mask : {false, true})
      for (const bool is_causal : {false, true})
        for (const bool has_temperature : {false, true})
          for (const Order order : {Order::kHeadMajor, Order::kRowMajor, Order::kPadded})
            expect_matches_reference({.type = type,
                                      .queries = 21,
                                      .keys = 37,
                                      .is_causal = is_causal,
                                      .has_mask = has_mask,
                                      .has_temperature = has_temperature,
                                      .order = order});
}

TEST_P(TemperatureSoftmax, PassesNothingOnOfWhatComesBackToKeysThatAreNotSeen) {
  for (const DataType type : kDataTypes)
    for (const bool has_mask : {false, true})
      for (const int64_t queries : {9, 60})  // more than keys, or as many
        for (const double value : {std::nan(""), -std::numeric_limits<double>::infinity()})
          expect_matches_reference({.type = type,
                                    .queries = queries,
                                    .keys = 40,
                                    .has_mask = has_mask,
                                    .to_hidden = value});
}

TEST_P(TemperatureSoftmax, TakesAMaskWhoseKeysLieApart) {
  for (const DataType type : kDataTypes)
    expect_matches_reference(
        {.type = type, .queries = 21, .keys = 37, .has_mask = true, .has_key_major_mask = true});
}

TEST_P(TemperatureSoftmax, HidesAScoreOfMinusInfinityWhateverTheSignOfTheTemperature) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DataType type : kDataTypes)
    for (const bool has_temperature : {false, true}) {
      SoftmaxProblem p(
          {.type = type, .queries = 21, .keys = 37, .has_temperature = has_temperature});
      p.scores.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
        if ((i + j) % 3 == 0 || i == 4) p.scores.set(b, h, i, j, -kInfinity);
      });
      expect_solved(p);
    }
}

TEST_P(TemperatureSoftmax, IsNanInARowThatSeesPlusInfinity) {
  for (const DataType type : kDataTypes) {
    SoftmaxProblem p({.type = type, .queries = 3, .keys = 37, .is_causal = false});
    for (const int64_t head : {0, 1})  // of a positive temperature and a negative one
      p.scores.set(0, head, 1, 20, std::numeric_limits<double>::infinity());
    run_kernel(p.forward_params(), 3);
    p.entropy.for_each([&](int64_t b, int64_t h, int64_t i, int64_t) {
      const bool expected = b == 0 && i == 1;
      EXPECT_EQ(std::isnan(p.entropy.get(b, h, i, 0)), expected) << b << h << i;
      EXPECT_EQ(std::isnan(p.logsumexp.get(b, h, i, 0)), expected) << b << h << i;
      for (const int64_t key : {0, 20, 36})
        EXPECT_EQ(std::isnan(p.probabilities.get(b, h, i, key)), expected) << b << h << i;
    });
  }
}

TEST_P(TemperatureSoftmax, DividesScoresAsLargeAsTheirTypeBeforeTheyAreSubtracted) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat64}) {
    const double largest = type == DataType::kFloat64 ? 0x1p1023 : 0x1p127;
    SoftmaxProblem p({.type = type, .queries = 21, .keys = 37, .temperature = largest / 2});
    p.scores.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      p.scores.set(b, h, i, j, (i + j) % 3 == 0 ? largest : -largest);
    });
    run_kernel(p.forward_params(), 3);
    const SoftmaxReference r(p);
    const double fine = type == DataType::kFloat64 ? 1e-13 : 1e-6;
    const double coarse = type == DataType::kBFloat16 ? 0x1p-8 : fine;
    expect_close("probabilities", p.probabilities.values(), r.probabilities, coarse);
    expect_close("entropy", p.entropy.values(), r.entropy, fine);
    expect_each_close("logsumexp", p.logsumexp.values(), r.logsumexp, fine);
  }
}

TEST_P(TemperatureSoftmax, NeverTouchesWhatLiesBesideItsTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    for (const DataType type : kDataTypes)
      for (const int64_t keys : {1, 16, 37, 67})
        for (const bool has_mask : {false, true})
          for (const Order order : {Order::kHeadMajor, Order::kRowMajor, Order::kPadded})
            expect_matches_reference({.type = type,
                                      .queries = 13,
                                      .keys = keys,
                                      .is_causal = has_mask,
                                      .has_mask = has_mask,
                                      .order = order});
  }
}

TEST_P(TemperatureSoftmax, ThreadsThatRunAtOnceDisturbNothing) {
  for (const DataType type : kDataTypes) {
    const SoftmaxCase c{.type = type, .queries = 40, .keys = 67, .has_mask = true};
    SoftmaxProblem alone(c), at_once(c);
    run_kernel(alone.forward_params(), 3);
    run_kernel(alone.backward_params(), 3);
    run_kernel_at_once(at_once.forward_params(), 2);
    run_kernel_at_once(at_once.backward_params(), 2);
    EXPECT_EQ(alone.probabilities.values(), at_once.probabilities.values());
    EXPECT_EQ(alone.entropy.values(), at_once.entropy.values());
    EXPECT_EQ(alone.dscores.values(), at_once.dscores.values());
    EXPECT_EQ(alone.dtemperature.values(), at_once.dtemperature.values());
  }
}

TEST_P(TemperatureSoftmax, TakesEverySubsetOfIncomingGradients) {
  for (const DataType type : kDataTypes)
    for (int used = 0; used < 8; ++used) {
      SoftmaxCase c{.type = type, .queries = 21, .keys = 37};
      c.has_dprobabilities = used & 1, c.has_dentropy = used & 2, c.has_dlogsumexp = used & 4;
      expect_matches_reference(c);
    }
}

TEST_P(TemperatureSoftmax, HasTheLogarithmOfTheVisibleKeysAsEntropyForUniformScores) {
  for (const DataType type : kDataTypes) {
    SoftmaxProblem p({.type = type, .queries = 130, .keys = 130});
    p.scores.fill(-3);
    run_kernel(p.forward_params(), 3);
    for (int64_t i = 0; i < 130; ++i) {
      const double expected = std::log(static_cast<double>(i + 1));
      EXPECT_NEAR(p.entropy.get(1, 1, i), expected, 3e-7 * (1 + expected));
    }
  }
}

TEST_P(TemperatureSoftmax, HasEntropyExactlyZeroForAOneHotRow) {
  SoftmaxProblem p({.queries = 50, .keys = 50, .is_causal = false, .has_temperature = false});
  p.scores.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    p.scores.set(b, h, i, j, i == j ? 1e3 : 0);
  });
  run_kernel(p.forward_params(), 3);
  for (const double entropy : p.entropy.values()) EXPECT_EQ(entropy, 0);
}

}  // namespace
}  // namespace aero::kernels::testing
