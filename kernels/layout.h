// How tensors are described to the kernels: raw pointers, an element type, and element strides.
#pragma once

#include <cstdint>

namespace aero::kernels {

/// Element type of the large tensors (q, k, v, scores, ...). Statistics, temperatures and entropies
/// are float for the first three and double for kFloat64.
enum class DataType : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

/// Element strides of a [batch, head, row, column] tensor whose columns are contiguous, or of a
/// [batch, head, row] tensor. A stride of 0 broadcasts.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

/// Element strides of the boolean mask [batch, head, query, key]. A stride of 0 broadcasts.
struct MaskStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  int64_t key = 0;
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
