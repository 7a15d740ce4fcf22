// The one place where an operator's tensors are checked, and the text of what is wrong with them.
//
// std::invalid_argument arrives in Python as ValueError; thrown inside a parallel loop it would
// lose its message, so everything is checked before one starts.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "kernels/layout.h"

namespace aero::torch_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Throws std::invalid_argument("operator: argument must be expected, got got").
[[noreturn]] void refuse(const char* op, const std::string& argument, const std::string& expected,
                         const std::string& got);

/// "[2, 4, 128, 64]"
std::string shape_text(const std::vector<int64_t>& shape);
std::vector<int64_t> shape_of(const Tensor& tensor);

/// Checks the number of dimensions; `letters` is like "[B, H, T, D]".
void require_dim(const char* op, const char* argument, const Tensor& tensor, int64_t dim,
                 const char* letters);
void require_shape(const char* op, const char* argument, const Tensor& tensor,
                   const std::vector<int64_t>& shape, const char* letters);
/// Checks the type, and that the memory is aligned to it. `like` names what sets the expected type,
/// as in "float32 like q".
void require_dtype(const char* op, const char* argument, const Tensor& tensor, ScalarType dtype,
                   const char* like);
/// Refuses a tensor that is not where `like` is, `name` being what that is called.
void require_device(const char* op, const char* argument, const Tensor& tensor, const Tensor& like,
                    const char* name);
/// Refuses scalars that are not 0-D or [1].
void require_scalar(const char* op, const char* argument, const Tensor& tensor);

/// The kernels' name of a floating type; refuses the others, and memory not aligned to it.
kernels::DataType data_type_of(const char* op, const char* argument, const Tensor& tensor);
/// The type of temperature, entropy and logsumexp that goes with `data_type`.
ScalarType statistics_type(kernels::DataType data_type);

/// The tensor itself, or a copy where its last dimension is not contiguous.
Tensor with_contiguous_rows(const Tensor& tensor);
/// Strides of a [batch, head, row, column] or [batch, head, row] tensor.
kernels::Strides strides_of(const Tensor& tensor);

/// Refuses a size that only an expanded tensor can have, with which sizes of memory would overflow.
void require_possible(const char* op, const char* letter, int64_t size);

/// B, H, T and S of one attention-like operator.
struct Rows {
  int64_t batch, heads, queries, keys;
};

/// Checks a temperature (0-D, [1], [H], [H, T] or [B, H, T]; no zeros on the CPU, those of other
/// devices are not looked at) and returns its strides as a [B, H, T] tensor.
kernels::Strides temperature_strides(const char* op, const Tensor& temperature, ScalarType dtype,
                                     const Rows& rows);
/// Sums gradients of rows [B, H, T] to the shape of the temperature; fixed order.
Tensor sum_to_temperature(const Tensor& row_gradients, const Tensor& temperature);
/// Checks a boolean mask that broadcasts to [B, H, T, S] and returns its strides as one.
kernels::MaskStrides mask_strides(const char* op, const Tensor& mask, const Rows& rows);

/// Checks gradients of a [B, H, T] result and makes them contiguous; an absent one stays absent.
std::optional<Tensor> row_gradient(const char* op, const char* argument,
                                   const std::optional<Tensor>& gradient, ScalarType dtype,
                                   const Rows& rows);

inline const void* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

/// An uninitialised tensor on the device of `like`.
inline Tensor empty(const Tensor& like, const std::vector<int64_t>& shape, ScalarType dtype) {
  return torch::stable::new_empty(like, shape, dtype);
}

}  // namespace aero::torch_ops
