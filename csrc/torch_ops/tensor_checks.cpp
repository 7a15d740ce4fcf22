#include "csrc/torch_ops/tensor_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <stdexcept>

namespace aero::torch_ops {
namespace {

constexpr const char* kInvertible = "a number with a finite inverse";

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

const char* type_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(type);
  }
}

/// Refuses a temperature whose inverse is not finite: 0, NaN, and numbers that small.
template <class Real>
void require_inverses(const char* op, const Operand& temperature, const Rows& rows) {
  const auto [values, strides] = temperature.view<Real>();
  // A broadcast dimension is looked at once.
  const int64_t batch = strides.batch ? rows.batch : std::min<int64_t>(rows.batch, 1);
  const int64_t heads = strides.head ? rows.heads : std::min<int64_t>(rows.heads, 1);
  const int64_t queries = strides.row ? rows.queries : std::min<int64_t>(rows.queries, 1);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < queries; ++i) {
        const Real value = values[b * strides.batch + h * strides.head + i * strides.row];
        if (!std::isfinite(1 / value))
          refuse(op, "temperature", kInvertible,
                 number_text(value) + " at head " + std::to_string(h) + ", position " +
                     std::to_string(i) +
                     (strides.batch ? ", batch entry " + std::to_string(b) : ""));
      }
}

bool is_laid_out(const Tensor& tensor, Layout layout) {
  if (layout == Layout::kAny) return true;
  if (layout == Layout::kContiguous) return tensor.is_contiguous();
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1;
}

}  // namespace

void refuse(const char* op, const std::string& argument, const std::string& expected,
            const std::string& got) {
  throw std::invalid_argument(std::string(op) + ": " + argument + " must be " + expected +
                              ", got " + got);
}

void require_possible(const char* op, const char* letter, int64_t size) {
  if (size > kMostPositions)
    refuse(op, letter, "at most " + std::to_string(kMostPositions), std::to_string(size));
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

Shape shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

kernels::DataType kernel_type(const char* op, const char* argument, ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return kernels::DataType::kFloat32;
    case ScalarType::BFloat16:
      return kernels::DataType::kBFloat16;
    case ScalarType::Half:
      return kernels::DataType::kFloat16;
    case ScalarType::Double:
      return kernels::DataType::kFloat64;
    default:
      refuse(op, argument, "float32, bfloat16, float16 or float64", type_name(type));
  }
}

ScalarType statistics_type(kernels::DataType data_type) {
  return data_type == kernels::DataType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

Operand::Operand(const Tensor& tensor) : tensor_(tensor) {
  const int64_t dims = std::min<int64_t>(tensor.dim(), std::ssize(strides_));
  for (int64_t d = 0; d < dims; ++d) strides_[static_cast<size_t>(d)] = tensor.stride(d);
}

Operand Operand::contiguous(const Tensor& tensor) {
  return Operand(torch::stable::contiguous(tensor));
}

const Tensor& Operand::tensor() const {
  if (!tensor_) throw std::logic_error("no tensor was given");
  return *tensor_;
}

StoredMatrix::StoredMatrix(const Operand& matrix)
    : memory(matrix), is_transposed(matrix.stride(1) != 1 && matrix.stride(0) == 1) {
  // A transposed view is the matrix of its memory, transposed.
  if (is_transposed) memory = Operand(torch::stable::transpose(matrix.tensor(), 0, 1));
  const bool is_row = memory.tensor().size(1) <= 1 || memory.stride(1) == 1;
  if (!is_row || memory.stride(0) < memory.tensor().size(1))
    memory = Operand::contiguous(memory.tensor());
}

Gate::Gate(const char* op, const char* name, const Tensor& first, int64_t dim, const char* letters)
    : op_(op),
      name_(name),
      type_(first.scalar_type()),
      is_cpu_(first.is_cpu()),
      device_(first.get_device_index()) {
  if (dim == kAnyDim ? first.dim() < 1 : first.dim() != dim)
    refuse(op, name, letters, shape_text(shape_of(first)));
}

void Gate::require_place(const Tensor& tensor, const Wanted& wanted) const {
  const auto place = [](bool is_cpu, int32_t device) {
    return is_cpu ? std::string("the CPU") : "device " + std::to_string(device);
  };
  const bool is_cpu = tensor.is_cpu();
  const int32_t device = tensor.get_device_index();
  if (is_cpu != is_cpu_ || device != device_)
    refuse(op_, wanted.name, "on " + place(is_cpu_, device_) + " like " + name_,
           place(is_cpu, device));
  if (tensor.scalar_type() != wanted.dtype)
    refuse(op_, wanted.name, std::string(type_name(wanted.dtype)) + wanted.like,
           type_name(tensor.scalar_type()));
  const auto size = static_cast<uint64_t>(tensor.element_size());
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  if (address % size != 0)
    refuse(op_, wanted.name, "at an address that is a multiple of " + std::to_string(size),
           std::to_string(address % size) + " more");
}

Operand Gate::take(const Tensor& tensor, const Wanted& wanted) const {
  const auto sizes = tensor.sizes();
  if (!std::equal(sizes.begin(), sizes.end(), wanted.shape.begin(), wanted.shape.end()))
    refuse(
        op_, wanted.name,
        wanted.shape.empty() ? wanted.letters : wanted.letters + (" = " + shape_text(wanted.shape)),
        shape_text(shape_of(tensor)));
  require_place(tensor, wanted);
  return is_laid_out(tensor, wanted.layout) ? Operand(tensor) : Operand::contiguous(tensor);
}

Operand Gate::take(const OptionalTensor& tensor, const Wanted& wanted) const {
  return tensor ? take(*tensor, wanted) : Operand();
}

Operand Gate::rows(const Tensor& tensor, const Wanted& wanted) const {
  const Tensor checked = take(tensor, wanted).tensor();
  const int64_t width = checked.size(checked.dim() - 1);
  return Operand::contiguous(
      torch::stable::reshape(checked, Shape{width ? checked.numel() / width : 0, width}));
}

Operand Gate::broadcast(const OptionalTensor& tensor, const Wanted& wanted) const {
  Operand operand;
  if (!tensor) return operand;
  require_place(*tensor, wanted);
  const int64_t dim = tensor->dim(), missing = std::ssize(wanted.shape) - dim;
  bool fits = missing >= 0;
  for (int64_t d = 0; fits && d < dim; ++d) {
    const auto target = static_cast<size_t>(missing + d);
    fits = tensor->size(d) == wanted.shape[target] || tensor->size(d) == 1;
    operand.strides_[target] = tensor->size(d) == 1 ? 0 : tensor->stride(d);
  }
  if (!fits)
    refuse(op_, wanted.name,
           std::string("broadcastable to ") + wanted.letters + " = " + shape_text(wanted.shape),
           shape_text(shape_of(*tensor)));
  operand.tensor_ = tensor;
  return operand;
}

Operand Gate::temperature(const OptionalTensor& temperature, ScalarType dtype,
                          const Rows& rows) const {
  Operand operand;
  if (!temperature) return operand;
  require_place(*temperature, {"temperature", {}, "", dtype, ""});
  const Shape shape = shape_of(*temperature), full = rows.shape();
  const auto stride = [&](int64_t d) { return temperature->stride(d); };
  if (shape == full) {
    operand.strides_ = {stride(0), stride(1), stride(2), 0};
  } else if (shape.size() == 2 && std::equal(shape.begin(), shape.end(), full.begin() + 1)) {
    operand.strides_ = {0, stride(0), stride(1), 0};
  } else if (shape.size() == 1 && shape[0] == rows.heads) {
    operand.strides_ = {0, stride(0), 0, 0};
  } else if (shape.size() > 1 || temperature->numel() != 1) {
    refuse(op_, "temperature",
           "a scalar, [1], [H], [H, T] or [B, H, T] with [B, H, T] = " + shape_text(full),
           shape_text(shape));
  }
  operand.tensor_ = temperature;
  if (temperature->is_cpu())
    dtype == ScalarType::Double ? require_inverses<double>(op_, operand, rows)
                                : require_inverses<float>(op_, operand, rows);
  return operand;
}

Operand Gate::scalar(const char* name, const Tensor& tensor, ScalarType dtype, bool divides) const {
  if (tensor.dim() > 1 || tensor.numel() != 1)
    refuse(op_, name, "a scalar or [1]", shape_text(shape_of(tensor)));
  require_place(tensor, {name, {}, "", dtype, ""});
  Operand operand;
  operand.tensor_ = tensor;
  if (!divides || !tensor.is_cpu()) return operand;
  const bool is_double = dtype == ScalarType::Double;
  const double value = is_double ? *static_cast<const double*>(operand.data())
                                 : *static_cast<const float*>(operand.data());
  if (!std::isfinite(is_double ? 1 / value : 1 / static_cast<float>(value)))
    refuse(op_, name, kInvertible, number_text(value));
  return operand;
}

Result::Result(const Tensor& like, const Shape& shape, ScalarType dtype, bool wanted)
    : tensor_(torch::stable::new_empty(like, wanted ? shape : Shape{0}, dtype)) {}

kernels::TensorView<void> Result::view() const {
  if (tensor_.dim() < 3) return {data(), {}};
  return {data(), {tensor_.stride(0), tensor_.stride(1), tensor_.stride(2)}};
}

Tensor sum_to_temperature(const Tensor& row_gradients, const Tensor& temperature) {
  Shape summed;
  switch (temperature.dim()) {
    case 3:
      return row_gradients;
    case 2:
      summed = {0};
      break;
    case 1:
      summed = temperature.size(0) == row_gradients.size(1) ? Shape{0, 2} : Shape{0, 1, 2};
      break;
    default:
      summed = {0, 1, 2};
  }
  return torch::stable::reshape(torch::stable::sum(row_gradients, summed), shape_of(temperature));
}

}  // namespace aero::torch_ops
