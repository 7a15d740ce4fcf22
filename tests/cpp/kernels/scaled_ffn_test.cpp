#include "kernels/scaled_ffn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "tests/cpp/kernels/run_kernel.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::testing {
namespace {

const std::vector<DataType> kDataTypes = {DataType::kFloat32, DataType::kBFloat16,
                                          DataType::kFloat16, DataType::kFloat64};

// One rounding to the element type, and the float32 additions before it.
double tolerance(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return 1e-14;
    case DataType::kFloat32:
      return 1e-6;
    case DataType::kBFloat16:
      return 0x1p-8;
    case DataType::kFloat16:
      return 0x1p-11;
  }
  return 0;
}

// A scalar operand or result: one float, or one double.
struct Scalar {
  DataType type;
  float single = 0;
  double wide = 0;

  Scalar(DataType data_type, double value)
      : type(data_type), single(static_cast<float>(value)), wide(value) {}
  void* data() { return type == DataType::kFloat64 ? static_cast<void*>(&wide) : &single; }
  double value() const { return type == DataType::kFloat64 ? wide : static_cast<double>(single); }
};

/// Every test runs once for each instruction set this machine has.
class ScaledFfn : public ::testing::TestWithParam<std::string> {
 protected:
  ScopedIsa isa_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Isa, ScaledFfn, ::testing::ValuesIn(cpu::available_isa_names()),
                         [](const auto& info) { return info.param; });

void expect_epilogue_of_every_size_and_type() {
  std::mt19937 generator(3);
  for (const DataType type : kDataTypes)
    for (const int64_t elements : {0, 1, 17, 4096, 4097, 10007}) {
      Tensor x(type, 1, 1, 1, elements), y(type, 1, 1, 1, elements);
      x.fill_normal(generator);
      y.fill_normal(generator);
      Scalar alpha(type, 1.7), beta(type, -0.6);
      std::vector<double> expected = y.values();
      const std::vector<double> stream = x.values();
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] = beta.value() * stream[i] + expected[i] / alpha.value();
      ScaledFfnEpilogueParams params;
      params.data_type = params.stream_type = type;
      params.elements = elements;
      params.x = x.data();
      params.linear = params.y = y.data();
      params.alpha = alpha.data();
      params.beta = beta.data();
      run_kernel(params, 3);
      EXPECT_LE(relative_error(y.values(), expected), tolerance(type))
          << name_of(type) << " " << elements;
    }
}

void expect_epilogue_of_a_float_stream() {
  std::mt19937 generator(7);
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16})
    for (const int64_t elements : {1, 15, 64, 4097}) {
      Tensor x(DataType::kFloat32, 1, 1, 1, elements), linear(type, 1, 1, 1, elements), y(x);
      x.fill_normal(generator);
      linear.fill_normal(generator);
      Scalar alpha(DataType::kFloat32, 1.7), beta(DataType::kFloat32, -0.6);
      std::vector<double> expected = linear.values();
      const std::vector<double> stream = x.values();
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] = beta.value() * stream[i] + expected[i] / alpha.value();
      ScaledFfnEpilogueParams params;
      params.data_type = type;
      params.elements = elements;
      params.x = x.data();
      params.linear = linear.data();
      params.y = y.data();
      params.alpha = alpha.data();
      params.beta = beta.data();
      run_kernel(params, 3);
      EXPECT_LE(relative_error(y.values(), expected), 1e-6) << name_of(type) << " " << elements;
    }
}

TEST_P(ScaledFfn, EpilogueAddsTheScaledStreamForEverySizeAndType) {
  expect_epilogue_of_every_size_and_type();
}

TEST_P(ScaledFfn, EpilogueKeepsAFloatStreamBesideHalfProducts) {
  expect_epilogue_of_a_float_stream();
}

TEST_P(ScaledFfn, EpilogueNeverTouchesWhatLiesBesideItsTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    expect_epilogue_of_every_size_and_type();
    expect_epilogue_of_a_float_stream();
  }
}

// Gradients of one layer with `rows` rows, computed by the kernel and from the definition.
void expect_gradients(DataType type, int64_t rows, int64_t width, int64_t threads,
                      Threads how = Threads::kInTurn) {
  SCOPED_TRACE(std::string(name_of(type)) + " rows=" + std::to_string(rows) +
               " width=" + std::to_string(width) + " threads=" + std::to_string(threads));
  std::mt19937 generator(5);
  Tensor dy(type, 1, 1, rows, width), bias(type, 1, 1, 1, width);
  Tensor weight(type, 1, 1, width, width, Order::kPadded), gradient(type, 1, 1, width, width);
  Tensor dbias(type, 1, 1, 1, width);
  dy.fill_normal(generator);
  bias.fill_normal(generator);
  weight.fill_normal(generator);
  gradient.fill_normal(generator);
  Scalar alpha(type, 1.7), dalpha(type, std::nan("")), dbeta(type, std::nan(""));

  const std::vector<double> g = gradient.values(), w = weight.values(), b = bias.values();
  const std::vector<double> flowing = dy.values();
  std::vector<double> dweight = g, expected_dbias(static_cast<size_t>(width), 0);
  double products = 0, trace = 0, terms = 1e-30;
  for (size_t i = 0; i < g.size(); ++i) {
    dweight[i] = g[i] / alpha.value();
    products += g[i] * w[i];
    terms += std::abs(g[i] * w[i]);
  }
  for (int64_t c = 0; c < width; ++c) {
    const auto at = static_cast<size_t>(c);
    trace += g[static_cast<size_t>(c * width + c)];
    for (int64_t i = 0; i < rows; ++i)
      expected_dbias[at] += flowing[static_cast<size_t>(i * width + c)] / alpha.value();
    products += b[at] * expected_dbias[at] * alpha.value();
    terms += std::abs(b[at] * expected_dbias[at] * alpha.value());
  }

  ScaledFfnGradientParams params;
  params.data_type = type;
  params.rows = rows;
  params.width = width;
  params.dy = dy.data();
  params.weight = weight;
  params.bias = bias.data();
  params.alpha = alpha.data();
  params.dweight = gradient.data();
  params.dbias = dbias.data();
  params.dalpha = dalpha.data();
  params.dbeta = dbeta.data();
  Buffer<unsigned char, 64> workspace = workspace_of(params, threads);
  run_items(params, workspace.data(), threads, how);
  cpu::finish(params, workspace.data());

  EXPECT_LE(relative_error(gradient.values(), dweight), tolerance(type));
  EXPECT_LE(relative_error(dbias.values(), expected_dbias), tolerance(type));
  const double scalar_tolerance = type == DataType::kFloat64 ? 1e-14 : 1e-6;
  EXPECT_NEAR(dbeta.value(), trace, scalar_tolerance * (1 + static_cast<double>(width)));
  EXPECT_NEAR(dalpha.value(), -products / (alpha.value() * alpha.value()),
              scalar_tolerance * terms);
}

TEST_P(ScaledFfn, GradientsNeverTouchWhatLiesBesideTheirTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    for (const DataType type : kDataTypes)
      for (const int64_t width : {1, 16, 33}) expect_gradients(type, 67, width, 3);
  }
}

TEST_P(ScaledFfn, ThreadsThatRunAtOnceDisturbNothing) {
  for (const DataType type : kDataTypes) expect_gradients(type, 259, 67, 2, Threads::kAtOnce);
}

TEST_P(ScaledFfn, GradientsAreTheirDefinitionForEverySizeAndType) {
  for (const DataType type : kDataTypes) {
    for (const int64_t width : {1, 31, 32, 33, 67})
      for (const int64_t rows : {0, 1, 63, 64, 130, 259}) expect_gradients(type, rows, width, 1);
    expect_gradients(type, 20, 37, 5);
    expect_gradients(type, 3, 0, 2);
  }
}

}  // namespace
}  // namespace aero::kernels::testing
