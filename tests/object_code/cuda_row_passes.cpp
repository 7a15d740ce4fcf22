// Runs the passes of the operators on rows once on an emulated GPU and compares with the
// definitions; what the deliberate errors of tests/python/test_cuda_mutations.py are compiled into.
#include <cstdio>
#include <exception>

#include "kernels/cuda/entropy_regularization_passes.h"
#include "kernels/cuda/scaled_ffn_passes.h"
#include "kernels/cuda/temperature_softmax_passes.h"
#include "tests/cpp/kernels/cuda/emulation.h"
#include "tests/cpp/kernels/entropy_regularization_reference.h"
#include "tests/cpp/kernels/temperature_softmax_reference.h"

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;

/// Whether a result is what it should be; says by how much it is not.
bool is_close(const char* what, const std::vector<double>& actual,
              const std::vector<double>& expected, double tolerance) {
  const double error = relative_error(actual, expected);
  std::printf("%s is off by %g of %g\n", what, error, tolerance);
  return error <= tolerance;
}

template <class Element, int kWarps>
bool softmax_is_right(SoftmaxCase c) {
  c.type = Element::kDataType;
  SoftmaxProblem p(c);
  Trace trace;
  run_pass<SoftmaxForwardPass<Element, kWarps>>(p.forward_params(), trace);
  run_pass<SoftmaxBackwardPass<Element, kWarps>>(p.backward_params(), trace);
  const SoftmaxReference r(p);
  const double rounding = Element::kBytes == 4 ? 2e-6 : 0x1p-8;
  return is_close("probabilities", p.probabilities.values(), r.probabilities, rounding) &&
         is_close("entropy", p.entropy.values(), r.entropy, 2e-6) &&
         is_close("dscores", p.dscores.values(), r.dscores, rounding) &&
         is_close("dtemperature", p.dtemperature.values(), r.dtemperature, 8e-6) &&
         trace.conflicts.loads + trace.conflicts.stores == 0;
}

bool penalty_is_right(EntropyReduction reduction) {
  const EntropyProblem<float> problem(2, 3, 3, 37, reduction, true);
  const EntropyReference expected(problem);
  float loss = 0;
  EntropyRegularizationForwardParams forward;
  static_cast<EntropyRegularizationParams&>(forward) = problem.params;
  forward.loss = &loss;
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(EntropyPenaltyParams::bytes(forward)),
                                      0xff);
  const EntropyPenaltyParams with_workspace(forward, workspace.data());
  *with_workspace.arrived = 0;
  Trace trace;
  run_pass<EntropyPenaltyPass>(with_workspace, trace);

  const float dloss = 1;
  std::vector<float> dentropies(problem.entropies.size()), dthresholds(problem.thresholds.size());
  EntropyRegularizationBackwardParams backward;
  static_cast<EntropyRegularizationParams&>(backward) = problem.params;
  backward.dloss = &dloss;
  backward.dentropies = dentropies.data();
  backward.dthresholds = dthresholds.data();
  run_pass<EntropyGradientPass>(backward, trace);
  return is_close("loss", {loss}, {expected.loss}, 1e-6) &&
         is_close("dentropies", {dentropies.begin(), dentropies.end()}, expected.dentropies,
                  1e-6) &&
         is_close("dthresholds", {dthresholds.begin(), dthresholds.end()}, expected.dthresholds,
                  1e-6);
}

/// Gradients of a feed-forward layer of 11 rows whose product is random.
bool feed_forward_is_right() {
  constexpr int64_t kRows = 11, kWidth = 37;
  std::mt19937 generator(5);
  Tensor dy(DataType::kFloat32, 1, 1, kRows, kWidth), bias(DataType::kFloat32, 1, 1, 1, kWidth);
  Tensor weight(DataType::kFloat32, 1, 1, kWidth, kWidth), dweight(weight), dbias(bias);
  for (Tensor* tensor : {&dy, &bias, &weight, &dweight}) tensor->fill_normal(generator);
  const float alpha = 1.7f;
  double product = 0, trace = 0;
  std::vector<double> expected(kWidth), expected_dweight = dweight.values();
  for (double& g : expected_dweight) g /= alpha;
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j)
      product += dweight.get(0, 0, i, j) * weight.get(0, 0, i, j);
    trace += dweight.get(0, 0, i, i);
    double sum = 0;
    for (int64_t row = 0; row < kRows; ++row) sum += dy.get(0, 0, row, i);
    product += bias.get(0, 0, 0, i) * sum;
    expected[static_cast<size_t>(i)] = sum / alpha;
  }
  float dalpha = 0, dbeta = 0;
  ScaledFfnGradientParams params;
  params.rows = kRows, params.width = kWidth;
  params.dy = dy.data(), params.weight = weight, params.bias = bias.data();
  params.alpha = &alpha;
  params.dweight = dweight.data(), params.dbias = dbias.data();
  params.dalpha = &dalpha, params.dbeta = &dbeta;
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(ScaledFfnReductionParams::bytes(params)),
                                      0xff);
  const ScaledFfnReductionParams reduction(params, workspace.data());
  Trace trace_of_passes;
  run_pass<ScaledFfnSumsPass<Float32>>(reduction, trace_of_passes);
  run_pass<ScaledFfnScalarsPass<Float32>>(reduction, trace_of_passes);
  return is_close("dweight", dweight.values(), expected_dweight, 1e-6) &&
         is_close("dbias", dbias.values(), expected, 1e-6) &&
         is_close("dalpha", {dalpha}, {-product / (alpha * alpha)}, 1e-5) &&
         is_close("dbeta", {dbeta}, {trace}, 1e-5);
}

bool all_are_right() {
  return softmax_is_right<Float32, 1>({.queries = 4, .keys = 1100, .has_mask = true}) &&
         softmax_is_right<BFloat16, 8>({.queries = 2, .keys = 67}) &&
         penalty_is_right(EntropyReduction::kPositionSum) &&
         penalty_is_right(EntropyReduction::kQueryMean) && feed_forward_is_right();
}

}  // namespace
}  // namespace aero::kernels::cuda::testing

int main() {
  try {
    return aero::kernels::cuda::testing::all_are_right() ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
