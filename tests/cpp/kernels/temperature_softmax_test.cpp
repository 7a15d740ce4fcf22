#include "kernels/temperature_softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "tests/cpp/kernels/run_kernel.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::testing {
namespace {

const std::vector<DataType> kDataTypes = {DataType::kFloat32, DataType::kBFloat16,
                                          DataType::kFloat16, DataType::kFloat64};

struct SoftmaxCase {
  DataType type = DataType::kFloat32;
  int64_t queries = 7, keys = 7;
  bool is_causal = true, has_mask = false, has_temperature = true;
  Order order = Order::kHeadMajor;
  bool has_dprobabilities = true, has_dentropy = true, has_dlogsumexp = true;
  double temperature = 0.7;  ///< of head 0; head 1 has its negative
};

/// Inputs, outputs and gradients of one case; B = H = 2.
struct SoftmaxProblem {
  explicit SoftmaxProblem(const SoftmaxCase& c)
      : test(c),
        scores(c.type, 2, 2, c.queries, c.keys, c.order),
        temperature(statistic_type(c.type), 2, 2, c.queries, 1),
        probabilities(scores),
        entropy(temperature),
        logsumexp(temperature),
        statistics(statistic_type(c.type), 2, 2, 3, c.queries),
        dprobabilities(scores),
        dentropy(temperature),
        dlogsumexp(temperature),
        dscores(scores),
        dtemperature(temperature),
        mask(static_cast<size_t>(2 * c.queries * c.keys), 1) {
    std::mt19937 generator(23);
    for (Tensor* input : {&scores, &dprobabilities, &dentropy, &dlogsumexp})
      input->fill_normal(generator);
    temperature.for_each([&](int64_t b, int64_t h, int64_t i, int64_t) {
      const double magnitude = c.temperature * (1 + 0.1 * static_cast<double>(i % 4));
      temperature.set(b, h, i, 0, h == 0 ? magnitude : -magnitude);
    });
    // Every third row sees nothing.
    for (size_t n = 0; c.has_mask && n < mask.size(); ++n)
      mask[n] = n / static_cast<size_t>(c.keys) % 3 != 1 && generator() % 3 != 0;
  }
  bool visible(int64_t b, int64_t i, int64_t j) const {
    return (!test.is_causal || j <= i + test.keys - test.queries) &&
           mask[static_cast<size_t>((b * test.queries + i) * test.keys + j)];
  }
  double temperature_at(int64_t b, int64_t h, int64_t i) const {
    return test.has_temperature ? temperature.get(b, h, i) : 1;
  }
  void fill_params(TemperatureSoftmaxParams& p) {
    p.data_type = test.type;
    p.batch = p.heads = 2;
    p.queries = test.queries, p.keys = test.keys;
    p.scores = scores.data(), p.scores_strides = scores.strides();
    p.is_causal = test.is_causal;
    if (test.has_temperature)
      p.temperature = temperature.data(), p.temperature_strides = temperature.strides();
    if (test.has_mask) {
      p.mask = reinterpret_cast<const bool*>(mask.data());
      p.mask_strides = {test.queries * test.keys, 0, test.keys, 1};
    }
  }
  TemperatureSoftmaxForwardParams forward_params() {
    TemperatureSoftmaxForwardParams p;
    fill_params(p);
    p.probabilities = probabilities.data(), p.probabilities_strides = probabilities.strides();
    p.entropy = entropy.data(), p.logsumexp = logsumexp.data();
    p.statistics = statistics.data();
    return p;
  }
  TemperatureSoftmaxBackwardParams backward_params() {
    TemperatureSoftmaxBackwardParams p;
    fill_params(p);
    p.statistics = statistics.data();
    if (test.has_dprobabilities)
      p.dprobabilities = dprobabilities.data(), p.dprobabilities_strides = dprobabilities.strides();
    if (test.has_dentropy) p.dentropy = dentropy.data();
    if (test.has_dlogsumexp) p.dlogsumexp = dlogsumexp.data();
    p.dscores = dscores.data(), p.dscores_strides = dscores.strides();
    p.dtemperature = dtemperature.data();
    return p;
  }
  void run_forward() { run_kernel(forward_params(), 3); }
  void run_backward() { run_kernel(backward_params(), 3); }

  SoftmaxCase test;
  Tensor scores, temperature, probabilities, entropy, logsumexp, statistics;
  Tensor dprobabilities, dentropy, dlogsumexp, dscores, dtemperature;
  Buffer<uint8_t> mask;  ///< [B, T, S]
};

/// The definitions in double.
struct SoftmaxReference {
  std::vector<double> probabilities, entropy, logsumexp, dscores, dtemperature;

  explicit SoftmaxReference(const SoftmaxProblem& p) {
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < p.test.queries; ++i) row(p, b, h, i);
  }

 private:
  void row(const SoftmaxProblem& p, int64_t b, int64_t h, int64_t i) {
    const double t = p.temperature_at(b, h, i);
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < p.test.keys; ++j)
      if (p.visible(b, i, j)) maximum = std::max(maximum, p.scores.get(b, h, i, j) / t);
    for (int64_t j = 0; j < p.test.keys; ++j)
      if (p.visible(b, i, j)) sum += std::exp(p.scores.get(b, h, i, j) / t - maximum);
    const double lse = maximum + (sum > 0 ? std::log(sum) : 0);
    std::vector<double> probability(static_cast<size_t>(p.test.keys));
    double row_entropy = 0, expected = 0, dt = 0;
    for (int64_t j = 0; j < p.test.keys; ++j) {
      if (!p.visible(b, i, j)) continue;
      const double log_p = p.scores.get(b, h, i, j) / t - lse;
      probability[static_cast<size_t>(j)] = std::exp(log_p);
      row_entropy -= std::exp(log_p) * log_p;
      if (p.test.has_dprobabilities) expected += std::exp(log_p) * p.dprobabilities.get(b, h, i, j);
    }
    const double ge = p.test.has_dentropy ? p.dentropy.get(b, h, i) : 0;
    const double gl = p.test.has_dlogsumexp ? p.dlogsumexp.get(b, h, i) : 0;
    for (int64_t j = 0; j < p.test.keys; ++j) {
      double ds = 0;
      if (p.visible(b, i, j)) {
        const double s = p.scores.get(b, h, i, j) / t;
        const double dp = p.test.has_dprobabilities ? p.dprobabilities.get(b, h, i, j) : 0;
        ds = probability[static_cast<size_t>(j)] *
             (dp - expected - ge * (s - lse + row_entropy) + gl);
        dt -= ds * s / t;
      }
      dscores.push_back(ds / t);
    }
    probabilities.insert(probabilities.end(), probability.begin(), probability.end());
    entropy.push_back(row_entropy);
    logsumexp.push_back(lse);
    dtemperature.push_back(dt);
  }
};

void expect_matches_reference(const SoftmaxCase& c) {
  SCOPED_TRACE(std::string(name_of(c.type)) + " T=" + std::to_string(c.queries) +
               " S=" + std::to_string(c.keys) + " causal=" + std::to_string(c.is_causal) +
               " mask=" + std::to_string(c.has_mask) + " isa=" + cpu::isa_name());
  SoftmaxProblem p(c);
  p.run_forward();
  p.run_backward();
  const SoftmaxReference r(p);
  // 2^-n for what is rounded once to n bits; a few roundings of sums elsewhere.
  const bool is_half = c.type == DataType::kBFloat16 || c.type == DataType::kFloat16;
  const double fine = c.type == DataType::kFloat64 ? 1e-13 : 1e-6;
  const double coarse = !is_half ? fine : c.type == DataType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  EXPECT_LE(relative_error(p.probabilities.values(), r.probabilities), coarse);
  EXPECT_LE(relative_error(p.entropy.values(), r.entropy), fine);
  EXPECT_LE(relative_error(p.dscores.values(), r.dscores), coarse);
  EXPECT_LE(relative_error(p.dtemperature.values(), r.dtemperature), 10 * fine);
  const std::vector<double> lse = p.logsumexp.values();
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(r.logsumexp[i]))
      EXPECT_EQ(lse[i], r.logsumexp[i]);
    else
      EXPECT_NEAR(lse[i], r.logsumexp[i], fine * (1 + std::abs(r.logsumexp[i])));
  }
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
    alone.run_forward();
    alone.run_backward();
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
    p.run_forward();
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
  p.run_forward();
  for (const double entropy : p.entropy.values()) EXPECT_EQ(entropy, 0);
}

}  // namespace
}  // namespace aero::kernels::testing
