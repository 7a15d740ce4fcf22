#include "csrc/mpc/network_analysis.h"

#include <algorithm>
#include <variant>

#include "csrc/mpc/operation.h"

namespace aero::mpc {
namespace {

using network::is;
using network::Network;
using network::Segment;
using network::Value;

bool moves_tokens(const network::Operation& operation) {
  return std::visit(
      []<class Primitive>(const Primitive&) { return requires { Primitive::kMovesTokens; }; },
      operation.primitive);
}

// Rows of a value, a union of these.
enum Rows : std::uint8_t { kNone = 0, kFirst = 1, kLast = 2, kAll = 4 };
using RowsOfValues = std::vector<std::uint8_t>;

// The rows of an input that an operation needs for the rows `made`: keys, values and moved tokens
// are read from other rows than the result's.
std::uint8_t rows_needed(const network::Operation& operation, std::size_t input,
                         std::uint8_t made) {
  const bool attends = is<network::Scores>(operation) || is<network::WeightedSum>(operation);
  if ((attends && input == 1) || moves_tokens(operation) || is<network::Rearrange>(operation))
    return kAll;
  const auto* pool = std::get_if<network::Pool>(&operation.primitive);
  if (pool == nullptr) return made;
  if (pool->kind == network::PoolKind::kMean) return kAll;
  return pool->kind == network::PoolKind::kFirst ? kFirst : kLast;
}

std::int64_t count_of(std::uint8_t rows) {
  if ((rows & kAll) != 0) return kAllRows;
  return rows == (kFirst | kLast) ? 2 : 1;
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

// Goes back over a segment, from the rows that are read of each value after it to those before it,
// and returns those of its operations.
RowsOfValues go_back(const Segment& segment, RowsOfValues& reads, std::uint8_t unread) {
  RowsOfValues made(segment.operations.size(), kAll);
  for (std::size_t i = segment.operations.size(); i-- > 0;) {
    const network::Operation& operation = segment.operations[i];
    std::uint8_t& rows = reads[operation.output];
    if (rows == kNone) rows = unread;
    if (rows == kNone) continue;
    made[i] = rows;
    rows = kNone;  // an earlier value of that name
    for (std::size_t input = 0; input < operation.inputs.size(); ++input)
      reads[operation.inputs[input]] |= rows_needed(operation, input, made[i]);
  }
  return made;
}

}  // namespace

std::vector<std::int64_t> rows_read(const Network& network, const Segment& segment) {
  RowsOfValues reads(network.values.size(), kNone);
  reads[network.segments.back().operations.back().output] = kLast;
  std::vector<std::int64_t> counts(segment.operations.size(), kAllRows);
  for (std::size_t i = network.segments.size(); i-- > 0;) {
    const bool is_head = i + 1 == network.segments.size();
    const RowsOfValues made = go_back(network.segments[i], reads, is_head ? kAll : kNone);
    if (&network.segments[i] != &segment) continue;
    std::transform(made.begin(), made.end(), counts.begin(), count_of);
    return counts;
  }
  return counts;
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
