#include "csrc/fixed_point/rows.h"

#include <algorithm>

namespace aero::fixed_point {
namespace {

bool signed_less(Ring a, Ring b) {
  return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b);
}

}  // namespace

// SPU's example flax_llama7b.py, hack_softmax. The compiler turns the division by the row's sum
// into a product with its reciprocal where enable_optimize_denominator_with_broadcast is on.
void softmax(Arithmetic& arithmetic, const Softmax& settings, std::int64_t rows,
             std::int64_t columns, const Ring* scores, const std::int64_t* live,
             Ring* probabilities) {
  const Ring one = arithmetic.encode(1.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Ring* in = scores + row * columns;
    Ring* out = probabilities + row * columns;
    const std::int64_t count = live == nullptr ? columns : live[row];
    std::fill(out + count, out + columns, Ring{0});
    if (count == 0) continue;

    for (std::int64_t i = 0; i < count; ++i)
      out[i] = settings.score_truncation ? arithmetic.scaled(in[i], one) : in[i];
    const Ring maximum = *std::max_element(out, out + count, signed_less);
    Ring sum = 0;
    for (std::int64_t i = 0; i < count; ++i)
      sum += out[i] = exponential(arithmetic, out[i] - maximum, settings.exponential);
    if (settings.broadcast_reciprocal) {
      const Ring inverse = reciprocal(arithmetic, sum);
      for (std::int64_t i = 0; i < count; ++i) out[i] = arithmetic.product(out[i], inverse);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = quotient(arithmetic, out[i], sum);
    }
  }
}

void layer_norm(Arithmetic& arithmetic, std::int64_t rows, std::int64_t width, double epsilon,
                const Ring* x, const Ring* gain, const Ring* bias, Ring* y) {
  const Ring inverse_width = arithmetic.encode(1.0 / static_cast<double>(width));
  const Ring smallest = arithmetic.encode(epsilon);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Ring* in = x + row * width;
    Ring* out = y + row * width;
    Ring sum = 0;
    Ring sum_of_squares = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      sum += in[i];
      sum_of_squares += arithmetic.product(in[i], in[i]);
    }
    const Ring mean = arithmetic.scaled(sum, inverse_width);
    const Ring variance =
        arithmetic.scaled(sum_of_squares, inverse_width) - arithmetic.product(mean, mean);
    const Ring inverse =
        reciprocal_square_root(arithmetic, (is_negative(variance) ? 0 : variance) + smallest);
    for (std::int64_t i = 0; i < width; ++i)
      out[i] = arithmetic.product(in[i] - mean, arithmetic.product(inverse, gain[i])) + bias[i];
  }
}

void matmul(Arithmetic& arithmetic, std::int64_t rows, std::int64_t inner, std::int64_t columns,
            const Ring* a, const Ring* b, Ring* c) {
  // Four rows of a at a time: each row of b is read once for four products.
  constexpr std::int64_t kRows = 4;
  std::fill(c, c + rows * columns, Ring{0});
  for (std::int64_t first = 0; first < rows; first += kRows) {
    const std::int64_t count = std::min(kRows, rows - first);
    for (std::int64_t k = 0; k < inner; ++k) {
      const Ring* factor = b + k * columns;
      for (std::int64_t r = first; r < first + count; ++r) {
        const Ring value = a[r * inner + k];
        Ring* out = c + r * columns;
        for (std::int64_t j = 0; j < columns; ++j) out[j] += value * factor[j];
      }
    }
  }
  for (std::int64_t i = 0; i < rows * columns; ++i)
    c[i] = arithmetic.truncate(c[i], arithmetic.fraction_bits());
}

}  // namespace aero::fixed_point
