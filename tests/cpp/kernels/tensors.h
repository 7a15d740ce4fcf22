// Tensors for the kernel tests: values in double, stored in any element type and memory layout.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/layout.h"
#include "tests/cpp/kernels/guarded_memory.h"

namespace aero::kernels::testing {

/// How a [batch, head, row, column] tensor lies in memory.
enum class Order {
  kHeadMajor,  ///< [B, H, T, D], contiguous
  kRowMajor,   ///< [B, T, H, D], what a model passes after splitting heads
  kPadded,     ///< [B, H, T, D + 3], rows apart by an odd number of elements
};

inline double round_to(DataType type, double value) {
  switch (type) {
    case DataType::kFloat64:
      return value;
    case DataType::kFloat32:
      return static_cast<float>(value);
    default: {
      if (!std::isfinite(value) || value == 0) return value;
      // Round to the mantissa's 8 or 11 bits; float16 has no exponent below -14.
      const int bits = type == DataType::kBFloat16 ? 8 : 11;
      const int smallest = type == DataType::kBFloat16 ? -126 : -14;
      const double unit = std::ldexp(1.0, std::max(std::ilogb(value), smallest) - bits + 1);
      return std::nearbyint(value / unit) * unit;
    }
  }
}

/// Value of the 16 bits of a bfloat16 or float16.
inline double decode_half(DataType type, uint16_t bits) {
  const int mantissa_bits = type == DataType::kBFloat16 ? 7 : 10;
  const int bias = type == DataType::kBFloat16 ? 127 : 15;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 2 * bias + 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  const int significand = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
}

inline double decode(DataType type, const unsigned char* bytes) {
  if (type == DataType::kFloat64) {
    double value;
    std::memcpy(&value, bytes, 8);
    return value;
  }
  if (type == DataType::kFloat32) {
    float value;
    std::memcpy(&value, bytes, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return decode_half(type, bits);
}

inline void encode(DataType type, double value, unsigned char* bytes) {
  if (type == DataType::kFloat64) {
    std::memcpy(bytes, &value, 8);
    return;
  }
  const float single = static_cast<float>(value);
  if (type == DataType::kFloat32) {
    std::memcpy(bytes, &single, 4);
    return;
  }
  const int mantissa_bits = type == DataType::kBFloat16 ? 7 : 10;
  const int bias = type == DataType::kBFloat16 ? 127 : 15;
  int bits = (2 * bias + 1) << mantissa_bits | (std::isnan(value) ? 1 : 0);
  if (std::isfinite(value)) {
    const double magnitude = std::abs(round_to(type, value));
    const int exponent = magnitude == 0 ? 0 : std::max(std::ilogb(magnitude) + bias, 0);
    const double unit = std::ldexp(1.0, std::max(exponent, 1) - bias - mantissa_bits);
    const int significand = static_cast<int>(magnitude / unit);
    bits =
        exponent ? (exponent << mantissa_bits) + significand - (1 << mantissa_bits) : significand;
  }
  if (std::signbit(value)) bits |= 0x8000;
  const auto stored = static_cast<uint16_t>(bits);
  std::memcpy(bytes, &stored, 2);
}

/// A [batch, heads, rows, columns] tensor. Its buffer has exactly the bytes it needs, so that the
/// address sanitizer or a forbidden page sees any access beyond it, and starts as NaN.
class Tensor {
 public:
  Tensor(DataType type, int64_t batch, int64_t heads, int64_t rows, int64_t columns,
         Order order = Order::kHeadMajor)
      : type_(type), batch_(batch), heads_(heads), rows_(rows), columns_(columns) {
    if (order == Order::kRowMajor) {
      strides_ = {heads * rows * columns, columns, heads * columns};
    } else {
      const int64_t row = columns + (order == Order::kPadded ? 3 : 0);
      strides_ = {heads * rows * row, rows * row, row};
    }
    const int64_t count = size() == 0 ? 0 : index(batch - 1, heads - 1, rows - 1, columns - 1) + 1;
    // NaN in every type.
    bytes_.resize(static_cast<size_t>(count * element_bytes(type)), 0xff);
  }

  void fill_normal(std::mt19937& generator, double deviation = 1) {
    std::normal_distribution<double> normal(0, deviation);
    for_each(
        [&](int64_t b, int64_t h, int64_t i, int64_t d) { set(b, h, i, d, normal(generator)); });
  }
  void fill(double value) {
    for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) { set(b, h, i, d, value); });
  }
  template <class Function>
  void for_each(Function&& function) const {
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t i = 0; i < rows_; ++i)
          for (int64_t d = 0; d < columns_; ++d) function(b, h, i, d);
  }

  double get(int64_t b, int64_t h, int64_t i, int64_t d = 0) const {
    return decode(type_, bytes_.data() + index(b, h, i, d) * element_bytes(type_));
  }
  void set(int64_t b, int64_t h, int64_t i, int64_t d, double value) {
    encode(type_, value, at(index(b, h, i, d)));
  }
  std::vector<double> values() const {
    std::vector<double> all;
    all.reserve(static_cast<size_t>(size()));
    for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) { all.push_back(get(b, h, i, d)); });
    return all;
  }
  void* data() { return bytes_.data(); }
  template <class T>
  operator TensorView<T>() {
    return {bytes_.data(), strides_};
  }
  int64_t size() const { return batch_ * heads_ * rows_ * columns_; }
  int64_t heads() const { return heads_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

 private:
  int64_t index(int64_t b, int64_t h, int64_t i, int64_t d) const {
    return b * strides_.batch + h * strides_.head + i * strides_.row + d;
  }
  unsigned char* at(int64_t i) { return bytes_.data() + i * element_bytes(type_); }

  DataType type_;
  int64_t batch_, heads_, rows_, columns_;
  Strides strides_;
  Buffer<unsigned char> bytes_;
};

/// A tensor's values, each decoded once: a definition in double reads it for every product.
class Decoded {
 public:
  explicit Decoded(const Tensor& tensor)
      : heads_(tensor.heads()),
        rows_(tensor.rows()),
        columns_(tensor.columns()),
        values_(tensor.values()) {}

  const double* row(int64_t b, int64_t h, int64_t i) const {
    return values_.data() + ((b * heads_ + h) * rows_ + i) * columns_;
  }

 private:
  int64_t heads_, rows_, columns_;
  std::vector<double> values_;
};

/// The Euclidean norm, not below 1e-15, so that it divides.
inline double norm_of(const std::vector<double>& a) {
  double squares = 0;
  for (const double x : a) squares += x * x;
  return std::sqrt(std::max(squares, 1e-30));
}

/// |a - b| / |b| in the Euclidean norm; 0 where both are empty or equal, NaN where a has NaN.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < b.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
  return difference == 0 ? 0 : std::sqrt(difference) / norm_of(b);
}

inline const char* name_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat16:
      return "float16";
    case DataType::kFloat64:
      return "float64";
  }
  return "";
}

/// Type of the statistics, entropies and temperatures that go with `type`.
inline DataType statistic_type(DataType type) {
  return type == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

}  // namespace aero::kernels::testing
