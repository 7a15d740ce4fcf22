#include "csrc/torch_ops/tensor_checks.h"

#include <algorithm>
#include <stdexcept>

namespace aero::torch_ops {
namespace {

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

void require_alignment(const char* op, const char* argument, const Tensor& tensor) {
  const auto size = static_cast<uint64_t>(tensor.element_size());
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  if (address % size != 0)
    refuse(op, argument, "at an address that is a multiple of " + std::to_string(size),
           std::to_string(address % size) + " more");
}

template <class Real>
void refuse_zeros(const char* op, const Tensor& temperature, const kernels::Strides& strides,
                  const Rows& rows) {
  const auto* values = static_cast<const Real*>(temperature.const_data_ptr());
  // A broadcast dimension is looked at once.
  const int64_t batch = strides.batch ? rows.batch : std::min<int64_t>(rows.batch, 1);
  const int64_t heads = strides.head ? rows.heads : std::min<int64_t>(rows.heads, 1);
  const int64_t queries = strides.row ? rows.queries : std::min<int64_t>(rows.queries, 1);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < queries; ++i)
        if (values[b * strides.batch + h * strides.head + i * strides.row] == 0)
          refuse(op, "temperature", "nonzero",
                 "0 at head " + std::to_string(h) + ", position " + std::to_string(i) +
                     (strides.batch ? ", batch entry " + std::to_string(b) : ""));
}

}  // namespace

void refuse(const char* op, const std::string& argument, const std::string& expected,
            const std::string& got) {
  throw std::invalid_argument(std::string(op) + ": " + argument + " must be " + expected +
                              ", got " + got);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::vector<int64_t> shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

void require_dim(const char* op, const char* argument, const Tensor& tensor, int64_t dim,
                 const char* letters) {
  if (tensor.dim() != dim) refuse(op, argument, letters, shape_text(shape_of(tensor)));
}

void require_shape(const char* op, const char* argument, const Tensor& tensor,
                   const std::vector<int64_t>& shape, const char* letters) {
  if (shape_of(tensor) != shape)
    refuse(op, argument, std::string(letters) + " = " + shape_text(shape),
           shape_text(shape_of(tensor)));
}

void require_dtype(const char* op, const char* argument, const Tensor& tensor, ScalarType dtype,
                   const char* like) {
  if (tensor.scalar_type() != dtype)
    refuse(op, argument, std::string(type_name(dtype)) + like, type_name(tensor.scalar_type()));
  require_alignment(op, argument, tensor);
}

void require_device(const char* op, const char* argument, const Tensor& tensor, const Tensor& like,
                    const char* name) {
  const auto place_of = [](const Tensor& t) {
    return t.is_cpu() ? std::string("the CPU") : "device " + std::to_string(t.get_device_index());
  };
  if (tensor.is_cpu() != like.is_cpu() || tensor.get_device_index() != like.get_device_index())
    refuse(op, argument, "on " + place_of(like) + " like " + name, place_of(tensor));
}

void require_scalar(const char* op, const char* argument, const Tensor& tensor) {
  if (tensor.dim() > 1 || tensor.numel() != 1)
    refuse(op, argument, "a scalar or [1]", shape_text(shape_of(tensor)));
}

kernels::DataType data_type_of(const char* op, const char* argument, const Tensor& tensor) {
  require_alignment(op, argument, tensor);
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return kernels::DataType::kFloat32;
    case ScalarType::BFloat16:
      return kernels::DataType::kBFloat16;
    case ScalarType::Half:
      return kernels::DataType::kFloat16;
    case ScalarType::Double:
      return kernels::DataType::kFloat64;
    default:
      refuse(op, argument, "float32, bfloat16, float16 or float64",
             type_name(tensor.scalar_type()));
  }
}

ScalarType statistics_type(kernels::DataType data_type) {
  return data_type == kernels::DataType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

Tensor with_contiguous_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  const bool is_row = tensor.size(last) <= 1 || tensor.stride(last) == 1;
  return is_row ? tensor : torch::stable::contiguous(tensor);
}

void require_possible(const char* op, const char* letter, int64_t size) {
  constexpr int64_t limit = 1'099'511'627'776;  // 2^40
  if (size > limit) refuse(op, letter, "at most " + std::to_string(limit), std::to_string(size));
}

kernels::Strides strides_of(const Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

kernels::Strides temperature_strides(const char* op, const Tensor& temperature, ScalarType dtype,
                                     const Rows& rows) {
  require_dtype(op, "temperature", temperature, dtype, "");
  const std::vector<int64_t> shape = shape_of(temperature),
                             full = {rows.batch, rows.heads, rows.queries};
  kernels::Strides strides;
  if (temperature.dim() == 3 && shape == full) {
    strides = strides_of(temperature);
  } else if (temperature.dim() == 2 && std::equal(shape.begin(), shape.end(), full.begin() + 1)) {
    strides = {0, temperature.stride(0), temperature.stride(1)};
  } else if (temperature.dim() == 1 && shape[0] == rows.heads) {
    strides = {0, temperature.stride(0), 0};
  } else if (temperature.dim() > 1 || temperature.numel() != 1) {
    refuse(op, "temperature",
           "a scalar, [1], [H], [H, T] or [B, H, T] with [B, H, T] = " + shape_text(full),
           shape_text(shape));
  }
  if (!temperature.is_cpu()) return strides;
  dtype == ScalarType::Double ? refuse_zeros<double>(op, temperature, strides, rows)
                              : refuse_zeros<float>(op, temperature, strides, rows);
  return strides;
}

Tensor sum_to_temperature(const Tensor& row_gradients, const Tensor& temperature) {
  std::vector<int64_t> summed;
  switch (temperature.dim()) {
    case 3:
      return row_gradients;
    case 2:
      summed = {0};
      break;
    case 1:
      summed = temperature.size(0) == row_gradients.size(1) ? std::vector<int64_t>{0, 2}
                                                            : std::vector<int64_t>{0, 1, 2};
      break;
    default:
      summed = {0, 1, 2};
  }
  return torch::stable::reshape(torch::stable::sum(row_gradients, summed), shape_of(temperature));
}

kernels::MaskStrides mask_strides(const char* op, const Tensor& mask, const Rows& rows) {
  require_dtype(op, "mask", mask, ScalarType::Bool, " (true where the query sees the key)");
  const std::vector<int64_t> full = {rows.batch, rows.heads, rows.queries, rows.keys};
  std::vector<int64_t> strides(4, 0);
  const int64_t dim = mask.dim();
  bool fits = dim <= 4;
  for (int64_t d = 0; fits && d < dim; ++d) {
    const auto target = static_cast<size_t>(4 - dim + d);
    fits = mask.size(d) == full[target] || mask.size(d) == 1;
    strides[target] = mask.size(d) == 1 ? 0 : mask.stride(d);
  }
  if (!fits)
    refuse(op, "mask", "broadcastable to [B, H, T, S] = " + shape_text(full),
           shape_text(shape_of(mask)));
  return {strides[0], strides[1], strides[2], strides[3]};
}

std::optional<Tensor> row_gradient(const char* op, const char* argument,
                                   const std::optional<Tensor>& gradient, ScalarType dtype,
                                   const Rows& rows) {
  if (!gradient) return std::nullopt;
  require_shape(op, argument, *gradient, {rows.batch, rows.heads, rows.queries}, "[B, H, T]");
  require_dtype(op, argument, *gradient, dtype, "");
  return torch::stable::contiguous(*gradient);
}

}  // namespace aero::torch_ops
