// Runs the product of scaled_ffn once through a cublasLt of our own and compares with the
// definition; what the deliberate errors of tests/python/test_cuda_mutations.py are compiled into.
#include <cstdio>
#include <exception>
#include <random>

#include "kernels/cuda/matrix_product.cpp"
#include "tests/cpp/kernels/cuda/emulation.h"
#include "tests/cpp/kernels/cuda/fake_cublas_lt.h"

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;

bool is_right(DataType type, bool weight_is_transposed, bool allow_tf32) {
  constexpr int64_t kRows = 4, kWidth = 6;
  constexpr float kFactor = 0.5f, kAddendFactor = -2;
  std::mt19937 generator(3);
  Tensor a(type, 1, 1, kRows, kWidth), addend(a), y(a), bias(type, 1, 1, 1, kWidth);
  Tensor weight(type, 1, 1, kWidth, kWidth, Order::kPadded);
  for (Tensor* tensor : {&a, &addend, &bias, &weight}) tensor->fill_normal(generator);
  Tensor a_given = a, weight_given = weight;
  if (allow_tf32)
    for (Tensor* operand : {&a, &weight}) round_to_tf32(*operand);
  std::vector<double> expected;
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k)
        sum += a.get(0, 0, i, k) *
               (weight_is_transposed ? weight.get(0, 0, j, k) : weight.get(0, 0, k, j));
      expected.push_back(kFactor * sum + kAddendFactor * addend.get(0, 0, i, j) +
                         bias.get(0, 0, 0, j));
    }
  unsigned char workspace[1];
  MatrixProductParams p;
  p.data_type = p.stream_type = type;
  p.rows = kRows, p.width = kWidth;
  p.a = a_given.data(), p.weight = weight_given;
  p.addend = addend.data(), p.bias = bias.data();
  p.weight_is_transposed = weight_is_transposed;
  p.factor = &kFactor, p.addend_factor = &kAddendFactor;
  p.y = y.data(), p.workspace = workspace, p.allow_tf32 = allow_tf32;
  if (!multiply_matrices("scaled_ffn", fake_cublas_lt_library(), p, nullptr)) return false;
  const double error = relative_error(y.values(), expected);
  std::printf("y is off by %g\n", error);
  return error <= (type == DataType::kFloat32 ? 1e-6 : 0x1p-8) && fake_cublas_lt::state.live == 0;
}

}  // namespace
}  // namespace aero::kernels::cuda::testing

int main() {
  using aero::kernels::DataType;
  using aero::kernels::cuda::testing::is_right;
  try {
    for (const auto type : {DataType::kBFloat16, DataType::kFloat32})
      for (const bool is_transposed : {false, true})
        for (const bool allow_tf32 : {false, true})
          if (!is_right(type, is_transposed, allow_tf32)) return 1;
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
