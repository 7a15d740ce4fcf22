#include "csrc/mpc/quoted_cost.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <variant>

namespace aero::mpc {
namespace {

// The kind of an operation and its amount.
struct Quantity {
  Quotable operation;
  double rows = 1;
  double inputs = 1;
  double outputs = 1;
  double levels = 0;
};

double real(std::int64_t count) { return static_cast<double>(count); }

Quantity of_elements(Quotable operation, std::int64_t elements) {
  return {operation, real(elements), real(elements), real(elements)};
}

double levels_of_tree(std::int64_t leaves) {
  return static_cast<double>(std::bit_width(static_cast<std::uint64_t>(leaves - 1)));
}

Quantity of_product(Quotable operation, const MatmulShape& shape) {
  const double rows = real(shape.rows);
  return {operation, rows, rows * real(shape.inner), rows * real(shape.columns)};
}

struct Measuring {
  Quantity operator()(const SessionSetup&) const { return {Quotable::kSetup}; }
  Quantity operator()(const EmbeddingShape& s) const {
    const double tokens = real(s.tokens);
    return {Quotable::kEmbedding, tokens, tokens * real(s.vocab_size), tokens * real(s.width)};
  }
  Quantity operator()(const WeightProduct& s) const {
    return of_product(Quotable::kWeightProduct, s.shape);
  }
  Quantity operator()(const HeadProduct& s) const {
    Quantity quantity = of_product(Quotable::kHeadProduct, s.shape);
    const double live = real(s.shape.rows) * (real(s.shape.rows) + 1) / 2;
    if (s.triangle == Triangle::kResult) quantity.outputs = live;
    if (s.triangle == Triangle::kLeftFactor) quantity.inputs = live;
    for (double* count : {&quantity.rows, &quantity.inputs, &quantity.outputs})
      *count *= real(s.heads);
    return quantity;
  }
  Quantity operator()(const Truncation& s) const {
    return of_elements(Quotable::kTruncation, s.elements);
  }
  Quantity operator()(const SoftmaxShape& s) const {
    return {Quotable::kSoftmax, real(s.rows), real(s.live), real(s.live),
            levels_of_tree(s.columns)};
  }
  Quantity operator()(const WeightScaling& s) const {
    return of_elements(Quotable::kWeightScaling, s.elements);
  }
  Quantity operator()(const SharedProduct& s) const {
    return of_elements(Quotable::kElementwiseProduct, s.elements);
  }
  Quantity operator()(const FunctionShape& s) const {
    const double elements = real(s.rows) * real(s.width);
    return {s.function->quoted_as, real(s.rows), elements, elements};
  }
  Quantity operator()(const Argmax& s) const {
    const double elements = real(s.rows) * real(s.elements);
    return {Quotable::kArgmax, real(s.rows), elements, elements, levels_of_tree(s.elements)};
  }
};

// Nothing for operations that no description can price: no protocol makes opening a share cheaper
// or dearer, and no paper prices the largest of a row.
std::optional<Quantity> quantity_of(const OperationShape& shape) {
  return std::visit(
      [](const auto& s) -> std::optional<Quantity> {
        if constexpr (std::is_invocable_v<Measuring, decltype(s)>)
          return Measuring{}(s);
        else
          return std::nullopt;
      },
      shape);
}

}  // namespace

bool is_quoted(const Prices& prices, const OperationShape& shape) {
  const std::optional<Quantity> quantity = quantity_of(shape);
  return quantity && prices[static_cast<std::size_t>(quantity->operation)] != Price{};
}

bool replaces(const Prices& prices, const OperationShape& shape) {
  const std::optional<Quantity> quantity = quantity_of(shape);
  return quantity && prices[static_cast<std::size_t>(quantity->operation)].linear;
}

Cost quoted(const Prices& prices, const OperationShape& shape, const Cost& derived) {
  const std::optional<Quantity> quantity = quantity_of(shape);
  if (!quantity) return derived;
  const Price& price = prices[static_cast<std::size_t>(quantity->operation)];
  if (price == Price{}) return derived;
  Cost cost;
  if (price.linear) {
    const double bytes = price.bytes_per_call + price.bytes_per_row * quantity->rows +
                         price.bytes_per_input * quantity->inputs +
                         price.bytes_per_output * quantity->outputs;
    cost.sent_bytes = {bytes * price.client_share, bytes * (1 - price.client_share)};
    cost.rounds = price.rounds + std::nearbyint(price.rounds_per_level * quantity->levels);
    return cost;
  }
  cost = derived;
  for (double& bytes : cost.sent_bytes) bytes *= price.bytes_factor;
  cost.rounds = std::nearbyint(cost.rounds * price.rounds_factor);
  return cost;
}

}  // namespace aero::mpc
