#include "csrc/mpc/operation_cost.h"

#include <algorithm>
#include <variant>

#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"

namespace aero::mpc {
namespace {

std::int64_t result_elements(const MatmulShape& shape) {
  return element_count({shape.rows, shape.columns}, "matrix product");
}

// One head's product of a T x T triangle in `strips` strips of rows, each over the columns that its
// last row sees, all strips at once. Results above the diagonal are not truncated.
Cost strips_of_triangle(const Stack& stack, const HeadProduct& product, std::int64_t strips) {
  const auto [rows, inner, columns] = product.shape;
  const std::int64_t height = rows / strips;
  Cost cost;
  for (std::int64_t strip = 1; strip <= strips; ++strip) {
    const std::int64_t seen = strip * height;
    const MatmulShape shape = product.triangle == Triangle::kResult
                                  ? MatmulShape{height, inner, seen}
                                  : MatmulShape{height, seen, columns};
    const Cost one = matmul(stack, shape, RightFactor::kShared);
    cost = with_flights(cost + one, std::max(cost.flights, one.flights));
  }
  const std::int64_t live = product.triangle == Triangle::kResult ? rows * (rows + 1) / 2
                                                                  : result_elements(product.shape);
  return cost + truncation(live);
}

// The strips cost whole ciphertexts each, so few of them, or the full square, can be cheapest.
Cost head_cost(const Stack& stack, const HeadProduct& product) {
  Cost best = matmul(stack, product.shape, RightFactor::kShared) +
              truncation(result_elements(product.shape));
  if (product.triangle == Triangle::kNone) return best;
  for (const std::int64_t strips : {2, 4, 8}) {
    if (product.shape.rows % strips != 0) continue;
    const Cost cost = strips_of_triangle(stack, product, strips);
    if (cost.comm_bytes() < best.comm_bytes()) best = cost;
  }
  return best;
}

struct Pricing {
  const Stack& stack;

  Cost operator()(const SessionSetup&) const { return session_setup(stack.threads); }
  Cost operator()(const EmbeddingShape& shape) const { return embedding(stack, shape); }
  Cost operator()(const WeightProduct& product) const {
    return matmul(stack, product.shape, weight_factor(stack)) +
           truncation(result_elements(product.shape));
  }
  Cost operator()(const HeadProduct& product) const {
    // Stock SPU loops over the heads.
    const Cost one = head_cost(stack, product);
    const auto heads = static_cast<double>(product.heads);
    return stack.batch_heads ? parallel(one, heads) : sequential(one, heads);
  }
  Cost operator()(const Truncation& shape) const { return truncation(shape.elements); }
  Cost operator()(const SecretScaling& shape) const {
    return product(stack, shape.elements) + truncation(shape.elements);
  }
  Cost operator()(const SoftmaxShape& shape) const { return softmax(stack, shape); }
  Cost operator()(const LayerNorm& shape) const {
    return layer_norm(stack, shape.rows, shape.width);
  }
  Cost operator()(const Activation& activation) const {
    switch (activation.kind) {
      case ActivationKind::kGelu:
        return gelu(stack, activation.elements);
      case ActivationKind::kLeakyRelu:
        return leaky_relu(activation.elements);
      case ActivationKind::kRelu:
        break;
    }
    return relu(activation.elements);
  }
  Cost operator()(const Argmax& shape) const { return argmax(shape.elements); }
};

}  // namespace

Cost operation_cost(const Stack& stack, const OperationShape& shape) {
  return std::visit(Pricing{stack}, shape);
}

}  // namespace aero::mpc
