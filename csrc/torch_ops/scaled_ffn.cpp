#include "kernels/scaled_ffn.h"

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/float32_precision.h"
#include "csrc/torch_ops/matrix_product.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "scaled_ffn";

double value_of(const Tensor& scalar) {
  const void* value = scalar.const_data_ptr();
  return scalar.scalar_type() == ScalarType::Double ? *static_cast<const double*>(value)
                                                    : *static_cast<const float*>(value);
}

void check(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& alpha,
           const Tensor& beta) {
  if (x.dim() < 1) refuse(kOp, "x", "[..., C]", shape_text(shape_of(x)));
  const int64_t width = x.size(x.dim() - 1);
  const ScalarType type = x.scalar_type();
  const ScalarType scale_type = statistics_type(data_type_of(kOp, "x", x));
  if (width > 0) require_possible(kOp, "rows of x", x.numel() / width);
  require_shape(kOp, "weight", weight, {width, width}, "[C, C]");
  // Beside half weights a float32 stream stays what it is: only its product is computed in half.
  const bool is_half =
      weight.scalar_type() == ScalarType::BFloat16 || weight.scalar_type() == ScalarType::Half;
  require_dtype(kOp, "weight", weight,
                type == ScalarType::Float && is_half ? weight.scalar_type() : type, " like x");
  require_shape(kOp, "bias", bias, {width}, "[C]");
  require_dtype(kOp, "bias", bias, weight.scalar_type(), " like weight");
  for (const auto& [name, scale] : {std::pair{"alpha", alpha}, std::pair{"beta", beta}}) {
    require_scalar(kOp, name, scale);
    require_dtype(kOp, name, scale, scale_type, "");
  }
  for (const auto& [name, tensor] : {std::pair{"weight", weight}, std::pair{"bias", bias},
                                     std::pair{"alpha", alpha}, std::pair{"beta", beta}})
    require_device(kOp, name, tensor, x, "x");
  // What a device holds is not known without waiting for it.
  if (alpha.is_cpu() && value_of(alpha) == 0) refuse(kOp, "alpha", "nonzero", "0");
}

/// x [..., C] as contiguous [M, C].
Tensor as_rows(const Tensor& x) {
  const int64_t width = x.size(x.dim() - 1);
  return torch::stable::reshape(torch::stable::contiguous(x),
                                std::vector<int64_t>{width ? x.numel() / width : 0, width});
}

/// Rows of a stream, and the same in the type of the weight, in which products are computed.
struct StreamRows {
  Tensor stream, operand;  ///< [M, C] contiguous

  StreamRows(const Tensor& x, const Tensor& weight)
      : stream(as_rows(x)),
        operand(stream.scalar_type() == weight.scalar_type()
                    ? stream
                    : torch::stable::to(stream, weight.scalar_type())) {}
};

/// beta * x + linear / alpha on the CPU, in the memory of `linear` where the types allow.
Tensor add_residual(const Tensor& x, const Tensor& linear, const Tensor& alpha,
                    const Tensor& beta) {
  const Tensor y =
      x.scalar_type() == linear.scalar_type() ? linear : empty(x, shape_of(x), x.scalar_type());
  kernels::ScaledFfnEpilogueParams params;
  params.data_type = data_type_of(kOp, "weight", linear);
  params.stream_type = data_type_of(kOp, "x", x);
  params.elements = x.numel();
  params.x = x.const_data_ptr();
  params.linear = linear.const_data_ptr();
  params.y = y.mutable_data_ptr();
  params.alpha = alpha.const_data_ptr();
  params.beta = beta.const_data_ptr();
  run_parallel(params);
  return y;
}

#if defined(AERO_CUDA)
/// Does a call in torch's stream.
template <class Params>
void run_on_device(const Params& params, const Tensor& like) {
  const Tensor workspace =
      empty(like, {static_cast<int64_t>(kernels::cuda::workspace_bytes(params))}, ScalarType::Byte);
  kernels::cuda::launch(params, workspace.mutable_data_ptr(), CudaQueue(kOp, like).get());
}

/// beta * x + (x W + b) / alpha in one product on a GPU.
Tensor product_on_device(const StreamRows& rows, const Tensor& weight, bool weight_is_transposed,
                         const OptionalTensor& bias, const Tensor& alpha, const Tensor& beta) {
  // A transposed view is the matrix of its memory, transposed.
  const bool is_view = weight.stride(1) != 1 && weight.stride(0) == 1;
  Tensor matrix = with_contiguous_rows(is_view ? torch::stable::transpose(weight, 0, 1) : weight);
  if (matrix.stride(0) < matrix.size(1)) matrix = torch::stable::contiguous(matrix);
  const Tensor& x = rows.stream;
  const Tensor y = empty(x, shape_of(x), x.scalar_type());
  Tensor bias_row;
  if (bias) bias_row = torch::stable::contiguous(*bias);
  kernels::ScaledFfnProductParams params;
  params.data_type = data_type_of(kOp, "weight", weight);
  params.stream_type = data_type_of(kOp, "x", x);
  params.rows = x.size(0);
  params.width = x.size(1);
  params.x = x.const_data_ptr();
  params.operand = rows.operand.const_data_ptr();
  params.weight = matrix.const_data_ptr();
  params.weight_row_stride = matrix.stride(0);
  params.weight_is_transposed = weight_is_transposed != is_view;
  params.bias = bias ? bias_row.const_data_ptr() : nullptr;
  params.alpha = alpha.const_data_ptr();
  params.beta = beta.const_data_ptr();
  params.y = y.mutable_data_ptr();
  params.allow_tf32 = allows_tf32();
  run_on_device(params, x);
  return y;
}
#endif

/// beta * x + (x W + b) / alpha for rows x, or with W transposed.
Tensor scaled_product(const StreamRows& rows, const Tensor& weight, bool weight_is_transposed,
                      const OptionalTensor& bias, const Tensor& alpha, const Tensor& beta) {
#if defined(AERO_CUDA)
  if (rows.stream.is_cuda())
    return product_on_device(rows, weight, weight_is_transposed, bias, alpha, beta);
#endif
  const Tensor factor = weight_is_transposed ? weight : torch::stable::transpose(weight, 0, 1);
  return add_residual(rows.stream, matrix_product(rows.operand, factor, bias), alpha, beta);
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
  check(x, weight, bias, alpha, beta);
  return torch::stable::reshape(
      scaled_product(StreamRows(x, weight), weight, false, bias, alpha, beta), shape_of(x));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> scaled_ffn_backward(
    const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& bias,
    const Tensor& alpha, const Tensor& beta, bool needs_x, bool needs_parameters) {
  check(x, weight, bias, alpha, beta);
  require_shape(kOp, "dy", dy, shape_of(x), "[..., C]");
  require_dtype(kOp, "dy", dy, x.scalar_type(), " like x");
  require_device(kOp, "dy", dy, x, "x");
  const StreamRows dy_rows(dy, weight);

  Tensor dx = empty(x, {0}, x.scalar_type());
  if (needs_x)
    dx = torch::stable::reshape(scaled_product(dy_rows, weight, true, std::nullopt, alpha, beta),
                                shape_of(x));
  if (!needs_parameters) {
    const auto none = [&](const Tensor& like) { return empty(like, {0}, like.scalar_type()); };
    return {dx, none(weight), none(bias), none(alpha), none(beta)};
  }

  // G = x^T dy, turned into dW where it lies.
  const StreamRows x_rows(x, weight);
  const Tensor dweight = matrix_product(torch::stable::transpose(x_rows.operand, 0, 1),
                                        torch::stable::transpose(dy_rows.operand, 0, 1));
  const Tensor dbias = empty(bias, shape_of(bias), bias.scalar_type());
  const Tensor dalpha = empty(alpha, shape_of(alpha), alpha.scalar_type());
  const Tensor dbeta = empty(beta, shape_of(beta), beta.scalar_type());
  const Tensor weight_rows = with_contiguous_rows(weight);
  const Tensor bias_row = torch::stable::contiguous(bias);

  kernels::ScaledFfnGradientParams params;
  params.data_type = data_type_of(kOp, "weight", weight);
  params.rows = dy_rows.operand.size(0);
  params.width = dy_rows.operand.size(1);
  params.dy = dy_rows.operand.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.weight_row_stride = weight_rows.stride(0);
  params.bias = bias_row.const_data_ptr();
  params.alpha = alpha.const_data_ptr();
  params.dweight = dweight.mutable_data_ptr();
  params.dbias = dbias.mutable_data_ptr();
  params.dalpha = dalpha.mutable_data_ptr();
  params.dbeta = dbeta.mutable_data_ptr();
  run_where_it_is(params, x);
  return {dx, dweight, dbias, dalpha, dbeta};
}

}  // namespace aero::torch_ops
