// The CUDA passes of entropy_regularization on an emulated GPU, against the definition in double.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/entropy_regularization_passes.h"
#include "tests/cpp/kernels/cuda/emulation.h"
#include "tests/cpp/kernels/entropy_regularization_reference.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;  // the problems and their reference
using Problem = EntropyProblem<float>;

/// Does a call as the launcher would, with NaN in what nobody has written yet.
float loss_of(const Problem& problem) {
  float loss = std::nanf("");
  EntropyRegularizationForwardParams params;
  static_cast<EntropyRegularizationParams&>(params) = problem.params;
  params.loss = &loss;
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(EntropyPenaltyParams::bytes(params)),
                                      0xff);
  const EntropyPenaltyParams with_workspace(params, workspace.data());
  *with_workspace.arrived = 0;
  Trace trace;
  run_pass<EntropyPenaltyPass>(with_workspace, trace);
  EXPECT_EQ(trace.conflicts.loads + trace.conflicts.stores, 0);
  return loss;
}

struct Gradients {
  std::vector<double> dentropies, dthresholds;

  Gradients(const Problem& problem, float dloss) {
    constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
    Buffer<float> entropies(problem.entropies.size(), kUnwritten);
    Buffer<float> thresholds(problem.thresholds.size(), kUnwritten);
    EntropyRegularizationBackwardParams params;
    static_cast<EntropyRegularizationParams&>(params) = problem.params;
    params.dloss = &dloss;
    params.dentropies = entropies.data();
    params.dthresholds = thresholds.data();
    Trace trace;
    run_pass<EntropyGradientPass>(params, trace);
    dentropies.assign(entropies.begin(), entropies.end());
    dthresholds.assign(thresholds.begin(), thresholds.end());
  }
};

/// Terms are rounded a few times and sums in trees of them.
constexpr double kTolerance = 16 * 0x1p-24;

void expect_emulation_matches(const Problem& problem) {
  const EntropyReference expected(problem);
  EXPECT_NEAR(loss_of(problem), expected.loss, kTolerance * (1 + expected.loss));
  const Gradients gradients(problem, 2.0f);
  std::vector<double> dentropies = expected.dentropies, dthresholds = expected.dthresholds;
  for (double& x : dentropies) x *= 2;
  for (double& x : dthresholds) x *= 2;
  EXPECT_LE(relative_error(gradients.dentropies, dentropies), kTolerance);
  EXPECT_LE(relative_error(gradients.dthresholds, dthresholds), kTolerance);
}

class CudaEntropyRegularization
    : public ::testing::TestWithParam<std::tuple<EntropyReduction, bool>> {};
INSTANTIATE_TEST_SUITE_P(Reductions, CudaEntropyRegularization,
                         ::testing::Combine(::testing::Values(EntropyReduction::kPositionSum,
                                                              EntropyReduction::kQueryMean),
                                            ::testing::Bool()));

TEST_P(CudaEntropyRegularization, IsItsDefinitionForEverySize) {
  const auto& [reduction, masked] = GetParam();
  for (const auto& [l, b, h, t] : std::vector<std::array<int64_t, 4>>{{2, 3, 2, 5},
                                                                      {1, 1, 1, 1},
                                                                      {3, 2, 5, 131},
                                                                      {1, 19, 1, 33},
                                                                      {1, 2, 1, 1500},
                                                                      {0, 3, 2, 5},
                                                                      {2, 0, 2, 5},
                                                                      {2, 3, 0, 5},
                                                                      {2, 3, 2, 0}}) {
    SCOPED_TRACE(std::to_string(l) + " " + std::to_string(b) + " " + std::to_string(h) + " " +
                 std::to_string(t));
    expect_emulation_matches(Problem(l, b, h, t, reduction, masked));
  }
}

TEST_P(CudaEntropyRegularization, TakesBroadcastLimitsAndRowsThatLieApart) {
  const auto& [reduction, masked] = GetParam();
  Problem problem(2, 3, 2, 37, reduction, masked);
  // One largest entropy for all rows, as log_context has it.
  for (float& x : problem.max_entropy) x = problem.max_entropy[0];
  problem.params.max_entropy.strides = {};
  expect_emulation_matches(problem);

  // The same entropies with every row two elements behind the one before.
  Buffer<float> apart(2 * problem.entropies.size(), std::numeric_limits<float>::quiet_NaN());
  for (size_t n = 0; n < problem.entropies.size(); ++n) apart[2 * n] = problem.entropies[n];
  problem.params.entropies.data = apart.data();
  Strides& strides = problem.params.entropies.strides;
  for (int64_t* stride : {&strides.layer, &strides.batch, &strides.head, &strides.row})
    *stride *= 2;
  expect_emulation_matches(problem);
}

TEST_P(CudaEntropyRegularization, TouchesNothingBesideItsTensors) {
  const auto& [reduction, masked] = GetParam();
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    expect_emulation_matches(Problem(2, 3, 2, 37, reduction, masked));
  }
}

TEST_P(CudaEntropyRegularization, ReadsNoRowThatDoesNotCount) {
  const auto& [reduction, masked] = GetParam();
  Problem problem(2, 3, 2, 37, reduction, true);
  const EntropyReference expected(problem);
  for (int64_t l = 0; l < 2; ++l)
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < 37; ++i)
          if (!problem.counts(b, i))
            problem.entropies[static_cast<size_t>(((l * 3 + b) * 2 + h) * 37 + i)] =
                std::numeric_limits<float>::quiet_NaN();
  EXPECT_NEAR(loss_of(problem), expected.loss, kTolerance * (1 + expected.loss));
  const Gradients gradients(problem, 1.0f);
  EXPECT_LE(relative_error(gradients.dentropies, expected.dentropies), kTolerance);
}

TEST_P(CudaEntropyRegularization, IsZeroForEntropiesExactlyOnTheMargin) {
  const auto& [reduction, masked] = GetParam();
  for (const float threshold : {0.0f, 1.0f}) {  // above it, and below
    Problem problem(1, 2, 1, 64, reduction, masked);
    for (float& x : problem.entropies) x = 1;
    for (float& x : problem.max_entropy) x = 2;
    problem.thresholds[0] = threshold;
    problem.params.margin = 0.5;
    EXPECT_EQ(loss_of(problem), 0);
    for (const double gradient : Gradients(problem, 1.0f).dentropies) EXPECT_EQ(gradient, 0);
    problem.params.margin = 0.499;
    EXPECT_GT(loss_of(problem), 0);
  }
}

TEST_P(CudaEntropyRegularization, WithoutExcessPassesNothingOnWhateverComesBack) {
  const auto& [reduction, masked] = GetParam();
  Problem problem(2, 3, 2, 37, reduction, masked);
  problem.params.margin = 10;
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Gradients gradients(problem, value);
    for (const double gradient : gradients.dentropies) EXPECT_EQ(gradient, 0);
    for (const double gradient : gradients.dthresholds) EXPECT_EQ(gradient, 0);
  }
}

TEST_P(CudaEntropyRegularization, PassesNotANumberOn) {
  const auto& [reduction, masked] = GetParam();
  Problem problem(2, 2, 2, 5, reduction, false);
  problem.entropies[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(loss_of(problem)));
  const Gradients gradients(problem, 1.0f);
  EXPECT_TRUE(std::isnan(gradients.dentropies[3]));
  EXPECT_TRUE(std::isnan(gradients.dthresholds[0]));
  EXPECT_FALSE(std::isnan(gradients.dthresholds[1]));
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
