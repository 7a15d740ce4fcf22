#include "kernels/entropy_regularization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/fixed_order_sum.h"
#include "tests/cpp/kernels/run_kernel.h"

namespace aero::kernels::testing {
namespace {

// Random entropies with everything the kernel reads, in buffers of exactly the needed size.
struct Problem {
  int64_t layers = 2, batch = 3, heads = 2, queries = 5;
  Buffer<double> entropies, thresholds, max_entropy;
  Buffer<uint8_t> row_mask;
  EntropyRegularizationParams params;

  Problem(int64_t l, int64_t b, int64_t h, int64_t t, EntropyReduction reduction, bool masked)
      : layers(l),
        batch(b),
        heads(h),
        queries(t),
        entropies(static_cast<size_t>(l * b * h * t)),
        thresholds(static_cast<size_t>(l * h)),
        max_entropy(static_cast<size_t>(b * t)),
        row_mask(static_cast<size_t>(b * t)) {
    std::mt19937 generator(7);
    std::uniform_real_distribution<double> uniform(0, 2);
    for (double& x : entropies) x = uniform(generator);
    for (double& x : thresholds) x = uniform(generator) / 2;
    for (double& x : max_entropy) x = 0.5 + uniform(generator);
    for (int64_t i = 0; i < b * t; ++i) row_mask[static_cast<size_t>(i)] = uniform(generator) < 1.2;
    for (int64_t i = 0; i < t && b > 1; ++i) row_mask[static_cast<size_t>(i)] = false;
    params.data_type = DataType::kFloat64;
    params.layers = l;
    params.batch = b;
    params.heads = h;
    params.queries = t;
    params.entropies = entropies.data();
    params.entropies_layer_stride = b * h * t;
    params.entropies_strides = {h * t, t, 1};
    params.thresholds = thresholds.data();
    params.max_entropy = max_entropy.data();
    params.max_entropy_batch_stride = t;
    params.max_entropy_row_stride = 1;
    if (masked) {
      params.row_mask = reinterpret_cast<const bool*>(row_mask.data());
      params.row_mask_batch_stride = t;
      params.row_mask_row_stride = 1;
    }
    params.reduction = reduction;
  }

  double loss(int64_t threads = 1, Threads how = Threads::kInTurn) const {
    double result = std::nan("");
    EntropyRegularizationForwardParams forward;
    static_cast<EntropyRegularizationParams&>(forward) = params;
    forward.loss = &result;
    Buffer<unsigned char, 64> workspace = workspace_of(forward, threads);
    run_items(forward, workspace.data(), threads, how);
    cpu::finish(forward, workspace.data());
    return result;
  }

  // The definition, one row at a time.
  double expected_loss() const {
    double sum = 0;
    int64_t used = 0;
    for (int64_t b = 0; b < batch; ++b) {
      int64_t rows = 0;
      for (int64_t i = 0; i < queries; ++i) rows += counts(b, i);
      used += rows > 0;
      for (int64_t l = 0; l < layers; ++l)
        for (int64_t h = 0; h < heads; ++h) {
          double entropy_sum = 0, largest_sum = 0;
          for (int64_t i = 0; i < queries; ++i) {
            if (!counts(b, i)) continue;
            const double e =
                entropies[static_cast<size_t>(((l * batch + b) * heads + h) * queries + i)];
            const double largest = max_entropy[static_cast<size_t>(b * queries + i)];
            entropy_sum += e;
            largest_sum += largest;
            if (params.reduction == EntropyReduction::kPositionSum)
              sum += penalty(l, h, e, largest);
          }
          if (params.reduction == EntropyReduction::kQueryMean && rows)
            sum += penalty(l, h, entropy_sum / static_cast<double>(rows),
                           largest_sum / static_cast<double>(rows));
        }
    }
    const int64_t terms =
        layers * heads * (params.reduction == EntropyReduction::kQueryMean ? used : 1);
    return terms ? sum / static_cast<double>(terms) : 0;
  }

 private:
  bool counts(int64_t b, int64_t i) const {
    return !params.row_mask || row_mask[static_cast<size_t>(b * queries + i)];
  }
  double penalty(int64_t l, int64_t h, double entropy, double largest) const {
    const double deviation = entropy - thresholds[static_cast<size_t>(l * heads + h)] * largest;
    return std::abs(deviation) > params.margin * largest ? deviation * deviation : 0;
  }
};

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
    EXPECT_NEAR(problem.loss(), problem.expected_loss(), 1e-12 * (1 + problem.expected_loss()))
        << l << " " << b << " " << h << " " << t;
  }
}

TEST_P(EntropyRegularization, ThreadsThatRunAtOnceDisturbNothing) {
  const auto& [reduction, masked, isa] = GetParam();
  const Problem problem(3, 2, 5, 131, reduction, masked);
  EXPECT_EQ(problem.loss(2, Threads::kAtOnce), problem.loss(2));
}

TEST_P(EntropyRegularization, LossDoesNotDependOnTheNumberOfThreads) {
  const auto& [reduction, masked, isa] = GetParam();
  const Problem problem(3, 2, 5, 131, reduction, masked);
  for (int64_t threads = 2; threads < 20; threads += 3)
    EXPECT_EQ(problem.loss(1), problem.loss(threads));
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
    const double above = problem.loss();
    x = kept - step;
    const double below = problem.loss();
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
