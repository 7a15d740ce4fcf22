// The gate: the one place where an operator's tensors are checked, and the only one that reads
// their addresses and strides (tests/python/test_layering.py). A tensor that has passed it is an
// Operand.
//
// std::invalid_argument arrives in Python as ValueError; thrown inside a parallel loop it would
// lose its message, so everything is checked before one starts.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/layout.h"

namespace aero::torch_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Shape = std::vector<int64_t>;

/// Throws std::invalid_argument("operator: argument must be expected, got got").
[[noreturn]] void refuse(const char* op, const std::string& argument, const std::string& expected,
                         const std::string& got);
/// The largest T and S: 2^40, with more of which sizes of memory would overflow.
inline constexpr int64_t kMostPositions = 1'099'511'627'776;
/// Refuses a size that only an expanded tensor can have, with which sizes of memory would overflow.
void require_possible(const char* op, const char* letter, int64_t size);

/// "[2, 4, 128, 64]"
std::string shape_text(const Shape& shape);
Shape shape_of(const Tensor& tensor);

/// The kernels' name of an argument's type; refuses types that no kernel takes.
kernels::DataType kernel_type(const char* op, const char* argument, ScalarType type);
/// The type of temperature, entropy and logsumexp that goes with `data_type`.
ScalarType statistics_type(kernels::DataType data_type);

/// B, H, T and S of one attention-like operator.
struct Rows {
  int64_t batch, heads, queries, keys;

  Shape shape() const { return {batch, heads, queries}; }
};

/// The strides that a kernel honours; a tensor that has others is copied.
enum class Layout : uint8_t { kAny, kRows, kContiguous };  ///< kRows: the last dimension has 1

/// The requirements of an operator for a tensor. `letters` is like "[B, H, T, D]"; `like` names
/// what sets the type, as in " like q".
struct Wanted {
  const char* name;
  Shape shape;
  const char* letters;
  ScalarType dtype;
  const char* like;
  Layout layout = Layout::kRows;
};

/// A tensor that has passed the gate, or none: null and strides of 0 then. Keeps its memory alive.
class Operand {
 public:
  Operand() = default;
  /// A result of the operator itself, made contiguous.
  static Operand contiguous(const Tensor& tensor);

  explicit operator bool() const { return tensor_.has_value(); }
  /// Throws std::logic_error where there is none.
  const Tensor& tensor() const;
  const void* data() const { return tensor_ ? tensor_->const_data_ptr() : nullptr; }
  /// Of dimension d of the shape that was asked for; 0 where the tensor broadcasts.
  int64_t stride(size_t d) const { return strides_[d]; }
  /// With the strides of [batch, head, row, column], or with others.
  template <class T = void>
  kernels::TensorView<const T> view() const {
    return view<T>({strides_[0], strides_[1], strides_[2], strides_[3]});
  }
  template <class T = void>
  kernels::TensorView<const T> view(const kernels::Strides& strides) const {
    return {static_cast<const T*>(data()), strides};
  }

 private:
  friend class Gate;
  friend struct StoredMatrix;
  explicit Operand(const Tensor& tensor);
  OptionalTensor tensor_;
  std::array<int64_t, 4> strides_{};
};

/// A matrix as it lies in memory: rows one after the other, or those of its transpose.
struct StoredMatrix {
  Operand memory;
  bool is_transposed;

  explicit StoredMatrix(const Operand& matrix);
};

/// Lets the tensors of one call through: all on the device of the first.
class Gate {
 public:
  static constexpr int64_t kAnyDim = -1;  ///< [..., C]

  /// `first`, whose name is `name`, may have any sizes in its `dim` dimensions.
  Gate(const char* op, const char* name, const Tensor& first, int64_t dim, const char* letters);

  /// Of the first tensor; refuses types that no kernel takes.
  kernels::DataType data_type() const { return kernel_type(op_, name_, type_); }

  Operand take(const Tensor& tensor, const Wanted& wanted) const;
  /// An absent tensor stays absent.
  Operand take(const OptionalTensor& tensor, const Wanted& wanted) const;
  /// A tensor [..., C] as contiguous [M, C].
  Operand rows(const Tensor& tensor, const Wanted& wanted) const;
  /// A tensor that broadcasts to the shape, of at most four dimensions; its layout is kAny.
  Operand broadcast(const OptionalTensor& tensor, const Wanted& wanted) const;
  /// 0-D, [1], [H], [H, T] or [B, H, T], as a [B, H, T] tensor. On the CPU every value must have a
  /// finite inverse; those of other devices are not looked at.
  Operand temperature(const OptionalTensor& temperature, ScalarType dtype, const Rows& rows) const;
  /// 0-D or [1]; on the CPU of finite inverse if it divides.
  Operand scalar(const char* name, const Tensor& tensor, ScalarType dtype, bool divides) const;

 private:
  /// Checks device, type and alignment.
  void require_place(const Tensor& tensor, const Wanted& wanted) const;

  const char* op_;
  const char* name_;
  ScalarType type_;
  bool is_cpu_;
  int32_t device_;
};

/// A new tensor for a kernel to fill, on the device of `like`; one that is not wanted has no
/// elements, and no address.
class Result {
 public:
  Result(const Tensor& like, const Shape& shape, ScalarType dtype, bool wanted = true);
  /// A permuted view of the tensor that this fills.
  explicit Result(const Tensor& own) : tensor_(own) {}

  const Tensor& tensor() const { return tensor_; }
  void* data() const { return tensor_.numel() ? tensor_.mutable_data_ptr() : nullptr; }
  /// Of [batch, head, row, ...].
  kernels::TensorView<void> view() const;

 private:
  Tensor tensor_;
};

/// Sums gradients of rows [B, H, T] to the shape of the temperature; fixed order.
Tensor sum_to_temperature(const Tensor& row_gradients, const Tensor& temperature);

}  // namespace aero::torch_ops
