// The fastest matrix product that ships with torch on this processor; on a GPU torch's own.
#pragma once

#include <optional>

#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {

/// a [M, K] times b_transposed [N, K] transposed, plus bias [N]: a new contiguous [M, N]. Any
/// strides of the matrices, a transposed view costing at most one copy of it; the bias contiguous,
/// because oneDNN does not look at its stride.
Tensor matrix_product(const Tensor& a, const Tensor& b_transposed,
                      const std::optional<Tensor>& bias = std::nullopt);

}  // namespace aero::torch_ops
