// How tensors are described to the kernels: an element type, an address and element strides.
#pragma once

#include <cstdint>

namespace aero::kernels {

/// Element type of the large tensors (q, k, v, scores, ...). Statistics, temperatures and entropies
/// are float for the first three and double for kFloat64.
enum class DataType : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

/// Element strides of a tensor in the dimensions that it has. A stride of 0 broadcasts.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 0;  ///< read of masks and biases: the columns of other tensors are contiguous
  int64_t layer = 0;
};

/// A tensor where it lies, or none. T: void where the params name the element type.
template <class T>
struct TensorView {
  T* data = nullptr;  ///< null: there is no tensor
  Strides strides;

  // Inlined always: a copy would be shared by the instruction sets (README.md).
  [[gnu::always_inline]] constexpr explicit operator bool() const { return data != nullptr; }
};

/// Rows of contiguous bytes that are copied from one place to another, where they begin every
/// `pitch` bytes.
struct RowCopy {
  void* to;
  int64_t to_pitch;
  const void* from;
  int64_t from_pitch;
  int64_t row_bytes, rows;
};

/// Bytes of one element of the large tensors.
constexpr int64_t element_bytes(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat64:
      return 8;
    case DataType::kFloat32:
      return 4;
    default:
      return 2;
  }
}

/// Bytes of one statistic, temperature or entropy that belongs to `data_type`.
constexpr int64_t statistic_bytes(DataType data_type) {
  return data_type == DataType::kFloat64 ? 8 : 4;
}

/// Values per row that the forward pass keeps for the backward pass: [3, T] per head, see
/// online_softmax.h.
inline constexpr int64_t kSavedStatistics = 3;

}  // namespace aero::kernels
