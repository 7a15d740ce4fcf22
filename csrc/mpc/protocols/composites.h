// Functions made of products, truncations and comparisons, as SPU lowers them
// (`libspu/kernel/hal/fxp_approx.cc`, `fxp_base.cc`), OpenBumbleBee where named.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

Cost relu(const Stack& stack, std::int64_t elements);

Cost gelu(const Stack& stack, std::int64_t elements);

Cost hyperbolic_tangent(const Stack& stack, std::int64_t elements);

Cost error_function(const Stack& stack, std::int64_t elements);

// exp(x) for x <= 0.
Cost exponential(const Stack& stack, std::int64_t elements);

// 1 / (1 + exp(-x)).
Cost logistic(const Stack& stack, std::int64_t elements);

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

// Rows of a V x d table for T tokens; without a truncation (one-hot rows are integers).
struct EmbeddingShape {
  std::int64_t tokens = 0;
  std::int64_t vocab_size = 0;
  std::int64_t width = 0;
  bool opened = false;  // the table, by an earlier pass

  bool operator==(const EmbeddingShape&) const = default;
};

Cost embedding(const Stack& stack, const EmbeddingShape& shape);

// Index of the largest of `elements` values, of each row.
Cost argmax(const Stack& stack, std::int64_t elements, std::int64_t rows = 1);

}  // namespace aero::mpc
