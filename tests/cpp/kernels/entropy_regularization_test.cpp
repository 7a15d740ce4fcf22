#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/fixed_order_sum.h"
#include "tests/cpp/kernels/entropy_regularization_reference.h"
#include "tests/cpp/kernels/run_kernel.h"

namespace aero::kernels::testing {
namespace {

using Problem = EntropyProblem<double>;

double loss_of(const Problem& problem, int64_t threads = 1, Threads how = Threads::kInTurn) {
  double result = std::nan("");
  EntropyRegularizationForwardParams forward;
  static_cast<EntropyRegularizationParams&>(forward) = problem.params;
  forward.loss = &result;
  Buffer<unsigned char, 64> workspace = workspace_of(forward, threads);
  run_items(forward, workspace.data(), threads, how);
  cpu::finish(forward, workspace.data());
  return result;
}

/// Every test runs once for each instruction set this machine has.
class EntropyRegularization
    : public ::testing::TestWithParam<std::tuple<EntropyReduction, bool, std::string>> {
 protected:
  ScopedIsa isa_{std::get<2>(GetParam())};
};

TEST_P(EntropyRegularization, LossIsItsDefinitionForEverySize) {
  const auto& [reduction, masked, isa] = GetParam();
  for (const auto& [l, b, h, t] : std::vector<std::array<int64_t, 4>>{{2, 3, 2, 5},
                                                                      {1, 1, 1, 1},
                                                                      {3, 2, 5, 131},
                                                                      {1, 2, 1, 1500},
                                                                      {0, 3, 2, 5},
                                                                      {2, 0, 2, 5},
                                                                      {2, 3, 0, 5},
                                                                      {2, 3, 2, 0}}) {
    const Problem problem(l, b, h, t, reduction, masked);
    const double expected = EntropyReference(problem).loss;
    EXPECT_NEAR(loss_of(problem), expected, 1e-12 * (1 + expected))
        << l << " " << b << " " << h << " " << t;
  }
}

TEST_P(EntropyRegularization, TheLargestEntropiesMayLieAtAnyStride) {
  const auto& [reduction, masked, isa] = GetParam();
  for (const auto& [batch_stride, row_stride] :
       std::vector<std::array<int64_t, 2>>{{1, 0}, {0, 0}, {0, 1}, {1, 2}}) {
    Problem problem(2, 3, 2, 37, reduction, masked);
    problem.params.max_entropy.strides = {.batch = batch_stride, .row = row_stride};
    const double expected = EntropyReference(problem).loss;
    EXPECT_NEAR(loss_of(problem), expected, 1e-12 * (1 + expected))
        << batch_stride << " " << row_stride;
  }
}

TEST_P(EntropyRegularization, ARowOnTheEdgeOfTheBandCostsNothing) {
  const auto& [reduction, masked, isa] = GetParam();
  // Exact in binary: the band around 0.5 * 2 is 0.25 * 2 wide on either side.
  for (const auto& [entropy, penalty] :
       std::vector<std::array<double, 2>>{{1.5, 0}, {0.5, 0}, {1.75, 0.5625}, {0.25, 0.5625}}) {
    Problem problem(1, 1, 1, 16, reduction, false);
    std::fill(problem.entropies.begin(), problem.entropies.end(), entropy);
    std::fill(problem.max_entropy.begin(), problem.max_entropy.end(), 2.0);
    problem.thresholds[0] = 0.5;
    problem.params.margin = 0.25;
    const double rows = reduction == EntropyReduction::kPositionSum ? 16 : 1;
    EXPECT_EQ(loss_of(problem), rows * penalty) << entropy;
  }
}

TEST_P(EntropyRegularization, ThreadsThatRunAtOnceDisturbNothing) {
  const auto& [reduction, masked, isa] = GetParam();
  const Problem problem(3, 2, 5, 131, reduction, masked);
  EXPECT_EQ(loss_of(problem, 2, Threads::kAtOnce), loss_of(problem, 2));
}

TEST_P(EntropyRegularization, LossDoesNotDependOnTheNumberOfThreads) {
  const auto& [reduction, masked, isa] = GetParam();
  const Problem problem(3, 2, 5, 131, reduction, masked);
  for (int64_t threads = 2; threads < 20; threads += 3)
    EXPECT_EQ(loss_of(problem, 1), loss_of(problem, threads));
}

void expect_gradients_are_difference_quotients(EntropyReduction reduction, bool masked,
                                               int64_t queries = 5) {
  Problem problem(2, 3, 2, queries, reduction, masked);
  const double dloss = 1.5;
  Buffer<double> dentropies(problem.entropies.size(), std::nan(""));
  Buffer<double> dthresholds(problem.thresholds.size(), std::nan(""));
  EntropyRegularizationBackwardParams backward;
  static_cast<EntropyRegularizationParams&>(backward) = problem.params;
  backward.dloss = &dloss;
  backward.dentropies = dentropies.data();
  backward.dthresholds = dthresholds.data();
  run_kernel(backward, 2);

  // The penalty is a piecewise square, so the symmetric quotient is exact but for rounding.
  const auto quotient = [&](double& x) {
    const double kept = x, step = 1e-6;
    x = kept + step;
    const double above = loss_of(problem);
    x = kept - step;
    const double below = loss_of(problem);
    x = kept;
    return dloss * (above - below) / (2 * step);
  };
  // The loss is a sum over the queries, and the step divides its rounding.
  const double tolerance = 2e-9 * static_cast<double>(queries);
  for (size_t i = 0; i < dentropies.size(); ++i)
    EXPECT_NEAR(dentropies[i], quotient(problem.entropies[i]), tolerance) << i;
  for (size_t i = 0; i < dthresholds.size(); ++i)
    EXPECT_NEAR(dthresholds[i], quotient(problem.thresholds[i]), tolerance) << i;
}

TEST_P(EntropyRegularization, GradientsAreDifferenceQuotients) {
  const auto& [reduction, masked, isa] = GetParam();
  for (const int64_t queries : {5, 37})
    expect_gradients_are_difference_quotients(reduction, masked, queries);
}

TEST_P(EntropyRegularization, NeverTouchesWhatLiesBesideItsTensors) {
  const auto& [reduction, masked, isa] = GetParam();
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    expect_gradients_are_difference_quotients(reduction, masked);
  }
}

INSTANTIATE_TEST_SUITE_P(Reductions, EntropyRegularization,
                         ::testing::Combine(::testing::Values(EntropyReduction::kPositionSum,
                                                              EntropyReduction::kQueryMean),
                                            ::testing::Bool(),
                                            ::testing::ValuesIn(cpu::available_isa_names())));

TEST(FixedOrderSum, AddsEveryTermOnceAndLosesLittle) {
  for (const int64_t count : {0, 1, 15, 16, 17, 511, 512, 513, 1023, 1025, 100000}) {
    EXPECT_EQ(cpu::fixed_order_sum<double>(count, [](int64_t i) { return double(i); }),
              static_cast<double>(count) * static_cast<double>(count - 1) / 2);
  }
  // 0.1 is not a float: a running sum of a million of them is off by 1 %, the pairwise one by the
  // rounding of a few dozen additions.
  const float sum = cpu::fixed_order_sum<float>(1000000, [](int64_t) { return 0.1f; });
  EXPECT_NEAR(sum, 100000, 0.5);
}

}  // namespace
}  // namespace aero::kernels::testing
