// The CUDA passes of scaled_ffn on an emulated GPU and its product through a cublasLt of our own,
// against the definitions in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/scaled_ffn_passes.h"
#include "tests/cpp/kernels/cuda/emulation.h"
#include "tests/cpp/kernels/cuda/fake_cublas_lt.h"

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;

const std::vector<DataType> kTypes = {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32};
constexpr float kAlpha = 1.7f, kBeta = -0.6f;

/// One rounding to the element type, and the float32 additions before it.
double rounding_of(DataType type) {
  return type == DataType::kFloat32 ? 1e-6 : type == DataType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

template <class Visit>
void with_element(DataType type, Visit visit) {
  if (type == DataType::kBFloat16) visit(BFloat16{});
  if (type == DataType::kFloat16) visit(Float16{});
  if (type == DataType::kFloat32) visit(Float32{});
}

/// A layer, and what it does to some rows.
struct Layer {
  DataType type, stream_type;
  int64_t rows, width;
  Tensor x, operand, weight, bias, y;
  std::mt19937 generator{11};

  Layer(DataType element, DataType stream, int64_t m, int64_t c, Order order)
      : type(element),
        stream_type(stream),
        rows(m),
        width(c),
        x(stream, 1, 1, m, c),
        operand(element, 1, 1, m, c),
        weight(element, 1, 1, c, c, order),
        bias(element, 1, 1, 1, c),
        y(stream, 1, 1, m, c) {
    for (Tensor* tensor : {&x, &weight, &bias}) tensor->fill_normal(generator);
    x.for_each([&](int64_t, int64_t, int64_t i, int64_t d) {
      operand.set(0, 0, i, d, x.get(0, 0, i, d));
    });
  }

  /// beta x + (x W + b) / alpha, or beta x + x W^T / alpha.
  std::vector<double> expected(bool is_transposed, bool has_bias) const {
    std::vector<double> result;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < width; ++j) {
        double sum = has_bias ? bias.get(0, 0, 0, j) : 0;
        for (int64_t k = 0; k < width; ++k)
          sum += operand.get(0, 0, i, k) *
                 (is_transposed ? weight.get(0, 0, j, k) : weight.get(0, 0, k, j));
        result.push_back(kBeta * x.get(0, 0, i, j) + sum / kAlpha);
      }
    return result;
  }

  /// The calls that the launcher makes, and what it returns.
  bool run(bool is_transposed, bool has_bias, bool allow_tf32 = false) {
    float inverse_alpha = std::nanf("");
    Tensor scaled_bias(stream_type, 1, 1, 1, width);
    ScaledFfnScaleParams scales{};
    scales.alpha = &kAlpha;
    scales.bias = has_bias ? bias.data() : nullptr;
    scales.width = width;
    scales.inverse_alpha = &inverse_alpha;
    scales.scaled_bias = scaled_bias.data();
    Trace trace;
    with_element(type, [&]<class Element>(Element) {
      if (stream_type == type)
        run_pass<ScaledFfnScalePass<Element, Element>>(scales, trace);
      else
        run_pass<ScaledFfnScalePass<Element, Float32>>(scales, trace);
    });
    EXPECT_EQ(inverse_alpha, 1 / kAlpha);

    unsigned char workspace[16];  // the fake one needs none
    MatrixProductParams p;
    p.data_type = type, p.stream_type = stream_type;
    p.rows = rows, p.width = width;
    p.a = operand.data();
    p.weight = weight;
    p.weight_is_transposed = is_transposed;
    p.addend = x.data();
    p.bias = has_bias ? scaled_bias.data() : nullptr;
    p.factor = &inverse_alpha, p.addend_factor = &kBeta;
    p.y = y.data();
    p.workspace = workspace;
    p.allow_tf32 = allow_tf32;
    return multiply_matrices("scaled_ffn", fake_cublas_lt_library(), p, nullptr);
  }
};

TEST(CudaScaledFfn, IsOneProductThatAddsTheScaledStream) {
  for (const DataType type : kTypes)
    for (const DataType stream : {type, DataType::kFloat32})
      for (const auto& [rows, width] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 3}, {3, 8}, {2, 67}, {4, 300}})
        for (const bool is_transposed : {false, true})
          for (const Order order : {Order::kHeadMajor, Order::kPadded}) {
            SCOPED_TRACE(std::string(name_of(type)) + " " + name_of(stream) + " " +
                         std::to_string(rows) + " " + std::to_string(width));
            const bool has_bias = !is_transposed;
            Layer layer(type, stream, rows, width, order);
            const int64_t before = fake_cublas_lt::state.products;
            layer.run(is_transposed, has_bias);
            EXPECT_EQ(fake_cublas_lt::state.products, before + 1);
            // b / alpha is rounded, and the result.
            EXPECT_LE(relative_error(layer.y.values(), layer.expected(is_transposed, has_bias)),
                      2 * rounding_of(stream));
          }
  EXPECT_EQ(fake_cublas_lt::state.live, 0);
}

// Of float32 the product sees the digits of TF32; the stream is added as it is.
TEST(CudaScaledFfn, RoundsOnlyOperandsOfFloat32AndOnlyWhereAllowed) {
  for (const DataType type : kTypes)
    for (const bool allow_tf32 : {false, true}) {
      Layer layer(type, DataType::kFloat32, 5, 67, Order::kHeadMajor);
      const std::vector<double> exact = layer.expected(false, true);
      layer.run(false, true, allow_tf32);
      for (Tensor* operand : {&layer.operand, &layer.weight}) round_to_tf32(*operand);
      const std::vector<double> rounded = layer.expected(false, true);
      const bool rounds = allow_tf32 && type == DataType::kFloat32;
      const std::vector<double>& other = rounds ? exact : rounded;
      EXPECT_LE(relative_error(layer.y.values(), rounds ? rounded : exact), 2e-6);
      if (type == DataType::kFloat32)
        EXPECT_GE(relative_error(layer.y.values(), other), 0x1p-14);
      else
        EXPECT_EQ(rounded, exact);
    }
}

TEST(CudaScaledFfn, LeavesAProductThatCublasLtHasNoAlgorithmForToTheCaller) {
  for (const cublas_lt::Status status : {0, 15}) {
    fake_cublas_lt::state.finds_nothing = true, fake_cublas_lt::state.status = status;
    Layer layer(DataType::kBFloat16, DataType::kBFloat16, 5, 3, Order::kHeadMajor);
    layer.y.fill(7);
    EXPECT_FALSE(layer.run(false, true));
    for (const double value : layer.y.values()) EXPECT_EQ(value, 7);
    fake_cublas_lt::state.finds_nothing = false, fake_cublas_lt::state.status = 0;
    EXPECT_TRUE(layer.run(false, true));
  }
  EXPECT_EQ(fake_cublas_lt::state.live, 0);
}

TEST(CudaScaledFfn, SaysWhichProductCublasLtFailsAt) {
  fake_cublas_lt::state.status = 14;  // CUBLAS_STATUS_INTERNAL_ERROR
  Layer layer(DataType::kBFloat16, DataType::kBFloat16, 5, 3, Order::kHeadMajor);
  try {
    layer.run(false, true);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "scaled_ffn: cublasLt cannot multiply [5, 3] by [3, 3]: other");
  }
  fake_cublas_lt::state.status = 0;
  EXPECT_EQ(fake_cublas_lt::state.live, 0);
}

TEST(CudaScaledFfn, SaysThatThereIsNoCublasLt) {
  ASSERT_EQ(loaded_cublas_lt(), nullptr);
  try {
    cublas_lt_of("scaled_ffn", 0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "scaled_ffn: needs cublasLt 12 or 13, and PyTorch has loaded neither");
  }
}

/// Gradients of the parameters of one layer by the passes, and from the definition.
void expect_gradients(DataType type, int64_t rows, int64_t width) {
  SCOPED_TRACE(std::string(name_of(type)) + " rows=" + std::to_string(rows) +
               " width=" + std::to_string(width));
  std::mt19937 generator(5);
  Tensor dy(type, 1, 1, rows, width), bias(type, 1, 1, 1, width), dbias(bias);
  Tensor weight(type, 1, 1, width, width, Order::kPadded), gradient(type, 1, 1, width, width);
  for (Tensor* tensor : {&dy, &bias, &weight, &gradient}) tensor->fill_normal(generator);

  std::vector<double> dweight = gradient.values(), expected_dbias;
  double products = 0, trace = 0, terms = 1e-30;
  for (int64_t i = 0; i < width; ++i)
    for (int64_t j = 0; j < width; ++j) {
      const double g = gradient.get(0, 0, i, j), term = g * weight.get(0, 0, i, j);
      products += term, terms += std::abs(term);
      if (i == j) trace += g;
    }
  for (double& g : dweight) g /= kAlpha;
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += dy.get(0, 0, i, c);
    expected_dbias.push_back(sum / kAlpha);
    products += bias.get(0, 0, 0, c) * sum, terms += std::abs(bias.get(0, 0, 0, c) * sum);
  }

  float dalpha = std::nanf(""), dbeta = std::nanf("");
  ScaledFfnGradientParams params;
  params.data_type = type;
  params.rows = rows, params.width = width;
  params.dy = dy.data();
  params.weight = weight;
  params.bias = bias.data();
  params.alpha = &kAlpha;
  params.dweight = gradient.data();
  params.dbias = dbias.data();
  params.dalpha = &dalpha, params.dbeta = &dbeta;
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(ScaledFfnReductionParams::bytes(params)),
                                      0xff);
  const ScaledFfnReductionParams reduction(params, workspace.data());
  Trace done;
  with_element(type, [&]<class Element>(Element) {
    run_pass<ScaledFfnSumsPass<Element>>(reduction, done);
    run_pass<ScaledFfnScalarsPass<Element>>(reduction, done);
  });

  EXPECT_EQ(done.conflicts.loads + done.conflicts.stores, 0);
  EXPECT_LE(relative_error(gradient.values(), dweight), rounding_of(type));
  EXPECT_LE(relative_error(dbias.values(), expected_dbias), rounding_of(type));
  EXPECT_NEAR(dbeta, trace, 1e-6 * (1 + static_cast<double>(width)));
  EXPECT_NEAR(dalpha, -products / (kAlpha * kAlpha), 1e-6 * terms);
}

TEST(CudaScaledFfn, GradientsAreTheirDefinitionForEverySizeAndType) {
  for (const DataType type : kTypes) {
    for (const int64_t width : {1, 31, 40, 131})
      for (const int64_t rows : {0, 1, 19, 257}) expect_gradients(type, rows, width);
    expect_gradients(type, 3, 300);
    expect_gradients(type, 3, 0);
    expect_gradients(type, 0, 0);
  }
}

TEST(CudaScaledFfn, GradientsTouchNothingBesideTheirTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    for (const DataType type : kTypes)
      for (const int64_t width : {1, 16, 33}) expect_gradients(type, 21, width);
  }
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
