#include "csrc/mpc/operation_cost.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"
#include "csrc/mpc/protocols/packed_triangle.h"
#include "csrc/mpc/quoted_cost.h"

namespace aero::mpc {
namespace {

std::int64_t result_elements(const MatmulShape& shape) {
  return element_count({shape.rows, shape.columns}, "matrix product");
}

// One head's product of a T x T triangle in `strips` strips of rows, alike up to one row, each over
// the columns that its last row sees, all strips at once. Results above the diagonal are not
// truncated.
Cost strips_of_triangle(const Stack& stack, const HeadProduct& product, std::int64_t strips) {
  const auto [rows, inner, columns] = product.shape;
  Cost cost;
  std::int64_t above = 0;  // rows of the strips before
  for (std::int64_t strip = 1; strip <= strips; ++strip) {
    const std::int64_t seen = rows * strip / strips;
    const std::int64_t height = seen - std::exchange(above, seen);
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

// One head's strips cost whole ciphertexts each, so few of them, or the full square, can be
// cheapest.
Cost head_cost(const Stack& stack, const HeadProduct& product) {
  Cost best = matmul(stack, product.shape, RightFactor::kShared) +
              truncation(result_elements(product.shape));
  if (product.triangle == Triangle::kNone) return best;
  for (const std::int64_t strips : {2, 4, 8}) {
    if (product.shape.rows < strips) continue;
    const Cost cost = strips_of_triangle(stack, product, strips);
    if (cost.comm_bytes() < best.comm_bytes()) best = cost;
  }
  return best;
}

// Stock SPU loops over the heads.
Cost heads_cost(const Stack& stack, const HeadProduct& product) {
  const Cost one = head_cost(stack, product);
  const auto heads = static_cast<double>(product.heads);
  const Cost all = stack.batch_heads ? parallel(one, heads) : sequential(one, heads);
  if (!stack.pack_triangle || product.triangle != Triangle::kResult) return all;
  const std::int64_t rows = product.shape.rows;
  const std::int64_t live = rows * (rows + 1) / 2;
  const Cost packed =
      stack.batch_heads ? packed_triangles(product.shape, product.heads) +
                              truncation(element_count({product.heads, live}, "scores"))
                        : sequential(packed_triangles(product.shape, 1) + truncation(live), heads);
  return packed.comm_bytes() < all.comm_bytes() ? packed : all;
}

struct Pricing {
  const Stack& stack;

  Cost operator()(const SessionSetup&) const { return session_setup(stack.threads); }
  Cost operator()(const EmbeddingShape& shape) const { return embedding(stack, shape); }
  Cost operator()(const WeightProduct& product) const {
    return matmul(stack, product.shape, weight_factor(stack)) +
           truncation(result_elements(product.shape));
  }
  Cost operator()(const HeadProduct& product) const { return heads_cost(stack, product); }
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
        return leaky_relu(stack, activation.elements);
      case ActivationKind::kRelu:
        break;
    }
    return relu(stack, activation.elements);
  }
  Cost operator()(const Argmax& shape) const {
    return parallel(argmax(shape.elements), static_cast<double>(shape.rows));
  }
  Cost operator()(const Opening& shape) const {
    constexpr double kShareBytes = kRingBits / 8.0;
    Cost cost;
    cost.sent_bytes[kServer] = static_cast<double>(shape.elements) * kShareBytes;
    cost.flights = 1;
    return cost;
  }
};

}  // namespace

Cost operation_cost(const Stack& stack, const OperationShape& shape) {
  return quoted(stack.prices, shape, std::visit(Pricing{stack}, shape));
}

const Cost& ShapePrices::operator()(const Operation& operation) {
  for (const auto& [shape, cost] : known_)
    if (shape == operation.shape) return cost;
  const Cost cost = checked(operation_cost(stack_, operation.shape), operation.name);
  return known_.emplace_back(operation.shape, cost).second;
}

}  // namespace aero::mpc
