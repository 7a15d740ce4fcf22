#include "kernels/scaled_ffn.h"

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
  if (value_of(alpha) == 0) refuse(kOp, "alpha", "nonzero", "0");
}

/// x [..., C] as contiguous [M, C].
Tensor as_rows(const Tensor& x) {
  const int64_t width = x.size(x.dim() - 1);
  return torch::stable::reshape(torch::stable::contiguous(x),
                                std::vector<int64_t>{width ? x.numel() / width : 0, width});
}

/// `rows` in the type of the weight, in which products are computed.
Tensor as_operand(const Tensor& rows, const Tensor& weight) {
  return rows.scalar_type() == weight.scalar_type() ? rows
                                                    : torch::stable::to(rows, weight.scalar_type());
}

/// beta * x + linear / alpha, in the memory of `linear` where the types allow.
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

}  // namespace

Tensor scaled_ffn(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& alpha,
                  const Tensor& beta) {
  check(x, weight, bias, alpha, beta);
  const Tensor rows = as_rows(x);
  const Tensor linear =
      matrix_product(as_operand(rows, weight), torch::stable::transpose(weight, 0, 1), bias);
  return torch::stable::reshape(add_residual(rows, linear, alpha, beta), shape_of(x));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> scaled_ffn_backward(
    const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& bias,
    const Tensor& alpha, const Tensor& beta, bool needs_x, bool needs_parameters) {
  check(x, weight, bias, alpha, beta);
  require_shape(kOp, "dy", dy, shape_of(x), "[..., C]");
  require_dtype(kOp, "dy", dy, x.scalar_type(), " like x");
  const Tensor dstream = as_rows(dy);
  const Tensor dy_rows = as_operand(dstream, weight);

  Tensor dx = empty(x, {0}, x.scalar_type());
  if (needs_x)
    dx = torch::stable::reshape(add_residual(dstream, matrix_product(dy_rows, weight), alpha, beta),
                                shape_of(x));
  if (!needs_parameters) {
    const auto none = [&](const Tensor& like) { return empty(like, {0}, like.scalar_type()); };
    return {dx, none(weight), none(bias), none(alpha), none(beta)};
  }

  // G = x^T dy, turned into dW where it lies.
  const Tensor x_rows = as_operand(as_rows(x), weight);
  const Tensor dweight = matrix_product(torch::stable::transpose(x_rows, 0, 1),
                                        torch::stable::transpose(dy_rows, 0, 1));
  const Tensor dbias = empty(bias, shape_of(bias), bias.scalar_type());
  const Tensor dalpha = empty(alpha, shape_of(alpha), alpha.scalar_type());
  const Tensor dbeta = empty(beta, shape_of(beta), beta.scalar_type());
  const Tensor weight_rows = with_contiguous_rows(weight);
  const Tensor bias_row = torch::stable::contiguous(bias);

  kernels::ScaledFfnGradientParams params;
  params.data_type = data_type_of(kOp, "weight", weight);
  params.rows = dy_rows.size(0);
  params.width = dy_rows.size(1);
  params.dy = dy_rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.weight_row_stride = weight_rows.stride(0);
  params.bias = bias_row.const_data_ptr();
  params.alpha = alpha.const_data_ptr();
  params.dweight = dweight.mutable_data_ptr();
  params.dbias = dbias.mutable_data_ptr();
  params.dalpha = dalpha.mutable_data_ptr();
  params.dbeta = dbeta.mutable_data_ptr();
  const Workspace workspace = run_parallel(params);
  kernels::cpu::finish(params, workspace.data());
  return {dx, dweight, dbias, dalpha, dbeta};
}

}  // namespace aero::torch_ops
