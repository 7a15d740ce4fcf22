// Operations over rows, and products of matrices, in fixed point.
#pragma once

#include <cstdint>

#include "csrc/fixed_point/approximations.h"
#include "csrc/fixed_point/arithmetic.h"

namespace aero::fixed_point {

struct Softmax {
  Exponential exponential{};
  bool score_truncation = false;     // the scores are multiplied by a constant 1 first
  bool broadcast_reciprocal = true;  // one reciprocal per row; else a division per element
};

// probabilities = exp(x - max) * (1 / sum exp(x - max)), over the first `live` entries of each row;
// the others become 0. An empty row is 0.
//   scores, probabilities: [rows, columns]; live: [rows], or null for all columns.
void softmax(Arithmetic& arithmetic, const Softmax& settings, std::int64_t rows,
             std::int64_t columns, const Ring* scores, const std::int64_t* live,
             Ring* probabilities);

// (x - m) * (rsqrt(max(0, mean(x^2) - m^2) + epsilon) * gain) + bias, m = mean(x): the form of
// Flax's LayerNorm. Means are sums times a public 1 / width.
//   x, y: [rows, width]; gain, bias: [width].
void layer_norm(Arithmetic& arithmetic, std::int64_t rows, std::int64_t width, double epsilon,
                const Ring* x, const Ring* gain, const Ring* bias, Ring* y);

// c = a b, exact in the ring, then truncated by f bits.
//   a: [rows, inner]; b: [inner, columns]; c: [rows, columns].
void matmul(Arithmetic& arithmetic, std::int64_t rows, std::int64_t inner, std::int64_t columns,
            const Ring* a, const Ring* b, Ring* c);

}  // namespace aero::fixed_point
