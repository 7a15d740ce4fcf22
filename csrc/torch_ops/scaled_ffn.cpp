#include "kernels/scaled_ffn.h"

#include <array>
#include <cstdlib>
#include <stdexcept>

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/float32_precision.h"
#include "csrc/torch_ops/matrix_product.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "scaled_ffn";

/// Checked inputs.
struct Inputs {
  Gate gate;
  ScalarType type, scale_type, weight_type;
  Shape shape;  ///< of x
  Operand weight, bias, alpha, beta;

  Inputs(const Tensor& x, const Tensor& weight_any, const Tensor& bias_any, const Tensor& alpha_any,
         const Tensor& beta_any)
      : gate(kOp, "x", x, Gate::kAnyDim, "[..., C]"),
        type(x.scalar_type()),
        scale_type(statistics_type(gate.data_type())),
        weight_type(weight_any.scalar_type()),
        shape(shape_of(x)) {
    const int64_t width = shape.back();
    if (width > 0) require_possible(kOp, "rows of x", x.numel() / width);
    // Beside half weights a float32 stream stays: only its product is computed in half.
    const bool is_half = weight_type == ScalarType::BFloat16 || weight_type == ScalarType::Half;
    weight = gate.take(weight_any, {"weight",
                                    {width, width},
                                    "[C, C]",
                                    type == ScalarType::Float && is_half ? weight_type : type,
                                    " like x",
                                    Layout::kAny});
    bias = gate.take(bias_any,
                     {"bias", {width}, "[C]", weight_type, " like weight", Layout::kContiguous});
    alpha = gate.scalar("alpha", alpha_any, scale_type, true);
    beta = gate.scalar("beta", beta_any, scale_type, false);
  }
};

/// Rows of a stream, and the same in the type of the weight, in which products are computed.
struct StreamRows {
  Operand stream, operand;  ///< [M, C] contiguous

  StreamRows(const Inputs& inputs, const char* name, const Tensor& x)
      : stream(inputs.gate.rows(x, {name, inputs.shape, "[..., C]", inputs.type, " like x"})),
        operand(inputs.type == inputs.weight_type
                    ? stream
                    : Operand::contiguous(torch::stable::to(stream.tensor(), inputs.weight_type))) {
  }

  Shape shape() const { return shape_of(stream.tensor()); }
};

/// beta * x + linear / alpha on the CPU, in the memory of `linear` where the types allow.
Tensor add_residual(const Inputs& inputs, const StreamRows& rows, const Tensor& linear) {
  const Operand product = Operand::contiguous(linear);
  const Result y = inputs.type == inputs.weight_type ? Result(product.tensor())
                                                     : Result(linear, rows.shape(), inputs.type);
  kernels::ScaledFfnEpilogueParams params;
  params.data_type = kernel_type(kOp, "weight", inputs.weight_type);
  params.stream_type = inputs.gate.data_type();
  params.elements = linear.numel();
  params.x = rows.stream.data();
  params.linear = product.data();
  params.y = y.data();
  params.alpha = inputs.alpha.data();
  params.beta = inputs.beta.data();
  run_parallel(params);
  return y.tensor();
}

/// x W + b, or dy W^T for the gradient, by torch.
Tensor linear_of(const Inputs& inputs, const StreamRows& rows, bool is_backward) {
  const Tensor& weight = inputs.weight.tensor();
  return is_backward ? matrix_product(rows.operand.tensor(), weight)
                     : matrix_product(rows.operand.tensor(), torch::stable::transpose(weight, 0, 1),
                                      inputs.bias.tensor());
}

template <size_t kCount>
Tensor torch_call(const char* name, const char* overload, const Tensor (&arguments)[kCount]) {
  std::array<StableIValue, kCount> stack;
  for (size_t n = 0; n < kCount; ++n) stack[n] = torch::stable::detail::from(arguments[n]);
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

/// The same as scaled_product by torch's operators alone, on any device: slower, and the product is
/// rounded to the weight's type before it is scaled.
Tensor product_of_torch(const Inputs& inputs, const StreamRows& rows, bool is_backward) {
  const auto wide = [&](const Tensor& x) { return torch::stable::to(x, inputs.scale_type); };
  const Tensor linear = torch_call(
      "aten::div", "Tensor", {wide(linear_of(inputs, rows, is_backward)), inputs.alpha.tensor()});
  // torch's addition takes a Scalar, which the stable ABI cannot pass; its subtraction has a
  // wrapper.
  const Tensor minus_stream =
      torch_call("aten::mul", "Tensor",
                 {wide(rows.stream.tensor()), torch_call("aten::neg", "", {inputs.beta.tensor()})});
  return torch::stable::to(torch::stable::subtract(linear, minus_stream), inputs.type);
}

/// Whether AERO_FFN_PRODUCT=torch asks for that. Read anew at every call, so tests may change it.
bool is_torch_asked_for() {
  const char* wanted = std::getenv("AERO_FFN_PRODUCT");
  const std::string product = wanted ? wanted : "";
  if (product.empty() || product == "torch") return !product.empty();
  throw std::invalid_argument("AERO_FFN_PRODUCT must be torch, got " + product);
}

#if defined(AERO_CUDA)
/// Does a call in torch's stream, and returns launch's result.
template <class Params>
auto run_on_device(const Params& params, const Tensor& like) {
  const Result workspace(like, {static_cast<int64_t>(kernels::cuda::workspace_bytes(params))},
                         ScalarType::Byte);
  return kernels::cuda::launch(params, workspace.data(), CudaQueue(kOp, like).get());
}

/// beta * x + (x W + b) / alpha in one product on a GPU, if cublasLt has an algorithm for it; see
/// scaled_product.
Tensor product_on_device(const Inputs& inputs, const StreamRows& rows, bool is_backward) {
  const StoredMatrix matrix(inputs.weight);
  const Tensor& x = rows.stream.tensor();
  const Result y(x, rows.shape(), inputs.type);
  kernels::ScaledFfnProductParams params;
  params.data_type = kernel_type(kOp, "weight", inputs.weight_type);
  params.stream_type = inputs.gate.data_type();
  params.rows = x.size(0);
  params.width = x.size(1);
  params.x = rows.stream.data();
  params.operand = rows.operand.data();
  params.weight = matrix.memory.view({.row = matrix.memory.stride(0)});
  params.weight_is_transposed = is_backward != matrix.is_transposed;
  params.bias = is_backward ? nullptr : inputs.bias.data();
  params.alpha = inputs.alpha.data();
  params.beta = inputs.beta.data();
  params.y = y.data();
  params.allow_tf32 = allows_tf32();
  return run_on_device(params, x) ? y.tensor() : product_of_torch(inputs, rows, is_backward);
}
#endif

/// beta * x + (x W + b) / alpha, or beta * dy + dy W^T / alpha for the gradient.
Tensor scaled_product(const Inputs& inputs, const StreamRows& rows, bool is_backward) {
  if (is_torch_asked_for()) return product_of_torch(inputs, rows, is_backward);
#if defined(AERO_CUDA)
  if (rows.stream.tensor().is_cuda()) return product_on_device(inputs, rows, is_backward);
#endif
  return add_residual(inputs, rows, linear_of(inputs, rows, is_backward));
}

/// Gradients of the parameters, where the tensors are.
void run_where_it_is(const kernels::ScaledFfnGradientParams& params,
                     [[maybe_unused]] const Tensor& x) {
#if defined(AERO_CUDA)
  if (x.is_cuda()) return run_on_device(params, x);
#endif
  const Workspace workspace = run_parallel(params);
  kernels::cpu::finish(params, workspace.data());
}

}  // namespace

Tensor scaled_ffn(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& alpha,
                  const Tensor& beta) {
  const Inputs inputs(x, weight, bias, alpha, beta);
  return torch::stable::reshape(scaled_product(inputs, StreamRows(inputs, "x", x), false),
                                inputs.shape);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> scaled_ffn_backward(
    const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& bias,
    const Tensor& alpha, const Tensor& beta, bool needs_x, bool needs_parameters) {
  const Inputs inputs(x, weight, bias, alpha, beta);
  const StreamRows dy_rows(inputs, "dy", dy);

  Tensor dx = Result(x, {}, inputs.type, false).tensor();
  if (needs_x) dx = torch::stable::reshape(scaled_product(inputs, dy_rows, true), inputs.shape);
  const auto gradient_of = [&](const Tensor& parameter) {
    return Result(parameter, shape_of(parameter), parameter.scalar_type(), needs_parameters);
  };
  const Result dbias = gradient_of(bias), dalpha = gradient_of(alpha), dbeta = gradient_of(beta);
  if (!needs_parameters)
    return {dx, gradient_of(weight).tensor(), dbias.tensor(), dalpha.tensor(), dbeta.tensor()};

  // G = x^T dy, turned into dW where it lies.
  const StreamRows x_rows(inputs, "x", x);
  const Result dweight(matrix_product(torch::stable::transpose(x_rows.operand.tensor(), 0, 1),
                                      torch::stable::transpose(dy_rows.operand.tensor(), 0, 1)));
  const Operand weight_rows = inputs.gate.take(
      weight, {"weight", shape_of(weight), "[C, C]", inputs.weight_type, "", Layout::kRows});

  kernels::ScaledFfnGradientParams params;
  params.data_type = kernel_type(kOp, "weight", inputs.weight_type);
  params.rows = dy_rows.shape()[0];
  params.width = inputs.shape.back();
  params.dy = dy_rows.operand.data();
  params.weight = weight_rows.view({.row = weight_rows.stride(0)});
  params.bias = inputs.bias.data();
  params.alpha = inputs.alpha.data();
  params.dweight = dweight.data();
  params.dbias = dbias.data();
  params.dalpha = dalpha.data();
  params.dbeta = dbeta.data();
  run_where_it_is(params, x);
  return {dx, dweight.tensor(), dbias.tensor(), dalpha.tensor(), dbeta.tensor()};
}

}  // namespace aero::torch_ops
