#include "csrc/mpc/operation_cost.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <variant>

#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"
#include "csrc/mpc/protocols/packed_triangle.h"
#include "csrc/mpc/protocols/primitives.h"
#include "csrc/mpc/quoted_cost.h"

namespace aero::mpc {
namespace {

std::int64_t result_elements(const MatmulShape& shape) {
  return element_count({shape.rows, shape.columns}, "matrix product");
}

// The same for every head: at once, or one head after the other as in stock SPU.
Cost for_each_head(const Stack& stack, const Cost& one, std::int64_t heads) {
  const auto count = static_cast<double>(heads);
  return stack.batch_heads ? parallel(one, count) : sequential(one, count);
}

// At once, so that heads fill up each other's messages, or one head after the other.
Cost heads_truncation(const Stack& stack, std::int64_t elements, std::int64_t heads) {
  return stack.batch_heads ? truncation(stack, element_count({heads, elements}, "scores"))
                           : sequential(truncation(stack, elements), static_cast<double>(heads));
}

Cost at_once(const Cost& first, const Cost& second) {
  return with_rounds(first + second, std::max(first.rounds, second.rounds));
}

// The products of all heads, without their truncation. A head's ciphertexts are whole ones; one
// query row of 64 words, as in generation, fills 1/128 of its own. But the products of g heads are
// one product: their left factors side by side, 1 x g k, times the block-diagonal matrix of their
// right factors, g k x g n, which each party builds of its shares alone. Same protocol, same
// values; as few ciphertexts as one product of that size, for g times the ciphertext x plaintext
// products, as most words are zeros. More rows fill their ciphertexts and would pay that for
// little. `heads` may include sequences side by side.
Cost heads_matmul(const Stack& stack, const MatmulShape& shape, std::int64_t heads) {
  Cost best = for_each_head(stack, matmul(stack, shape, RightFactor::kShared), heads);
  if (!stack.share_ciphertexts || !stack.batch_heads || shape.rows > 1) return best;
  const auto of = [&](std::int64_t group, std::int64_t groups) {
    if (groups == 0 || group == 0) return Cost{};
    const MatmulShape all = {1, group * shape.inner, group * shape.columns};
    return parallel(matmul(stack, all, RightFactor::kShared), static_cast<double>(groups));
  };
  // A polynomial has no room for more heads than coefficients.
  for (std::int64_t group = 1; group < std::min(heads, kPolynomialDegree);) {
    group *= 2;
    const Cost cost = at_once(of(group, heads / group), of(heads % group, 1));
    if (cost.comm_bytes() < best.comm_bytes()) best = cost;
  }
  return best;
}

// T x T triangles in strips of `height` rows, the last one shorter, each over the columns that its
// last row sees, all strips at once.
Cost strips_of_triangles(const Stack& stack, const HeadProduct& product, std::int64_t height) {
  const auto [rows, inner, columns] = product.shape;
  Cost cost;
  for (std::int64_t above = 0; above < rows; above += height) {
    const std::int64_t seen = std::min(above + height, rows);
    const MatmulShape shape = product.triangle == Triangle::kResult
                                  ? MatmulShape{seen - above, inner, seen}
                                  : MatmulShape{seen - above, seen, columns};
    cost = at_once(cost, heads_matmul(stack, shape, product.heads));
  }
  return cost;
}

// Strips cost whole ciphertexts each, so few of them, or the full square, can be cheapest. Of one
// height more rows never cost less, hence heights that do not depend on the number of rows: powers
// of two, of which eight strips at most are looked at. Results above the diagonal are not
// truncated.
Cost triangles_cost(const Stack& stack, const HeadProduct& product) {
  const std::int64_t rows = product.shape.rows;
  const std::int64_t elements = result_elements(product.shape);
  const std::int64_t live =
      product.triangle == Triangle::kResult ? rows * (rows + 1) / 2 : elements;
  Cost best = heads_matmul(stack, product.shape, product.heads) +
              heads_truncation(stack, elements, product.heads);
  constexpr std::int64_t kMaxStrips = 8;
  const auto lowest = static_cast<std::uint64_t>((rows + kMaxStrips - 1) / kMaxStrips);
  for (auto height = static_cast<std::int64_t>(std::bit_ceil(lowest)); height < rows; height *= 2) {
    const Cost cost =
        strips_of_triangles(stack, product, height) + heads_truncation(stack, live, product.heads);
    if (cost.comm_bytes() < best.comm_bytes()) best = cost;
  }
  return best;
}

Cost heads_cost(const Stack& stack, const HeadProduct& product) {
  if (product.triangle == Triangle::kNone)
    return heads_matmul(stack, product.shape, product.heads) +
           heads_truncation(stack, result_elements(product.shape), product.heads);
  const Cost all = triangles_cost(stack, product);
  if (!stack.pack_triangle || product.triangle != Triangle::kResult) return all;
  const std::int64_t rows = product.shape.rows;
  const std::int64_t live = rows * (rows + 1) / 2;
  const Cost packed = (stack.batch_heads ? packed_triangles(product.shape, product.heads)
                                         : sequential(packed_triangles(product.shape, 1),
                                                      static_cast<double>(product.heads))) +
                      heads_truncation(stack, live, product.heads);
  return packed.comm_bytes() < all.comm_bytes() ? packed : all;
}

struct Pricing {
  const Stack& stack;

  // Shares without ciphertexts agree on seeds alone, some hundred bytes.
  Cost operator()(const SessionSetup&) const {
    return share_protocol(stack) ? Cost{} : session_setup(stack.threads);
  }
  Cost operator()(const EmbeddingShape& shape) const { return embedding(stack, shape); }
  Cost operator()(const WeightProduct& product) const {
    return weight_matmul(stack, product.shape, Slices::kColumns, product.opened) +
           truncation(stack, result_elements(product.shape));
  }
  Cost operator()(const HeadProduct& product) const { return heads_cost(stack, product); }
  Cost operator()(const Truncation& shape) const { return truncation(stack, shape.elements); }
  Cost operator()(const WeightScaling& shape) const {
    return weight_scaling(stack, shape.elements);
  }
  Cost operator()(const SharedProduct& shape) const {
    return shared_product(stack, shape.elements);
  }
  Cost operator()(const SoftmaxShape& shape) const { return softmax(stack, shape); }
  Cost operator()(const FunctionShape& shape) const {
    return shape.function->cost(stack, shape.rows, shape.width);
  }
  Cost operator()(const Argmax& shape) const { return argmax(stack, shape.elements, shape.rows); }
  Cost operator()(const TopKShape& shape) const { return top_k(stack, shape); }
  Cost operator()(const Opening& shape) const {
    constexpr double kShareBytes = kRingBits / 8.0;
    Cost cost;
    cost.sent_bytes[kServer] = static_cast<double>(shape.elements) * kShareBytes;
    if (shape.to_all) cost.sent_bytes[kClient] = cost.sent_bytes[kServer];
    if (shape.to_all && stack.protocol == Protocol::kAby3)
      cost.helper_bytes = cost.sent_bytes[kServer];
    // SecureNN's helper sends its zeros too (arithmetic.cc, A2V).
    if (stack.protocol == Protocol::kSecureNn) cost.helper_bytes = cost.sent_bytes[kServer];
    cost.rounds = 1;
    return cost;
  }
};

struct LoweringText {
  const Stack& stack;

  std::string operator()(const FunctionShape& shape) const {
    return std::string(shape.function->lowering(stack));
  }
  std::string operator()(const SoftmaxShape&) const {
    if (stack.softmax_steps > 0)
      return std::to_string(stack.softmax_steps) + " steps y += (x - sum(x y)) y from y = 1/S";
    const std::string terms =
        std::to_string(std::uint64_t{1} << static_cast<unsigned>(stack.exp_squarings));
    return std::string("exp(x - ") + (stack.static_max ? "a bound" : "max") + ") as (1 + x/" +
           terms + ")^" + terms + (stack.exp_clip ? ", 0 below -14" : "") +
           ", one reciprocal per " + (stack.broadcast_reciprocal ? "row" : "element");
  }
  std::string operator()(const EmbeddingShape&) const {
    if (stack.client_one_hot) return "one-hot rows of the client, times the table";
    return stack.protocol == Protocol::kAby3
               ? "table.at[tokens].get(): a distributed point function per token"
               : "table.at[tokens].get(): every index tested, then times the table";
  }
  std::string operator()(const TopKShape&) const {
    return stack.protocol == Protocol::kSecureNn ? "jax.lax.top_k: all of a row are sorted"
                                                 : "jax.lax.top_k: quickselect of shuffled rows";
  }
  std::string operator()(const Argmax&) const {
    return stack.argmax_ties ? "jnp.argmax" : "one comparison per node";
  }
  template <class Shape>
  std::string operator()(const Shape&) const {
    return {};
  }
};

}  // namespace

std::string lowering_text(const Stack& stack, const Operation& operation) {
  const std::string text = operation.written.empty()
                               ? std::visit(LoweringText{stack}, operation.shape)
                               : std::string(operation.written);
  const bool is_own = !text.empty() && replaces(stack.prices, operation.shape);
  return is_own ? "the price that the stack's description quotes" : text;
}

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
