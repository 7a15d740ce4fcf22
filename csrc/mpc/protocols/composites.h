// Functions made of products, truncations and comparisons, as SPU lowers them
// (`libspu/kernel/hal/fxp_approx.cc`, `fxp_base.cc`), OpenBumbleBee where named.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

Cost relu(const Stack& stack, std::int64_t elements);

// max(x, s x) with a public slope s.
Cost leaky_relu(const Stack& stack, std::int64_t elements);

Cost gelu(const Stack& stack, std::int64_t elements);

// x / 2 (1 + tanh(x / 2)); x times the logistic function takes 1.71 times the bytes.
Cost silu(const Stack& stack, std::int64_t elements);

// Element by element in place of a norm: gain f(alpha x + shift) + bias, f being tanh (DyT, arXiv
// 2503.10622) or erf (Derf, arXiv 2512.10938). Neither paper prices it.
enum class DynamicFunction : std::uint8_t { kTanh, kErf };

Cost hyperbolic_tangent(const Stack& stack, std::int64_t elements);

// c tanh(x / c).
Cost soft_cap(const Stack& stack, std::int64_t elements);

Cost dynamic_norm(const Stack& stack, DynamicFunction function, std::int64_t elements);

// exp(x) for x <= 0.
Cost exponential(const Stack& stack, std::int64_t elements);

Cost reciprocal(const Stack& stack, std::int64_t elements);

Cost reciprocal_square_root(const Stack& stack, std::int64_t elements);

// `live` of the rows x columns scores are worked on: all, or those a causal mask leaves.
struct SoftmaxShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t live = 0;

  bool operator==(const SoftmaxShape&) const = default;
};

Cost softmax(const Stack& stack, const SoftmaxShape& shape);

// Every element times a weight, then the truncation.
Cost weight_scaling(const Stack& stack, std::int64_t elements);

// Two secret values, element by element, then the truncation.
Cost shared_product(const Stack& stack, std::int64_t elements);

Cost layer_norm(const Stack& stack, std::int64_t rows, std::int64_t width);

// x / sqrt(mean of squares + epsilon) times a gain.
Cost rms_norm(const Stack& stack, std::int64_t rows, std::int64_t width);

// Rows of a V x d table for T tokens; without a truncation (one-hot rows are integers).
struct EmbeddingShape {
  std::int64_t tokens = 0;
  std::int64_t vocab_size = 0;
  std::int64_t width = 0;

  bool operator==(const EmbeddingShape&) const = default;
};

Cost embedding(const Stack& stack, const EmbeddingShape& shape);

// Index of the largest of `elements` values, of each row.
Cost argmax(const Stack& stack, std::int64_t elements, std::int64_t rows = 1);

}  // namespace aero::mpc
