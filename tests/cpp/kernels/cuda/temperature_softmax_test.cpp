// The CUDA passes of temperature_softmax on an emulated GPU, against the definitions in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/temperature_softmax_passes.h"
#include "tests/cpp/kernels/closeness.h"
#include "tests/cpp/kernels/cuda/emulation.h"
#include "tests/cpp/kernels/sparse_memory.h"
#include "tests/cpp/kernels/temperature_softmax_reference.h"

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;  // the problems and their reference

const std::vector<DataType> kTypes = {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32};

/// Does a call as the launcher would.
template <class Params>
Trace run_emulated(const Params& params) {
  Trace trace;
  const auto run = [&]<class Element>(Element) {
    with_softmax_pass<Element>(
        params, [&](auto chosen) { run_pass<typename decltype(chosen)::Pass>(params, trace); });
  };
  if (params.data_type == DataType::kBFloat16) run(BFloat16{});
  if (params.data_type == DataType::kFloat16) run(Float16{});
  if (params.data_type == DataType::kFloat32) run(Float32{});
  return trace;
}

void expect_right(const SoftmaxCase& c, const SoftmaxProblem& p) {
  const SoftmaxReference r(p);
  // Powers of two are off by up to 2^-22, and so is x, which is rounded three times and below 8
  // where weights count.
  const double fine = 8 * 0x1p-22;
  const double coarse = c.type == DataType::kFloat32    ? fine
                        : c.type == DataType::kBFloat16 ? 0x1p-8
                                                        : 0x1p-11;
  expect_close("probabilities", p.probabilities.values(), r.probabilities, coarse);
  expect_close("entropy", p.entropy.values(), r.entropy, fine);
  expect_each_close("logsumexp", p.logsumexp.values(), r.logsumexp, fine);
  expect_close("dscores", p.dscores.values(), r.dscores, coarse);
  expect_close("dtemperature", p.dtemperature.values(), r.dtemperature, 4 * fine);
}

void expect_emulation_matches(const SoftmaxCase& c) {
  SCOPED_TRACE(std::string(name_of(c.type)) + " T=" + std::to_string(c.queries) +
               " S=" + std::to_string(c.keys) + " causal=" + std::to_string(c.is_causal) +
               " mask=" + std::to_string(c.has_mask));
  SoftmaxProblem p(c);
  for (const Trace& trace : {run_emulated(p.forward_params()), run_emulated(p.backward_params())}) {
    EXPECT_EQ(trace.conflicts.loads, 0);
    EXPECT_EQ(trace.conflicts.stores, 0);
  }
  expect_right(c, p);
}

TEST(CudaTemperatureSoftmax, AgreesWithTheDefinitionsOverAwkwardSizes) {
  for (const DataType type : kTypes)
    for (const int64_t queries : {0, 1, 2, 13})
      for (const int64_t keys : {0, 1, 3, 8, 15, 16, 67})
        for (const bool is_causal : {false, true})
          expect_emulation_matches(
              {.type = type, .queries = queries, .keys = keys, .is_causal = is_causal});
}

// Rows end in the middle of a warp's chunks, of its registers, and of a block's.
TEST(CudaTemperatureSoftmax, AgreesWithTheDefinitionsForRowsOfEveryLength) {
  for (const DataType type : kTypes)
    for (const int64_t keys : {130, 511, 513, 1024, 1025, 2048, 4099})
      expect_emulation_matches(
          {.type = type, .queries = 3, .keys = keys, .is_causal = keys % 2 != 0});
}

// One pass after another over the same rows, with masks that hide whole parts of them.
template <class Element, int kWarps>
void expect_parts_are_put_together(int64_t keys, bool has_mask) {
  SCOPED_TRACE(std::to_string(keys) + " keys");
  const SoftmaxCase c{.type = Element::kDataType, .queries = 4, .keys = keys, .has_mask = has_mask};
  SoftmaxProblem p(c);
  for (int64_t n = 0; has_mask && n < keys / 2; ++n) p.mask[static_cast<size_t>(3 * keys + n)] = 0;
  Trace trace;
  run_pass<SoftmaxForwardPass<Element, kWarps>>(p.forward_params(), trace);
  run_pass<SoftmaxBackwardPass<Element, kWarps>>(p.backward_params(), trace);
  expect_right(c, p);
}

TEST(CudaTemperatureSoftmax, AgreesWithTheDefinitionsForRowsBeyondTheRegisters) {
  for (const bool has_mask : {false, true}) {
    expect_parts_are_put_together<Float32, 1>(1100, has_mask);
    expect_parts_are_put_together<BFloat16, 1>(2056, has_mask);
    expect_parts_are_put_together<Float16, 8>(8200, has_mask);
    expect_parts_are_put_together<Float32, 8>(4097, has_mask);
  }
}

TEST(CudaTemperatureSoftmax, AgreesWithTheDefinitionsForEveryMaskAndLayout) {
  for (const DataType type : kTypes)
    for (const bool has_mask : {false, true})
      for (const bool is_causal : {false, true})
        for (const bool has_temperature : {false, true})
          for (const Order order : {Order::kHeadMajor, Order::kRowMajor, Order::kPadded})
            for (const int64_t keys : {37, 40})
              expect_emulation_matches({.type = type,
                                        .queries = 11,
                                        .keys = keys,
                                        .is_causal = is_causal,
                                        .has_mask = has_mask,
                                        .has_temperature = has_temperature,
                                        .order = order});
}

TEST(CudaTemperatureSoftmax, PassesNothingOnOfWhatComesBackToKeysThatAreNotSeen) {
  for (const DataType type : kTypes)
    for (const bool has_mask : {false, true})
      for (const int64_t queries : {9, 60})  // more than keys, or as many
        for (const double value : {std::nan(""), -std::numeric_limits<double>::infinity()})
          expect_emulation_matches({.type = type,
                                    .queries = queries,
                                    .keys = 40,
                                    .has_mask = has_mask,
                                    .to_hidden = value});
}

TEST(CudaTemperatureSoftmax, TouchesNothingBesideItsTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    for (const DataType type : kTypes)
      for (const int64_t keys : {1, 16, 37})
        for (const bool has_mask : {false, true})
          for (const Order order : {Order::kHeadMajor, Order::kPadded})
            expect_emulation_matches({.type = type,
                                      .queries = 5,
                                      .keys = keys,
                                      .is_causal = has_mask,
                                      .has_mask = has_mask,
                                      .order = order});
  }
}

TEST(CudaTemperatureSoftmax, TakesEverySubsetOfIncomingGradients) {
  for (const DataType type : kTypes)
    for (int used = 0; used < 8; ++used) {
      SoftmaxCase c{.type = type, .queries = 9, .keys = 37};
      c.has_dprobabilities = used & 1, c.has_dentropy = used & 2, c.has_dlogsumexp = used & 4;
      expect_emulation_matches(c);
    }
}

TEST(CudaTemperatureSoftmax, WritesOnlyTheGradientsAskedFor) {
  for (int asked = 0; asked < 4; ++asked) {
    SoftmaxProblem p({.queries = 9, .keys = 21});
    run_emulated(p.forward_params());
    TemperatureSoftmaxBackwardParams params = p.backward_params();
    if (!(asked & 1)) params.dscores = {};
    if (!(asked & 2)) params.dtemperature = nullptr;
    run_emulated(params);
    const SoftmaxReference r(p);
    EXPECT_EQ(std::isnan(p.dscores.get(1, 1, 8, 0)), !params.dscores);
    EXPECT_EQ(std::isnan(p.dtemperature.get(1, 1, 8)), params.dtemperature == nullptr);
    const double dscores_error = relative_error(p.dscores.values(), r.dscores);
    const double dtemperature_error = relative_error(p.dtemperature.values(), r.dtemperature);
    EXPECT_TRUE(!params.dscores || dscores_error <= 2e-6);
    EXPECT_TRUE(!params.dtemperature || dtemperature_error <= 8e-6);
  }
}

TEST(CudaTemperatureSoftmax, KeepsItsDigitsAtASmallTemperature) {
  for (const DataType type : kTypes) {
    const SoftmaxCase c{.type = type, .queries = 40, .keys = 40, .temperature = 0.01};
    SoftmaxProblem p(c);
    run_emulated(p.forward_params());
    run_emulated(p.backward_params());
    const SoftmaxReference r(p);
    // x is a hundred times larger, and so is what its roundings do to weights.
    EXPECT_LE(relative_error(p.entropy.values(), r.entropy), 1e-5);
    EXPECT_LE(relative_error(p.dtemperature.values(), r.dtemperature), 1e-4);
  }
}

TEST(CudaTemperatureSoftmax, HasTheLogarithmOfTheVisibleKeysAsEntropyForUniformScores) {
  for (const DataType type : kTypes) {
    SoftmaxProblem p({.type = type, .queries = 130, .keys = 130});
    p.scores.fill(-3);
    run_emulated(p.forward_params());
    for (int64_t i = 0; i < 130; ++i) {
      const double expected = std::log(static_cast<double>(i + 1));
      EXPECT_NEAR(p.entropy.get(1, 1, i), expected, 3e-7 * (1 + expected));
    }
  }
}

TEST(CudaTemperatureSoftmax, HasEntropyExactlyZeroForAOneHotRow) {
  SoftmaxProblem p({.queries = 50, .keys = 50, .is_causal = false, .has_temperature = false});
  p.scores.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    p.scores.set(b, h, i, j, i == j ? 1e3 : 0);
  });
  run_emulated(p.forward_params());
  for (const double entropy : p.entropy.values()) EXPECT_EQ(entropy, 0);
}

TEST(CudaTemperatureSoftmax, TakesInfinitelyLowScoresForKeysThatAreNotSeen) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DataType type : kTypes)
    // Head 1 has the negative temperature, which turns the other scores around.
    for (const double temperature : {0.7, 1e30, kInfinity}) {
      SoftmaxProblem p(
          {.type = type, .queries = 4, .keys = 20, .is_causal = false, .temperature = temperature});
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t j = 0; j < 20; ++j) {
          p.scores.set(0, h, 1, j, -kInfinity);
          if (j % 3 == 0) p.scores.set(0, h, 2, j, -kInfinity);
        }
      run_emulated(p.forward_params());
      run_emulated(p.backward_params());
      for (int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(p.entropy.get(0, h, 1), 0);
        EXPECT_EQ(p.logsumexp.get(0, h, 1), -kInfinity);
        EXPECT_EQ(p.dtemperature.get(0, h, 1), 0);
        if (temperature > 1) {
          EXPECT_NEAR(p.entropy.get(0, h, 2), std::log(13), 1e-6);
        }
        for (int64_t j = 0; j < 20; ++j) {
          EXPECT_EQ(p.probabilities.get(0, h, 1, j), 0);
          EXPECT_EQ(p.dscores.get(0, h, 1, j), 0);
          EXPECT_EQ(p.probabilities.get(0, h, 2, j) == 0, j % 3 == 0);
          EXPECT_TRUE(std::isfinite(p.dscores.get(0, h, 2, j)));
        }
      }
    }
}

TEST(CudaTemperatureSoftmax, TakesTheLowestScoresForWhatTheyAre) {
  constexpr double kLowest = std::numeric_limits<float>::lowest();
  for (const int64_t keys : {5, 40, 1100}) {
    SoftmaxProblem p({.queries = 3, .keys = keys, .is_causal = false});
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < keys; ++j) {
        p.scores.set(0, h, 0, j, kLowest);  // as additive masks hide a whole row
        p.scores.set(0, h, 1, j, -1e30);
        if (j > 0) p.scores.set(1, h, 2, j, h == 0 ? kLowest : -kLowest);
      }
    run_emulated(p.forward_params());
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 2; ++i) {
        EXPECT_NEAR(p.entropy.get(0, h, i), std::log(keys), 2e-6);
        EXPECT_NEAR(p.probabilities.get(0, h, i, keys - 1), 1.0 / static_cast<double>(keys), 1e-7);
      }
      EXPECT_EQ(p.entropy.get(1, h, 2), 0);
      EXPECT_EQ(p.probabilities.get(1, h, 2, 0), 1);
    }
  }
}

TEST(CudaTemperatureSoftmax, HasALogsumexpForTheLargestScores) {
  for (const double temperature : {1.0, 1e38}) {
    SoftmaxProblem p({.queries = 1, .keys = 20, .is_causal = false, .temperature = temperature});
    p.scores.fill(3e38);
    run_emulated(p.forward_params());
    for (int64_t h = 0; h < 2; ++h) {
      const double score = (h == 0 ? 3e38 : -3e38) / temperature;
      EXPECT_NEAR(p.logsumexp.get(0, h, 0), score + std::log(20), 1e-6 * std::abs(score));
    }
  }
}

TEST(CudaTemperatureSoftmax, PassesNotANumberOnInItsRowAlone) {
  for (const DataType type : kTypes) {
    SoftmaxProblem p({.type = type, .queries = 6, .keys = 40, .is_causal = false});
    p.scores.set(1, 0, 2, 33, std::numeric_limits<double>::quiet_NaN());
    p.temperature.set(1, 1, 4, 0, 0);  // the device cannot be asked before the call
    run_emulated(p.forward_params());
    run_emulated(p.backward_params());
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 6; ++i) {
        const bool is_marked = h == 0 ? i == 2 : i == 4;
        EXPECT_EQ(std::isnan(p.entropy.get(1, h, i)), is_marked);
        EXPECT_EQ(std::isnan(p.probabilities.get(1, h, i, 0)), is_marked);
        EXPECT_EQ(std::isnan(p.dscores.get(1, h, i, 0)), is_marked);
        EXPECT_EQ(std::isnan(p.dtemperature.get(1, h, i)), is_marked);
      }
  }
}

// Offsets of elements are 64-bit throughout.
TEST(CudaTemperatureSoftmax, ReachesElementsBeyondTwoToThe32nd) {
  constexpr int64_t kApart = int64_t{1} << 32;
  SoftmaxProblem p({.queries = 2, .keys = 40});
  run_emulated(p.forward_params());
  const int64_t batch_elements = p.scores.size() / 2;
  const auto batch_bytes = static_cast<size_t>(batch_elements) * sizeof(float);
  const SparseMemory scores(kApart * sizeof(float) + batch_bytes);
  const SparseMemory probabilities(kApart * sizeof(float) + batch_bytes);
  for (int64_t b = 0; b < 2; ++b)
    std::memcpy(static_cast<float*>(scores.data()) + b * kApart,
                static_cast<float*>(p.scores.data()) + b * batch_elements, batch_bytes);
  TemperatureSoftmaxForwardParams params = p.forward_params();
  params.scores.data = scores.data();
  params.probabilities.data = probabilities.data();
  params.scores.strides.batch = params.probabilities.strides.batch = kApart;
  run_emulated(params);
  for (int64_t b = 0; b < 2; ++b)
    EXPECT_EQ(
        std::memcmp(static_cast<float*>(probabilities.data()) + b * kApart,
                    static_cast<float*>(p.probabilities.data()) + b * batch_elements, batch_bytes),
        0);
}

TEST(CudaTemperatureSoftmax, HiddenKeysBearHugeGradientsOfEntropy) {
  SoftmaxProblem p({.queries = 9, .keys = 21, .has_mask = true});
  p.dentropy.fill(1e15);
  run_emulated(p.forward_params());
  run_emulated(p.backward_params());
  for (const double value : p.dscores.values()) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
