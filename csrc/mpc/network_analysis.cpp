#include "csrc/mpc/network_analysis.h"

#include <algorithm>
#include <variant>

#include "csrc/mpc/operation.h"

namespace aero::mpc {
namespace {

using network::Network;
using network::Segment;
using network::Value;

template <class Primitive>
bool is(const network::Operation& operation) {
  return std::holds_alternative<Primitive>(operation.primitive);
}

bool moves_tokens(const network::Operation& operation) {
  return is<network::Shift>(operation) || is<network::Unfold>(operation);
}

// Whether an operation needs all rows of an input to make one row: keys, values, earlier tokens.
bool needs_all_rows(const network::Operation& operation, std::size_t input) {
  const bool attends = is<network::Scores>(operation) || is<network::WeightedSum>(operation);
  const auto* pool = std::get_if<network::Pool>(&operation.primitive);
  const bool is_mean = pool != nullptr && pool->kind == network::PoolKind::kMean;
  return (attends && input == 1) || moves_tokens(operation) || is_mean ||
         is<network::Rearrange>(operation);
}

bool is_diagonal(const network::Operation& operation) {
  const auto* norm = std::get_if<network::Norm>(&operation.primitive);
  return norm != nullptr && norm->kind == network::NormKind::kDiagonal;
}

// Whether a factor per channel of this operation's value can go into weights: all that read it are
// products, or move tokens to where the same is true.
bool readers_take_factors(const std::vector<network::Operation>& operations, std::size_t made) {
  for (std::size_t j = made + 1; j < operations.size(); ++j) {
    const std::vector<Value>& inputs = operations[j].inputs;
    const bool reads =
        std::find(inputs.begin(), inputs.end(), operations[made].output) != inputs.end();
    const bool takes = is<network::Linear>(operations[j]) ||
                       (moves_tokens(operations[j]) && readers_take_factors(operations, j));
    if (reads && !takes) return false;
    if (operations[j].output == operations[made].output) break;
  }
  return true;
}

// What is read of each value after a point of the network.
struct Reads {
  Flags used;
  Flags all_rows;
};

// Goes back over a segment, from what is read after it to what is read before it, and returns the
// operations of which one row alone is used.
Flags go_back(const Segment& segment, Reads& reads) {
  Flags one_row(segment.operations.size(), false);
  for (std::size_t i = segment.operations.size(); i-- > 0;) {
    const network::Operation& operation = segment.operations[i];
    if (!reads.used[operation.output]) continue;
    const bool all = reads.all_rows[operation.output];
    one_row[i] = !all;
    // An earlier value of that name.
    reads.used[operation.output] = reads.all_rows[operation.output] = false;
    for (std::size_t input = 0; input < operation.inputs.size(); ++input) {
      const Value value = operation.inputs[input];
      reads.used[value] = true;
      if (all || needs_all_rows(operation, input)) reads.all_rows[value] = true;
    }
  }
  return one_row;
}

}  // namespace

Flags one_row_operations(const Network& network, const Segment& segment) {
  Reads reads{Flags(network.values.size(), false), Flags(network.values.size(), false)};
  reads.used[network.segments.back().operations.back().output] = true;
  for (std::size_t i = network.segments.size(); i-- > 0;) {
    const Flags one_row = go_back(network.segments[i], reads);
    if (&network.segments[i] == &segment) return one_row;
  }
  return Flags(segment.operations.size(), false);
}

Flags folding_norms(const Segment& segment) {
  const std::vector<network::Operation>& operations = segment.operations;
  Flags folds(operations.size(), false);
  for (std::size_t i = 0; i < operations.size(); ++i)
    folds[i] = is_diagonal(operations[i]) && readers_take_factors(operations, i);
  return folds;
}

bool is_causal(const Network& network) {
  for (const Segment& segment : network.segments)
    for (const network::Operation& operation : segment.operations)
      if (const auto* softmax = std::get_if<network::Softmax>(&operation.primitive))
        if (!softmax->causal) return false;
  return true;
}

std::int64_t layer_count(const Network& network) {
  std::int64_t layers = 0;
  for (const Segment& segment : network.segments) layers += segment.layers;
  return layers;
}

bool can_absorb_ffn(const Network& network) {
  for (const Segment& segment : network.segments) {
    std::int64_t products = 0;
    for (const network::Operation& operation : segment.operations) {
      const auto* norm = std::get_if<network::Norm>(&operation.primitive);
      if (norm != nullptr && norm->kind != network::NormKind::kDiagonal) return false;
      if (is<network::Activation>(operation) || is<network::Shape>(operation) ||
          is<network::Multiply>(operation) || moves_tokens(operation))
        return false;
      if (operation.part == kind_name(Kind::kFfn)) ++products;
    }
    if (products > 1) return false;
  }
  return true;
}

}  // namespace aero::mpc
