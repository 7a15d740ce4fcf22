#include "csrc/mpc/operation_cost.h"

#include <algorithm>
#include <bit>
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

// One head's product of a T x T triangle in strips of `height` rows, the last one shorter, each
// over the columns that its last row sees, all strips at once. Results above the diagonal are not
// truncated.
Cost strips_of_triangle(const Stack& stack, const HeadProduct& product, std::int64_t height) {
  const auto [rows, inner, columns] = product.shape;
  Cost cost;
  for (std::int64_t above = 0; above < rows; above += height) {
    const std::int64_t seen = std::min(above + height, rows);
    const MatmulShape shape = product.triangle == Triangle::kResult
                                  ? MatmulShape{seen - above, inner, seen}
                                  : MatmulShape{seen - above, seen, columns};
    const Cost one = matmul(stack, shape, RightFactor::kShared);
    cost = with_flights(cost + one, std::max(cost.flights, one.flights));
  }
  const std::int64_t live = product.triangle == Triangle::kResult ? rows * (rows + 1) / 2
                                                                  : result_elements(product.shape);
  return cost + truncation(live);
}

// One head's strips cost whole ciphertexts each, so few of them, or the full square, can be
// cheapest. Of one height more rows never cost less, hence heights that do not depend on the number
// of rows: powers of two, of which eight strips at most are looked at.
Cost head_cost(const Stack& stack, const HeadProduct& product) {
  Cost best = matmul(stack, product.shape, RightFactor::kShared) +
              truncation(result_elements(product.shape));
  if (product.triangle == Triangle::kNone) return best;
  constexpr std::int64_t kMaxStrips = 8;
  const std::int64_t rows = product.shape.rows;
  const auto lowest = static_cast<std::uint64_t>((rows + kMaxStrips - 1) / kMaxStrips);
  for (auto height = static_cast<std::int64_t>(std::bit_ceil(lowest)); height < rows; height *= 2) {
    const Cost cost = strips_of_triangle(stack, product, height);
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
